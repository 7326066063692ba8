//! Results as JSON, for `cargo xtask bench compare`.

use bench_support::{Quartiles, RowSamples};
use serde_json::{Map, Value, json};

use crate::args::Options;
use crate::rounds::Outcome;
use crate::score::Score;

/// Writes one object per compared metric under `rows`, named `group/contender`; a lower `ratio` is better.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let mut rows: Vec<_> = outcome.scores.iter().flat_map(rows).collect();
    rows.extend(idle_rows(outcome));
    let missing = outcome.missing.iter().map(|(name, reason)| json!({ "name": name, "why": reason }));
    let all = json!({
        "suite": "llm",
        "better": "lower",
        "rounds": options.rounds,
        "seed": options.seed,
        "scale": options.scale,
        "rows": rows,
        "missing": missing.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

fn rows(score: &Score) -> Vec<Value> {
    let compared = score.workload.metrics().iter().filter_map(|metric| Some((metric.group?, metric.name)));
    let to_json = |(group, metric): (&str, &str), row: &RowSamples| {
        let own = row.quartiles(metric)?;
        let ratio = score.ratio(row, metric)?;
        Some(json!({
            "name": format!("{group}/{}", row.label),
            "figure": metric,
            "median": own.median,
            "lower": own.lower,
            "upper": own.upper,
            "ratio": ratio.median,
            "ratio_lower": ratio.lower,
            "ratio_upper": ratio.upper,
            "medians": medians(score, row),
        }))
    };
    compared.flat_map(|metric| score.rows.iter().filter_map(move |row| to_json(metric, row))).collect()
}

fn medians(score: &Score, row: &RowSamples) -> Map<String, Value> {
    let median = |name: &str| row.quartiles(name).map(|Quartiles { median, .. }| json!(median));
    let metrics = score.workload.metrics().iter();
    metrics.filter_map(|metric| Some((metric.name.to_owned(), median(metric.name)?))).collect()
}

fn idle_rows(outcome: &Outcome) -> Vec<Value> {
    let Some((_, least)) = outcome.idle.first() else { return Vec::new() };
    let row = |(label, mib): &(String, f64)| {
        let ratio = mib / least;
        json!({
            "name": format!("idle/{label}"), "figure": "rss_idle_mib", "median": mib, "lower": mib, "upper": mib,
            "ratio": ratio, "ratio_lower": ratio, "ratio_upper": ratio,
        })
    };
    outcome.idle.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::options;
    use crate::score::tests::score;

    #[test]
    fn rows_have_ratios_and_missing_contenders_a_reason() {
        let outcome = Outcome {
            scores: vec![score("cpu_us", &[("direct", &[]), ("haproxy", &[2.0]), ("own", &[3.0])])],
            idle: vec![("haproxy".to_owned(), 10.0), ("own".to_owned(), 5.0)],
            missing: vec![("smg".to_owned(), "no wheel".to_owned())],
        };
        let all: Value = serde_json::from_str(&all(&outcome, &options("--seed 5"))).unwrap();
        assert_eq!((&all["better"], &all["rounds"], &all["seed"]), (&json!("lower"), &json!(7), &json!(5)));
        let ratios: Vec<_> =
            all["rows"].as_array().unwrap().iter().map(|row| (&row["name"], &row["ratio"])).collect();
        assert_eq!(
            ratios,
            [
                (&json!("cpu/haproxy"), &json!(1.0)),
                (&json!("cpu/own"), &json!(1.5)),
                (&json!("idle/haproxy"), &json!(1.0)),
                (&json!("idle/own"), &json!(0.5)),
            ]
        );
        assert_eq!(all["missing"], json!([{ "name": "smg", "why": "no wheel" }]));
    }
}
