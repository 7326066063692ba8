//! Results as JSON, for `cargo xtask bench compare`.

use bench_support::{Quartiles, RowSamples};
use serde_json::{Map, Value, json};

use crate::args::Options;
use crate::rounds::{Outcome, Score};

/// Compared metrics, by the suffix of their rows' group; lower is better.
const COMPARED: &[(&str, &str)] = &[("wall", "wall_us"), ("cpu", "cpu_us")];
const METRICS: &[&str] = &["rate", "wall_us", "cpu_us", "p50_us", "p99_us"];

/// Writes one object per compared metric under `rows`, named `case-metric/contender`; a lower `ratio` is better.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let missing = outcome.missing.iter().map(|(name, reason)| json!({ "name": name, "why": reason }));
    let syncs = outcome.syncs.iter().map(|(name, syncs)| {
        json!({
            "name": name,
            "per_message_alone": syncs.one_producer,
            "per_message_among_16": syncs.many_producers,
            "per_message_taken": syncs.one_consumer,
        })
    });
    let all = json!({
        "suite": "queue",
        "better": "lower",
        "rounds": options.rounds,
        "seed": options.seed,
        "scale": options.scale,
        "filesystem": outcome.filesystem,
        "sync_us": outcome.sync_us,
        "load_average": outcome.loads,
        "syncs": syncs.collect::<Vec<_>>(),
        "rows": outcome.scores.iter().flat_map(rows).collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

fn rows(score: &Score) -> Vec<Value> {
    let to_json = |(group, metric): (&str, &str), row: &RowSamples| {
        let own = row.quartiles(metric)?;
        let ratio = score.ratio(row, metric)?;
        Some(json!({
            "name": format!("{}-{group}/{}", score.case.name(), row.label),
            "figure": metric,
            "median": own.median,
            "lower": own.lower,
            "upper": own.upper,
            "ratio": ratio.median,
            "ratio_lower": ratio.lower,
            "ratio_upper": ratio.upper,
            "medians": medians(row),
        }))
    };
    let compared = COMPARED.iter().copied();
    compared.flat_map(|metric| score.rows.iter().filter_map(move |row| to_json(metric, row))).collect()
}

fn medians(row: &RowSamples) -> Map<String, Value> {
    let median = |name: &str| row.quartiles(name).map(|Quartiles { median, .. }| json!(median));
    METRICS.iter().filter_map(|name| Some(((*name).to_owned(), median(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::options;
    use crate::case::Case;

    #[test]
    fn rows_have_ratios_and_missing_contenders_a_reason() {
        let row = |label: &str, us: f64| {
            let mut row = RowSamples::new(label);
            row.record(Ok(vec![("wall_us", us), ("cpu_us", us / 2.0)]));
            row
        };
        let score = Score { case: Case::Take { batch: 10 }, rows: vec![row("redis", 2.0), row("own", 3.0)] };
        let outcome = Outcome {
            scores: vec![score],
            syncs: Vec::new(),
            missing: vec![("nats".to_owned(), "no wheel".to_owned())],
            filesystem: "ext4".to_owned(),
            sync_us: vec![200.0],
            loads: vec!["0.10".to_owned()],
        };
        let all: Value = serde_json::from_str(&all(&outcome, &options("--seed 5"))).unwrap();
        assert_eq!((&all["better"], &all["rounds"], &all["seed"]), (&json!("lower"), &json!(5), &json!(5)));
        let ratios: Vec<_> =
            all["rows"].as_array().unwrap().iter().map(|row| (&row["name"], &row["ratio"])).collect();
        assert_eq!(
            ratios,
            [
                (&json!("take10-wall/redis"), &json!(1.0)),
                (&json!("take10-wall/own"), &json!(1.5)),
                (&json!("take10-cpu/redis"), &json!(1.0)),
                (&json!("take10-cpu/own"), &json!(1.5)),
            ]
        );
        assert_eq!(all["missing"], json!([{ "name": "nats", "why": "no wheel" }]));
    }
}
