//! What a suite's `--json` wrote, as far as two of them can be compared.

use crate::error::TaskError;
use serde_json::Value;
use std::path::Path;

/// One file of figures.
#[derive(Debug, PartialEq)]
pub(super) struct Results {
    pub(super) better: Better,
    rounds: f64,
    pub(super) rows: Vec<Row>,
}

/// Which of two ratios is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// A row: how its contender compares with the baseline of its group.
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

    /// Tells whether it is the baseline against itself.
    pub(super) fn is_again(&self) -> bool {
        self.name.ends_with(" again") || self.name.ends_with(" (again)")
    }
}

impl Results {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, TaskError> {
        let failure = |what: &dyn std::fmt::Display| TaskError::new(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failure(&error))?;
        Self::parse(&text).map_err(|what| failure(&what))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("this is no JSON: {error}"))?;
        let better = match value.get("better").map(Value::as_str) {
            // What `micro` writes is time, which nobody wants more of.
            None | Some(Some("lower")) => Better::Lower,
            Some(Some("higher")) => Better::Higher,
            Some(_) => return Err("`better` is neither \"higher\" nor \"lower\"".to_owned()),
        };
        let rounds = value["rounds"].as_f64().filter(|rounds| 1.0 <= *rounds);
        let rounds = rounds.ok_or("`rounds` is no number of rounds; did a suite's --json write this?")?;
        let rows = value["rows"].as_array().ok_or("there is no list of `rows`")?;
        let rows: Result<Vec<_>, _> = rows.iter().enumerate().map(|(at, row)| parse_row(at, row)).collect();
        Ok(Self { better, rounds, rows: rows? })
    }

    pub(super) fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Says how far a group's baseline is from itself, as a part of 1; `None` if it did not run twice.
    ///
    /// Either its median is that far from 1, or the standard error of that median, as the quartiles tell it, is larger.
    pub(super) fn noise(&self, group: &str) -> Option<f64> {
        let again = self.rows.iter().find(|row| row.group() == group && row.is_again())?;
        // For a normal distribution: 1.2533 σ / √n, and σ is the distance of the quartiles / 1.349.
        let error = 0.93 * (again.upper - again.lower).abs() / self.rounds.sqrt();
        Some(error.max((again.ratio - 1.0).abs()))
    }
}

fn parse_row(at: usize, row: &Value) -> Result<Row, String> {
    let name = row["name"].as_str().ok_or_else(|| format!("row {} has no `name`", at + 1))?;
    let number = |key: &str| {
        let number = row[key].as_f64().filter(|number| 0.0 < *number);
        number.ok_or_else(|| format!("`{key}` of row `{name}` is no number above 0"))
    };
    Ok(Row {
        name: name.to_owned(),
        ratio: number("ratio")?,
        lower: number("ratio_lower")?,
        upper: number("ratio_upper")?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn what_the_micro_suite_writes_is_read() {
        let text = r#"{ "rounds": 36, "batch_ms": 10, "rows": [
            { "name": "pick/8/fifo again", "ns_per_op": 2.0, "wall_ns_per_op": 2.1,
              "ratio": 1.0200, "ratio_lower": 0.9800, "ratio_upper": 1.0400, "more_ns": 0.1 } ] }"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.better, Better::Lower);
        let row = results.find("pick/8/fifo again").unwrap();
        assert_eq!((row.ratio, row.group(), row.is_again()), (1.02, "pick/8", true));
    }

    #[test]
    fn what_the_actor_suite_writes_is_read() {
        let text = r#"{ "suite": "actor", "better": "higher", "rounds": 7, "seed": 5, "settings": [], "missing": [],
            "rows": [{ "name": "tell1/tokio-mpsc (again)", "figure": "rate", "median": 13.0, "lower": 10.5,
            "upper": 15.5, "ratio": 1.5, "ratio_lower": 1.25, "ratio_upper": 1.75, "rounds": 7, "medians": {} }] }"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.better, Better::Higher);
        assert_eq!(results.noise("tell1"), Some(0.5));
        assert_eq!(results.noise("ask"), None);
    }

    #[test]
    fn noise_is_the_larger_of_the_medians_distance_and_its_error() {
        let spread = results(Better::Higher, 4.0, &[("a/b again", [0.8, 1.01, 1.2])]);
        assert!((spread.noise("a").unwrap() - 0.186).abs() < 1e-9, "{spread:?}");
        let off = results(Better::Higher, 4.0, &[("a/b again", [0.7, 0.7, 0.7])]);
        assert!((off.noise("a").unwrap() - 0.3).abs() < 1e-9, "{off:?}");
    }

    #[test]
    fn what_is_garbled_is_said() {
        for (text, said) in [
            ("", "this is no JSON: EOF while parsing a value at line 1 column 0"),
            ("[]", "`rounds` is no number of rounds; did a suite's --json write this?"),
            (r#"{"rounds": 0}"#, "`rounds` is no number of rounds; did a suite's --json write this?"),
            (r#"{"rounds": 7}"#, "there is no list of `rows`"),
            (r#"{"rounds": 7, "better": 1}"#, "`better` is neither \"higher\" nor \"lower\""),
            (r#"{"rounds": 7, "rows": [{}]}"#, "row 1 has no `name`"),
            (r#"{"rounds": 7, "rows": [{"name": "a/b"}]}"#, "`ratio` of row `a/b` is no number above 0"),
            (
                r#"{"rounds": 7, "rows": [{"name": "a/b", "ratio": -1}]}"#,
                "`ratio` of row `a/b` is no number above 0",
            ),
        ] {
            assert_eq!(Results::parse(text), Err(said.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let failure = Results::read(Path::new("no/such/file.json")).unwrap_err().to_string();
        assert!(failure.starts_with("no/such/file.json: "), "{failure}");
    }

    /// Results whose rows have lower quartile, median and upper quartile.
    pub(in super::super) fn results(better: Better, rounds: f64, rows: &[(&str, [f64; 3])]) -> Results {
        let row = |(name, [lower, ratio, upper]): &(&str, [f64; 3])| Row {
            name: (*name).to_owned(),
            ratio: *ratio,
            lower: *lower,
            upper: *upper,
        };
        Results { better, rounds, rows: rows.iter().map(row).collect() }
    }
}
