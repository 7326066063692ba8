//! `cargo xtask bench compare`: fails if a row became worse by more than a threshold and its noise, or is no longer measured.
//!
//! It compares ratios to the baseline of the same round, or exact counts of instructions and bytes, never times, so the
//! two files may come from different hours or machines. A change of up to twice the difference between two runs of the
//! baseline, or the standard error, counts as noise. Counts depend on the toolchain, so a difference of toolchains is reported.

use super::results::{Better, Results, Row};
use crate::error::TaskError;
use std::fmt;
use std::path::PathBuf;

/// Compare two result files, row by row, and fail if a row became worse or disappeared
#[derive(Debug, PartialEq, clap::Args)]
#[command(after_help = "\
Example:
  cargo xtask bench compare target/base.json target/current.json --threshold 0.05")]
pub(crate) struct CompareArgs {
    /// File that a suite's `--json` wrote before the change
    base: PathBuf,
    /// File that the same suite's `--json` wrote after the change
    current: PathBuf,
    /// Maximum loss that passes, as a fraction
    #[arg(long, value_name = "FRACTION", default_value = "0.05", value_parser = parse_threshold)]
    threshold: f64,
}

/// A change of up to this multiple of the noise may be noise: each of the two files may be off by it, in opposite directions.
const NOISE_FACTOR: f64 = 2.0;

fn parse_threshold(text: &str) -> Result<f64, String> {
    let threshold = text.parse().ok().filter(|threshold| (0.0..1.0).contains(threshold));
    threshold.ok_or_else(|| "must be at least 0 and below 1".to_owned())
}

pub(super) fn run(args: &CompareArgs) -> Result<(), TaskError> {
    let base = Results::read(&args.base)?;
    let current = Results::read(&args.current)?;
    compare(&base, &current, args.threshold)
}

/// Prints how each row changed; fails if a row became worse or is no longer measured.
pub(super) fn compare(base: &Results, current: &Results, threshold: f64) -> Result<(), TaskError> {
    let changes = print_changes(base, current, threshold)?;
    check(&changes, threshold)?;
    let lost: Vec<_> = base.lost_in(current).collect();
    if lost.is_empty() {
        return Ok(());
    }
    Err(TaskError::new(format!("no longer measured: {}", lost.join(", "))))
}

/// Prints how each row changed, and what makes the two results hard to compare.
pub(super) fn print_changes(
    base: &Results,
    current: &Results,
    threshold: f64,
) -> Result<Vec<Change>, TaskError> {
    if base.better != current.better {
        return Err(TaskError::new("the two files are results of different suites"));
    }
    let changes = changes(base, current, threshold);
    if changes.is_empty() {
        return Err(TaskError::new("the two files have no row in common"));
    }
    print!("{}", table(&changes));
    base.missing_in(current).for_each(|name| println!("{name} is only in the base"));
    current.missing_in(base).for_each(|name| println!("{name} is only in the current result"));
    differences(base, current).iter().for_each(|difference| println!("{difference}"));
    Ok(changes)
}

/// Describes the parts of the environment that differ.
fn differences(base: &Results, current: &Results) -> Vec<String> {
    let describe = |(tool, before): (&String, &String)| {
        let after = current.environment.get(tool)?;
        let differs = before != after;
        differs.then(|| format!("{tool} differs, so counts may differ: {before} before, {after} now"))
    };
    base.environment.iter().filter_map(describe).collect()
}

/// The change of a row that is in both files.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    name: String,
    base: f64,
    current: f64,
    /// The relative improvement; negative if the row became worse.
    gain: f64,
    /// The noise of the row's group, the larger of the two files.
    noise: Option<f64>,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The change is within the threshold.
    Same,
    Better,
    Worse,
    /// Changed by more than the threshold, but by at most [`NOISE_FACTOR`] times the noise.
    Noise,
    /// The second run of the baseline, which measures noise.
    RepeatedBaseline,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "noise",
            Self::RepeatedBaseline => "A/A",
        })
    }
}

fn changes(base: &Results, current: &Results, threshold: f64) -> Vec<Change> {
    let pairs = base.rows.iter().filter_map(|row| Some((row, current.find(&row.name)?)));
    let change = |(before, after): (&Row, &Row)| {
        let gain = match base.better {
            Better::Higher => after.ratio / before.ratio - 1.0,
            Better::Lower => 1.0 - after.ratio / before.ratio,
        };
        let noises = [base.noise(before.group()), current.noise(before.group())];
        let noise = noises.into_iter().flatten().reduce(f64::max);
        let verdict = if before.is_repeated_baseline() {
            Verdict::RepeatedBaseline
        } else {
            decide(gain, noise, threshold)
        };
        Change { name: before.name.clone(), base: before.ratio, current: after.ratio, gain, noise, verdict }
    };
    pairs.map(change).collect()
}

/// Classifies a change; if the baseline ran only once, no change counts as noise.
fn decide(gain: f64, noise: Option<f64>, threshold: f64) -> Verdict {
    if gain.abs() <= threshold {
        return Verdict::Same;
    }
    match noise {
        Some(noise) if gain.abs() <= NOISE_FACTOR * noise => Verdict::Noise,
        _ if gain < 0.0 => Verdict::Worse,
        _ => Verdict::Better,
    }
}

/// Fails if a row became worse.
pub(super) fn check(changes: &[Change], threshold: f64) -> Result<(), TaskError> {
    let worse: Vec<_> = changes
        .iter()
        .filter(|change| change.verdict == Verdict::Worse)
        .map(|change| format!("{} ({:+.1} %)", change.name, change.gain * 100.0))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    let percent = (threshold * 1_000.0).round() / 10.0;
    Err(TaskError::new(format!("worse by more than {percent} %: {}", worse.join(", "))))
}

/// Counts the rows by verdict.
pub(super) fn summary(changes: &[Change]) -> String {
    let count = |verdict| changes.iter().filter(|change| change.verdict == verdict).count();
    format!(
        "{} rows better, {} worse, {} the same",
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::Same)
    )
}

fn table(changes: &[Change]) -> String {
    let width = changes.iter().map(|change| change.name.chars().count()).max().unwrap_or(0).max(3);
    let largest = changes.iter().flat_map(|change| [change.base, change.current]).fold(0.0, f64::max);
    let number = format!("{largest:.3}").len().max(8);
    let mut text = format!(
        "| {:width$} | {:>number$} | {:>number$} | {:>8} | {:>7} | verdict |\n",
        "row", "base", "current", "gain", "noise"
    );
    let rule = "-".repeat(number - 1);
    text += &format!("| {} | {rule}: | {rule}: | -------: | ------: | ------- |\n", "-".repeat(width));
    for Change { name, base, current, gain, noise, verdict } in changes {
        let noise = noise.map_or(String::new(), |noise| format!("{:.1} %", noise * 100.0));
        let gain = format!("{:+.1} %", gain * 100.0);
        let verdict = verdict.to_string();
        text += &format!(
            "| {name:width$} | {base:number$.3} | {current:number$.3} | {gain:>8} | {noise:>7} | {verdict:7} |\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    #[test]
    fn a_change_at_the_threshold_passes_and_past_it_fails() {
        assert_eq!(verdicts(Better::Higher, 2.0, 1.5, 0.25), [Verdict::Same]);
        assert_eq!(verdicts(Better::Higher, 2.0, 1.49, 0.25), [Verdict::Worse]);
        assert_eq!(verdicts(Better::Higher, 2.0, 2.51, 0.25), [Verdict::Better]);
    }

    #[test]
    fn a_higher_ratio_is_worse_where_lower_is_better() {
        assert_eq!(verdicts(Better::Lower, 2.0, 2.51, 0.25), [Verdict::Worse]);
        assert_eq!(verdicts(Better::Lower, 2.0, 2.5, 0.25), [Verdict::Same]);
        assert_eq!(verdicts(Better::Lower, 2.0, 1.4, 0.25), [Verdict::Better]);
    }

    #[test]
    fn a_change_counts_as_noise_up_to_twice_the_noise_of_its_group_in_either_file() {
        let rows = |again: f64, own: f64| {
            let rows = [("tell1/tokio (again)", [again; 3]), ("tell1/own", [own; 3]), ("ask/own", [own; 3])];
            results(Better::Higher, 7.0, &rows)
        };
        for (own, in_tell1, in_ask) in [
            (1.61, Verdict::Noise, Verdict::Worse),
            (1.59, Verdict::Worse, Verdict::Worse),
            (1.0, Verdict::Worse, Verdict::Worse),
            (1.91, Verdict::Same, Verdict::Same),
            (2.39, Verdict::Noise, Verdict::Better),
            (2.41, Verdict::Better, Verdict::Better),
        ] {
            for (base, current) in [(1.0, 1.1), (1.1, 1.0)] {
                let changes = changes(&rows(base, 2.0), &rows(current, own), 0.05);
                assert_eq!(
                    changes.iter().map(|change| change.verdict).collect::<Vec<_>>(),
                    [Verdict::RepeatedBaseline, in_tell1, in_ask],
                    "{own}"
                );
            }
        }
    }

    #[test]
    fn noise_below_the_threshold_excuses_no_loss_above_it() {
        let rows = |own: f64| {
            let rows = [("tell1/tokio (again)", [1.01; 3]), ("tell1/own", [own; 3])];
            results(Better::Higher, 7.0, &rows)
        };
        let changes = changes(&rows(2.0), &rows(1.89), 0.05);
        assert_eq!(changes[1].verdict, Verdict::Worse);
    }

    #[test]
    fn a_row_that_disappears_fails_unless_it_is_a_part_of_one_that_remains() {
        let with = |rows: &[&str]| {
            let rows: Vec<_> = rows.iter().map(|name| (*name, [2.0; 3])).collect();
            results(Better::Lower, 1.0, &rows)
        };
        let base = with(&["memory/idle", "memory/idle/cell", "tell1/own"]);
        let result = |rows: &[&str]| compare(&base, &with(rows), 0.05).map_err(|error| error.to_string());
        assert_eq!(result(&["memory/idle", "memory/idle/cell", "tell1/own", "tell1/new"]), Ok(()));
        assert_eq!(result(&["memory/idle", "tell1/own"]), Ok(()));
        assert_eq!(
            result(&["memory/idle", "memory/idle/cell"]),
            Err("no longer measured: tell1/own".to_owned())
        );
        assert_eq!(
            result(&["tell1/own"]),
            Err("no longer measured: memory/idle, memory/idle/cell".to_owned())
        );
    }

    #[test]
    fn a_count_that_grows_by_4_percent_passes_and_by_6_percent_fails() {
        let result = |count: f64| {
            let base = results(Better::Lower, 1.0, &[("instructions/tell", [1_000.0; 3])]);
            let current = results(Better::Lower, 1.0, &[("instructions/tell", [count; 3])]);
            check(&changes(&base, &current, 0.05), 0.05)
        };
        assert_eq!(result(1_040.0), Ok(()));
        let message = "worse by more than 5 %: instructions/tell (-6.0 %)";
        assert_eq!(result(1_060.0), Err(TaskError::new(message)));
    }

    #[test]
    fn a_different_toolchain_is_reported() {
        let with = |rustc: &str| {
            let mut results = results(Better::Lower, 1.0, &[]);
            results.environment.insert("rustc".to_owned(), rustc.to_owned());
            results
        };
        assert_eq!(differences(&with("1.95.0"), &with("1.95.0")), [""; 0]);
        assert_eq!(
            differences(&with("1.95.0"), &with("1.96.0")),
            ["rustc differs, so counts may differ: 1.95.0 before, 1.96.0 now"]
        );
    }

    #[test]
    fn the_error_lists_every_row_that_became_worse() {
        let base = results(Better::Higher, 7.0, &[("a/x", [2.0; 3]), ("a/y", [2.0; 3]), ("b/x", [2.0; 3])]);
        let current =
            results(Better::Higher, 7.0, &[("a/x", [1.0; 3]), ("a/y", [2.0; 3]), ("b/x", [1.8; 3])]);
        assert_eq!(
            check(&changes(&base, &current, 0.05), 0.05),
            Err(TaskError::new("worse by more than 5 %: a/x (-50.0 %), b/x (-10.0 %)"))
        );
        assert_eq!(check(&changes(&base, &current, 0.6), 0.6), Ok(()));
    }

    #[test]
    fn only_rows_of_both_files_are_compared() {
        let base = results(Better::Higher, 7.0, &[("a/x", [2.0; 3]), ("a/y", [2.0; 3])]);
        let current = results(Better::Higher, 7.0, &[("a/z", [2.0; 3]), ("a/y", [2.0; 3])]);
        let changes = changes(&base, &current, 0.05);
        assert_eq!(changes.iter().map(|change| change.name.as_str()).collect::<Vec<_>>(), ["a/y"]);
    }

    #[test]
    fn the_table_is_aligned() {
        let base = results(Better::Higher, 7.0, &[("a/x (again)", [1.0; 3]), ("a/y", [2.0; 3])]);
        let current = results(Better::Higher, 7.0, &[("a/x (again)", [1.01; 3]), ("a/y", [1.5; 3])]);
        assert_eq!(
            table(&changes(&base, &current, 0.05)),
            "\
| row         |     base |  current |     gain |   noise | verdict |
| ----------- | -------: | -------: | -------: | ------: | ------- |
| a/x (again) |    1.000 |    1.010 |   +1.0 % |   1.0 % | A/A     |
| a/y         |    2.000 |    1.500 |  -25.0 % |   1.0 % | worse   |
"
        );
        let counts = |count: f64| results(Better::Lower, 1.0, &[("memory/worker", [count; 3])]);
        assert_eq!(
            table(&changes(&counts(121_300.0), &counts(9.0), 0.05)),
            "\
| row           |       base |    current |     gain |   noise | verdict |
| ------------- | ---------: | ---------: | -------: | ------: | ------- |
| memory/worker | 121300.000 |      9.000 | +100.0 % |         | better  |
"
        );
    }

    #[test]
    fn the_threshold_may_be_at_any_position() {
        let expected = CompareArgs { base: "a".into(), current: "b".into(), threshold: 0.1 };
        assert_eq!(parse("a b --threshold 0.1"), Ok(expected));
        assert_eq!(parse("--threshold 0.1 a b"), parse("a --threshold 0.1 b"));
        assert_eq!(parse("a b").map(|args| args.threshold), Ok(0.05));
    }

    #[test]
    fn an_invalid_command_line_is_rejected_with_a_reason() {
        for (line, message) in [
            ("", "required arguments were not provided"),
            ("a", "required arguments were not provided"),
            ("a b c", "unexpected argument 'c'"),
            ("a b --fast", "unexpected argument '--fast'"),
            ("a b --threshold", "a value is required for '--threshold <FRACTION>'"),
            (
                "a b --threshold 1",
                "invalid value '1' for '--threshold <FRACTION>': must be at least 0 and below 1",
            ),
            (
                "a b --threshold NaN",
                "invalid value 'NaN' for '--threshold <FRACTION>': must be at least 0 and below 1",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
    }

    fn parse(line: &str) -> Result<CompareArgs, String> {
        let command = CompareArgs::augment_args(Command::new("compare"));
        let matches = command.try_get_matches_from(["compare"].into_iter().chain(line.split_whitespace()));
        let args = matches.and_then(|matches| CompareArgs::from_arg_matches(&matches));
        args.map_err(|error| error.to_string())
    }

    fn verdicts(better: Better, base: f64, current: f64, threshold: f64) -> Vec<Verdict> {
        let with_ratio = |ratio| results(better, 7.0, &[("tell1/own", [ratio; 3])]);
        changes(&with_ratio(base), &with_ratio(current), threshold)
            .iter()
            .map(|change| change.verdict)
            .collect()
    }
}
