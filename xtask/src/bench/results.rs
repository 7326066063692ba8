//! Parses the parts of a suite's `--json` output that are needed to compare two results.

use crate::error::TaskError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

/// The contents of one file.
#[derive(Debug, PartialEq)]
pub(super) struct Results {
    pub(super) better: Better,
    rounds: f64,
    /// The tools on which exact counts depend, with their versions; empty for other suites.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) rows: Vec<Row>,
}

/// The direction in which a row improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// A contender's ratio to the baseline of its group, with its quartiles; or an exact count, which is compared the same
/// way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// `group/contender`.
    pub(super) name: String,
    pub(super) ratio: f64,
    lower: f64,
    upper: f64,
}

impl Row {
    pub(super) fn group(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// Reports whether the row is the second run of the baseline.
    pub(super) fn is_repeated_baseline(&self) -> bool {
        self.name.ends_with(" again") || self.name.ends_with(" (again)")
    }
}

impl Results {
    pub(super) fn read(path: &Path) -> Result<Self, TaskError> {
        let task_error = |error: &dyn Display| TaskError::new(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| task_error(&error))?;
        Self::parse(&text).map_err(|message| task_error(&message))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
        let better = match value.get("better").map(Value::as_str) {
            // `micro` writes times, so lower is better, but its output has no field for that.
            None | Some(Some("lower")) => Better::Lower,
            Some(Some("higher")) => Better::Higher,
            Some(_) => return Err("`better` must be \"higher\" or \"lower\"".to_owned()),
        };
        let rounds = value["rounds"].as_f64().filter(|rounds| 1.0 <= *rounds);
        let rounds =
            rounds.ok_or("`rounds` must be a number of at least 1; is this the --json output of a suite?")?;
        let rows = value["rows"].as_array().ok_or("the list `rows` is missing")?;
        let rows: Result<Vec<_>, _> =
            rows.iter().enumerate().map(|(index, row)| parse_row(index, row)).collect();
        Ok(Self { better, rounds, environment: parse_environment(&value["environment"]), rows: rows? })
    }

    pub(super) fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns the names of the rows that other results lack.
    pub(super) fn missing_in<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = &'a str> {
        let names = self.rows.iter().map(|row| row.name.as_str());
        names.filter(|name| others.find(name).is_none())
    }

    /// Returns the names of the rows that other results lack, but for parts of a row that these have.
    ///
    /// A part that became too small to be listed, such as `memory/idle/cell`, still counts in its whole, `memory/idle`.
    pub(super) fn lost_in<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = &'a str> {
        let has_whole =
            |name: &str| name.rsplit_once('/').is_some_and(|(whole, _)| others.find(whole).is_some());
        self.missing_in(others).filter(move |name| !has_whole(name))
    }

    /// Returns the relative difference between two runs of a group's baseline; `None` if it did not run twice.
    ///
    /// It is the larger of two values: the distance of the median ratio from 1, and the standard error of that median.
    pub(super) fn noise(&self, group: &str) -> Option<f64> {
        let repeated = self.rows.iter().find(|row| row.group() == group && row.is_repeated_baseline())?;
        // For a normal distribution: 1.2533 σ / √n, where σ is the interquartile range / 1.349.
        let error = 0.93 * (repeated.upper - repeated.lower).abs() / self.rounds.sqrt();
        Some(error.max((repeated.ratio - 1.0).abs()))
    }
}

fn parse_row(index: usize, row: &Value) -> Result<Row, String> {
    let name = row["name"].as_str().ok_or_else(|| format!("row {} has no `name`", index + 1))?;
    let number = |key: &str| {
        let number = row[key].as_f64().filter(|number| 0.0 < *number);
        number.ok_or_else(|| format!("`{key}` of row `{name}` must be a number above 0"))
    };
    let [ratio, lower, upper] = match row.get("count") {
        Some(_) => [number("count")?; 3],
        None => [number("ratio")?, number("ratio_lower")?, number("ratio_upper")?],
    };
    Ok(Row { name: name.to_owned(), ratio, lower, upper })
}

fn parse_environment(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(tool, version)| Some((tool.clone(), version.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_micro_suite_is_read() {
        let text = r#"{ "rounds": 36, "batch_ms": 10, "rows": [
            { "name": "pick/8/fifo again", "ns_per_op": 2.0, "wall_ns_per_op": 2.1,
              "ratio": 1.0200, "ratio_lower": 0.9800, "ratio_upper": 1.0400, "more_ns": 0.1 } ] }"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.better, Better::Lower);
        let row = results.find("pick/8/fifo again").unwrap();
        assert_eq!((row.ratio, row.group(), row.is_repeated_baseline()), (1.02, "pick/8", true));
    }

    #[test]
    fn the_output_of_the_actor_suite_is_read() {
        let text = r#"{ "suite": "actor", "better": "higher", "rounds": 7, "seed": 5, "settings": [], "missing": [],
            "rows": [{ "name": "tell1/tokio-mpsc (again)", "figure": "rate", "median": 13.0, "lower": 10.5,
            "upper": 15.5, "ratio": 1.5, "ratio_lower": 1.25, "ratio_upper": 1.75, "rounds": 7, "medians": {} }] }"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.better, Better::Higher);
        assert_eq!(results.noise("tell1"), Some(0.5));
        assert_eq!(results.noise("ask"), None);
    }

    #[test]
    fn exact_counts_are_read_with_their_environment() {
        let text = r#"{ "better": "lower", "rounds": 1, "environment": { "rustc": "1.95.0" },
            "rows": [{ "name": "instructions/tell", "count": 121.5 }] }"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(
            results.find("instructions/tell").map(|row| [row.lower, row.ratio, row.upper]),
            Some([121.5; 3])
        );
        assert_eq!(results.environment, BTreeMap::from([("rustc".to_owned(), "1.95.0".to_owned())]));
    }

    #[test]
    fn noise_is_the_larger_of_the_medians_distance_from_1_and_its_standard_error() {
        let spread = results(Better::Higher, 4.0, &[("a/b again", [0.8, 1.01, 1.2])]);
        assert!((spread.noise("a").unwrap() - 0.186).abs() < 1e-9, "{spread:?}");
        let off = results(Better::Higher, 4.0, &[("a/b again", [0.7, 0.7, 0.7])]);
        assert!((off.noise("a").unwrap() - 0.3).abs() < 1e-9, "{off:?}");
    }

    #[test]
    fn an_invalid_file_is_rejected_with_a_reason() {
        for (text, message) in [
            ("", "invalid JSON: EOF while parsing a value at line 1 column 0"),
            ("[]", "`rounds` must be a number of at least 1; is this the --json output of a suite?"),
            (
                r#"{"rounds": 0}"#,
                "`rounds` must be a number of at least 1; is this the --json output of a suite?",
            ),
            (r#"{"rounds": 7}"#, "the list `rows` is missing"),
            (r#"{"rounds": 7, "better": 1}"#, "`better` must be \"higher\" or \"lower\""),
            (r#"{"rounds": 7, "rows": [{}]}"#, "row 1 has no `name`"),
            (
                r#"{"rounds": 7, "rows": [{"name": "a/b", "count": 0}]}"#,
                "`count` of row `a/b` must be a number above 0",
            ),
            (r#"{"rounds": 7, "rows": [{"name": "a/b"}]}"#, "`ratio` of row `a/b` must be a number above 0"),
            (
                r#"{"rounds": 7, "rows": [{"name": "a/b", "ratio": -1}]}"#,
                "`ratio` of row `a/b` must be a number above 0",
            ),
        ] {
            assert_eq!(Results::parse(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_error_for_a_missing_file_contains_its_path() {
        let error = Results::read(Path::new("no/such/file.json")).unwrap_err().to_string();
        assert!(error.starts_with("no/such/file.json: "), "{error}");
    }

    /// Creates results whose rows have a lower quartile, a median and an upper quartile.
    pub(in super::super) fn results(better: Better, rounds: f64, rows: &[(&str, [f64; 3])]) -> Results {
        let row = |(name, [lower, ratio, upper]): &(&str, [f64; 3])| Row {
            name: (*name).to_owned(),
            ratio: *ratio,
            lower: *lower,
            upper: *upper,
        };
        Results { better, rounds, environment: BTreeMap::new(), rows: rows.iter().map(row).collect() }
    }
}
