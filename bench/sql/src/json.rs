//! Results as JSON, for `cargo xtask bench compare`.

use bench_support::{Quartiles, RowSamples};
use serde_json::{Map, Value, json};

use crate::args::SqlBenchOptions;
use crate::rounds::SqlOutcome;
use crate::score::CaseScore;

/// Writes one object per compared metric under `rows`, named `case-metric/contender`; a lower `ratio` is better.
pub(crate) fn all(outcome: &SqlOutcome, options: &SqlBenchOptions) -> String {
    let missing = outcome.missing.iter().map(|(name, reason)| json!({ "name": name, "why": reason }));
    let resets = outcome.resets.iter().map(|(case, resets)| (case.clone(), json!(resets)));
    let rss = outcome.rss.iter().map(|(label, bytes)| (label.clone(), json!(bytes)));
    let all = json!({
        "suite": "sql",
        "better": "lower",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "seed": options.run.seed,
        "load_average": outcome.loads,
        "resets_per_query": resets.collect::<Map<_, _>>(),
        "rss_bytes": rss.collect::<Map<_, _>>(),
        "rows": outcome.scores.iter().flat_map(rows).collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

pub(crate) fn rows(score: &CaseScore) -> Vec<Value> {
    let to_json = |(group, metric): (&str, &str), row: &RowSamples| {
        let own = row.quartiles(metric)?;
        let ratio = score.ratio(row, metric)?;
        Some(json!({
            "name": format!("{}-{group}/{}", score.name, row.label),
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
    let metrics = score.metrics.iter();
    let compared = metrics.filter_map(|metric| Some((metric.json_group()?, metric.name)));
    compared.flat_map(|metric| score.rows.iter().filter_map(move |row| to_json(metric, row))).collect()
}

fn medians(score: &CaseScore, row: &RowSamples) -> Map<String, Value> {
    let median = |name: &str| row.quartiles(name).map(|Quartiles { median, .. }| json!(median));
    let metrics = score.metrics.iter();
    metrics.filter_map(|metric| Some((metric.name.to_owned(), median(metric.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::options;
    use crate::case::SqlCase;

    #[test]
    fn rows_have_ratios_and_missing_contenders_a_reason() {
        let row = |label: &str, us: f64| {
            let mut row = RowSamples::new(label);
            row.record(Ok(vec![("wall_us", us), ("cpu_us", us / 2.0)]));
            row
        };
        let case = SqlCase::Lookup { connections: 16 };
        let outcome = SqlOutcome {
            scores: vec![CaseScore::new(case, vec![row("pgbouncer", 2.0), row("own", 3.0)])],
            missing: vec![("evenkeel".to_owned(), "not built".to_owned())],
            loads: vec!["0.10".to_owned()],
            resets: vec![("lookup16".to_owned(), 0.75)],
            rss: Vec::new(),
        };
        let all: Value = serde_json::from_str(&all(&outcome, &options("--seed 5"))).unwrap();
        assert_eq!((&all["better"], &all["rounds"], &all["seed"]), (&json!("lower"), &json!(5), &json!(5)));
        let ratios: Vec<_> =
            all["rows"].as_array().unwrap().iter().map(|row| (&row["name"], &row["ratio"])).collect();
        assert_eq!(
            ratios,
            [
                (&json!("lookup16-wall/pgbouncer"), &json!(1.0)),
                (&json!("lookup16-wall/own"), &json!(1.5)),
                (&json!("lookup16-cpu/pgbouncer"), &json!(1.0)),
                (&json!("lookup16-cpu/own"), &json!(1.5)),
            ]
        );
        assert_eq!(all["resets_per_query"], json!({ "lookup16": 0.75 }));
        assert_eq!(all["missing"], json!([{ "name": "evenkeel", "why": "not built" }]));
    }
}
