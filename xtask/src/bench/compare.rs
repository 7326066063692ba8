//! `cargo xtask bench compare`: fails if a row became worse by more than a threshold.
//!
//! Only ratios to the baseline of the same round are compared, never times: a file may come from a slower hour, or
//! from another machine. Where the baseline is further from itself than the threshold, nothing is blamed on the code.

use super::results::{Better, Results};
use crate::error::TaskError;
use std::fmt;
use std::path::PathBuf;

const THRESHOLD: f64 = 0.05;
const USAGE: &str = "cargo xtask bench compare BASE CURRENT [--threshold 0.05]";

/// Compares the two files that the arguments name.
pub(super) fn run(args: &[String]) -> Result<(), TaskError> {
    let args_given = parse(args)?;
    let base = Results::read(&args_given.base)?;
    let current = Results::read(&args_given.current)?;
    if base.better != current.better {
        return Err(TaskError::new("these are figures of two different suites"));
    }
    let changes = changes(&base, &current, args_given.threshold);
    if changes.is_empty() {
        return Err(TaskError::new("no row is in both files"));
    }
    print!("{}", table(&changes));
    for (these, others, file) in [(&base, &current, &args_given.current), (&current, &base, &args_given.base)]
    {
        let missing = these.rows.iter().filter(|row| others.find(&row.name).is_none());
        missing.for_each(|row| println!("{} is not in {}", row.name, file.display()));
    }
    judge(&changes, args_given.threshold)
}

#[derive(Debug, PartialEq)]
struct CompareArgs {
    base: PathBuf,
    current: PathBuf,
    threshold: f64,
}

fn parse(args: &[String]) -> Result<CompareArgs, TaskError> {
    let misuse = |what: String| TaskError::new(format!("{what}\nusage: {USAGE}"));
    let mut files = Vec::new();
    let mut threshold = THRESHOLD;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threshold" => {
                let given = args.next().map_or("", String::as_str);
                let part = given.parse().ok().filter(|part| (0.0..1.0).contains(part));
                threshold = part.ok_or_else(|| {
                    misuse(format!("--threshold takes a number from 0 to below 1, not `{given}`"))
                })?;
            }
            flag if flag.starts_with('-') => return Err(misuse(format!("no flag is called `{flag}`"))),
            file => files.push(PathBuf::from(file)),
        }
    }
    let count = files.len();
    let [base, current] = <[PathBuf; 2]>::try_from(files)
        .map_err(|_| misuse(format!("two files are compared, and {count} were named")))?;
    Ok(CompareArgs { base, current, threshold })
}

/// How a row that is in both files changed.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    base: f64,
    current: f64,
    /// By which part it became better; negative for worse.
    gain: f64,
    /// The larger noise of its group in the two files.
    noise: Option<f64>,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Neither much better nor much worse.
    Same,
    Better,
    Worse,
    /// It would be worse, but so would the baseline be against itself.
    Noise,
    /// It is the baseline against itself, which says how much noise there is and nothing else.
    Again,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "noise",
            Self::Again => "A/A",
        })
    }
}

fn changes(base: &Results, current: &Results, threshold: f64) -> Vec<Change> {
    let pairs = base.rows.iter().filter_map(|row| Some((row, current.find(&row.name)?)));
    let change = |(was, is): (&super::results::Row, &super::results::Row)| {
        let gain = match base.better {
            Better::Higher => is.ratio / was.ratio - 1.0,
            Better::Lower => 1.0 - is.ratio / was.ratio,
        };
        let noises = [base.noise(was.group()), current.noise(was.group())];
        let noise = noises.into_iter().flatten().reduce(f64::max);
        let verdict = if was.is_again() { Verdict::Again } else { decide(gain, noise, threshold) };
        Change { name: was.name.clone(), base: was.ratio, current: is.ratio, gain, noise, verdict }
    };
    pairs.map(change).collect()
}

/// Decides whether a change is one of the code; without a baseline that ran twice, nothing excuses it.
fn decide(gain: f64, noise: Option<f64>, threshold: f64) -> Verdict {
    let noisy = noise.is_some_and(|noise| threshold < noise);
    match gain {
        gain if gain < -threshold && noisy => Verdict::Noise,
        gain if gain < -threshold => Verdict::Worse,
        gain if threshold < gain => Verdict::Better,
        _ => Verdict::Same,
    }
}

fn judge(changes: &[Change], threshold: f64) -> Result<(), TaskError> {
    let worse: Vec<_> = changes
        .iter()
        .filter(|change| change.verdict == Verdict::Worse)
        .map(|change| format!("{} ({:+.1} %)", change.name, change.gain * 100.0))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    Err(TaskError::new(format!("worse by more than {} %: {}", threshold * 100.0, worse.join(", "))))
}

fn table(changes: &[Change]) -> String {
    let width = changes.iter().map(|change| change.name.chars().count()).max().unwrap_or(0).max(3);
    let mut text = format!(
        "| {:width$} | {:>8} | {:>8} | {:>8} | {:>7} | verdict |\n",
        "row", "base", "current", "change", "noise"
    );
    text += &format!("| {} | -------: | -------: | -------: | ------: | ------- |\n", "-".repeat(width));
    for Change { name, base, current, gain, noise, verdict } in changes {
        let noise = noise.map_or(String::new(), |noise| format!("{:.1} %", noise * 100.0));
        let gain = format!("{:+.1} %", gain * 100.0);
        let verdict = verdict.to_string();
        text += &format!(
            "| {name:width$} | {base:8.3} | {current:8.3} | {gain:>8} | {noise:>7} | {verdict:7} |\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn a_change_at_the_threshold_passes_and_past_it_fails() {
        assert_eq!(verdicts(Better::Higher, 2.0, 1.5, 0.25), [Verdict::Same]);
        assert_eq!(verdicts(Better::Higher, 2.0, 1.49, 0.25), [Verdict::Worse]);
        assert_eq!(verdicts(Better::Higher, 2.0, 2.51, 0.25), [Verdict::Better]);
    }

    #[test]
    fn where_lower_is_better_a_higher_ratio_is_worse() {
        assert_eq!(verdicts(Better::Lower, 2.0, 2.51, 0.25), [Verdict::Worse]);
        assert_eq!(verdicts(Better::Lower, 2.0, 2.5, 0.25), [Verdict::Same]);
        assert_eq!(verdicts(Better::Lower, 2.0, 1.4, 0.25), [Verdict::Better]);
    }

    #[test]
    fn noise_in_either_file_excuses_its_own_group_only() {
        let quiet = [("tell1/tokio (again)", [1.0; 3]), ("tell1/own", [2.0; 3]), ("ask/own", [2.0; 3])];
        let noisy = [("tell1/tokio (again)", [1.1; 3]), ("tell1/own", [1.0; 3]), ("ask/own", [1.0; 3])];
        let of = |rows| results(Better::Higher, 7.0, rows);
        for (base, current, expected) in [
            (of(&quiet), of(&noisy), [Verdict::Again, Verdict::Noise, Verdict::Worse]),
            (of(&noisy), of(&quiet), [Verdict::Again, Verdict::Better, Verdict::Better]),
        ] {
            let changes = changes(&base, &current, 0.05);
            assert_eq!(changes.iter().map(|change| change.verdict).collect::<Vec<_>>(), expected);
        }
        let base_noisy = [("tell1/tokio (again)", [1.1; 3]), ("tell1/own", [2.0; 3])];
        let current_quiet = [("tell1/tokio (again)", [1.0; 3]), ("tell1/own", [1.0; 3])];
        let changes = changes(&of(&base_noisy), &of(&current_quiet), 0.05);
        assert_eq!(changes[1].verdict, Verdict::Noise);
    }

    #[test]
    fn the_failure_names_every_row_that_became_worse() {
        let base = results(Better::Higher, 7.0, &[("a/x", [2.0; 3]), ("a/y", [2.0; 3]), ("b/x", [2.0; 3])]);
        let current =
            results(Better::Higher, 7.0, &[("a/x", [1.0; 3]), ("a/y", [2.0; 3]), ("b/x", [1.8; 3])]);
        assert_eq!(
            judge(&changes(&base, &current, 0.05), 0.05),
            Err(TaskError::new("worse by more than 5 %: a/x (-50.0 %), b/x (-10.0 %)"))
        );
        assert_eq!(judge(&changes(&base, &current, 0.6), 0.6), Ok(()));
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
| row         |     base |  current |   change |   noise | verdict |
| ----------- | -------: | -------: | -------: | ------: | ------- |
| a/x (again) |    1.000 |    1.010 |   +1.0 % |   1.0 % | A/A     |
| a/y         |    2.000 |    1.500 |  -25.0 % |   1.0 % | worse   |
"
        );
    }

    #[test]
    fn the_threshold_comes_anywhere() {
        let expected = CompareArgs { base: "a".into(), current: "b".into(), threshold: 0.1 };
        assert_eq!(read("a b --threshold 0.1"), Ok(expected));
        assert_eq!(read("--threshold 0.1 a b"), read("a --threshold 0.1 b"));
        assert_eq!(read("a b").map(|args_given| args_given.threshold), Ok(THRESHOLD));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("", "two files are compared, and 0 were named"),
            ("a b c", "two files are compared, and 3 were named"),
            ("a b --fast", "no flag is called `--fast`"),
            ("a b --threshold", "--threshold takes a number from 0 to below 1, not ``"),
            ("a b --threshold 1", "--threshold takes a number from 0 to below 1, not `1`"),
            ("a b --threshold NaN", "--threshold takes a number from 0 to below 1, not `NaN`"),
        ] {
            let said = format!("{said}\nusage: cargo xtask bench compare BASE CURRENT [--threshold 0.05]");
            assert_eq!(read(line).map_err(|failure| failure.to_string()), Err(said), "{line}");
        }
    }

    fn read(line: &str) -> Result<CompareArgs, TaskError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn verdicts(better: Better, base: f64, current: f64, threshold: f64) -> Vec<Verdict> {
        let of = |ratio| results(better, 7.0, &[("tell1/own", [ratio; 3])]);
        changes(&of(base), &of(current), threshold).iter().map(|change| change.verdict).collect()
    }
}
