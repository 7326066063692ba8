//! Results as JSON, for `cargo xtask bench compare`.

use serde_json::{Map, Value, json};

use super::args::Options;
use super::score::{RowSamples, Score};

/// Writes one object per row with results under `rows`, named `workload/contender`, and the others under `missing`.
///
/// `ratio` compares with the first row of the same workload. The field `better` says that a higher ratio is better,
/// because in the files of other suites a lower one is.
pub(super) fn all(scores: &[Score], options: &Options) -> String {
    let mut rows = Vec::new();
    let mut missing = Vec::new();
    for score in scores {
        for row in &score.rows {
            let name = format!("{}/{}", score.workload.name(), row.entrant.label);
            match to_json(score, row, &name) {
                Some(value) => rows.push(value),
                None => missing.push(json!({ "name": name, "why": row.error() })),
            }
        }
    }
    let all = json!({
        "suite": "actor",
        "better": "higher",
        "rounds": options.rounds,
        "seed": options.seed,
        "settings": options.settings,
        "rows": rows,
        "missing": missing,
    });
    format!("{all:#}\n")
}

fn to_json(score: &Score, row: &RowSamples, name: &str) -> Option<Value> {
    let metric = score.workload.metric();
    let own = row.quartiles(metric.name)?;
    let ratio = score.ratio(row)?;
    let medians: Map<String, Value> = row
        .metrics()
        .filter_map(|name| Some((name.to_owned(), json!(row.quartiles(name)?.median))))
        .collect();
    Some(json!({
        "name": name,
        "figure": metric.name,
        "median": own.median,
        "lower": own.lower,
        "upper": own.upper,
        "ratio": ratio.median,
        "ratio_lower": ratio.lower,
        "ratio_upper": ratio.upper,
        "rounds": row.count(),
        "medians": medians,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::options;
    use super::super::child::ChildError;
    use super::super::score::tests::score;
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn rows_have_results_and_missing_rows_a_reason() {
        let mut score =
            score(Workload::Tell1, &[("tokio-mpsc", &[4.0, 6.0]), ("own", &[8.0, 18.0]), ("other", &[])]);
        score.rows[2].record(1, Err(ChildError::Failed("crashed".to_owned())));
        let all: Value =
            serde_json::from_str(&all(&[score], &options("--seed 5 --rounds 2 echo=on"))).unwrap();
        assert_eq!(all["better"], "higher");
        assert_eq!(
            (&all["rounds"], &all["seed"], &all["settings"]),
            (&json!(2), &json!(5), &json!(["echo=on"]))
        );
        assert_eq!(
            all["rows"][1],
            json!({
                "name": "tell1/own", "figure": "rate", "median": 13.0, "lower": 10.5, "upper": 15.5,
                "ratio": 2.5, "ratio_lower": 2.25, "ratio_upper": 2.75, "rounds": 2,
                "medians": { "rate": 13.0, "cpu_ns_per_op": 123.4 }
            })
        );
        assert_eq!(all["missing"], json!([{ "name": "tell1/other", "why": "crashed (1 of 1 rounds)" }]));
    }
}
