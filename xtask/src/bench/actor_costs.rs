//! `cargo xtask bench actor-costs`: instructions per message and bytes per actor, compared with a stored baseline.
//!
//! The program `actor-costs` of `evenkeel-bench` has a case for each use of the runtime. A case runs under valgrind
//! twice, with a count and with twice the count; the difference per unit is the cost, without that of the start. The
//! counts do not depend on the speed and load of the machine. They depend on the toolchain and slightly on the C
//! library, so the baseline names both.

mod callgrind;
mod massif;
mod report;

use super::compare;
use super::results::Results;
use crate::error::TaskError;
use crate::process::{Cmd, RunOutcome};
use crate::tools::{self, Tool};
use massif::Component;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Count instructions per message and bytes per actor, and compare them with the stored baseline
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench actor-costs           fail if a count is more than 5 % above the baseline
  cargo xtask bench actor-costs --renew   store the counts as the new baseline

The baseline is bench/baselines/actor.json.")]
pub(crate) struct ActorCostsArgs {
    /// Store the counts as the new baseline, and print what changed
    #[arg(long)]
    renew: bool,
}

const BASELINE: &str = "bench/baselines/actor.json";
const CURRENT: &str = "target/actor-costs.json";
const THRESHOLD: f64 = 0.05;
const RENEW: &str = "cargo xtask bench actor-costs --renew";

const VALGRIND: Tool = Tool::DebianPackage { program: "valgrind", package: "valgrind" };
const PROGRAM: &str = "target/release/actor-costs";
/// The files that valgrind writes.
const OUTPUT_DIR: &str = "target/actor-costs";
/// A run takes a second or two.
const RUN_MAX: Duration = Duration::from_secs(120);

/// One use of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CostCase {
    kind: CostKind,
    name: String,
    /// The smaller of the two counts.
    count: u32,
    about: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CostKind {
    Instructions,
    Memory,
}

impl CostKind {
    fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Memory => "memory",
        }
    }
}

/// The cost of one unit of a case: a message, or an actor.
#[derive(Debug, PartialEq)]
struct Cost {
    case: CostCase,
    total: f64,
    /// The parts of a memory case, the largest first.
    parts: Vec<(Component, f64)>,
}

pub(crate) fn run(args: &ActorCostsArgs) -> Result<(), TaskError> {
    tools::ensure(&[VALGRIND])?;
    let build = "build --release --locked --package evenkeel-bench --bin actor-costs --target-dir target";
    Cmd::cargo(build).run()?;
    fs::create_dir_all(OUTPUT_DIR)
        .map_err(|error| TaskError::new(format!("cannot create {OUTPUT_DIR}: {error}")))?;
    let cases = parse_list(&Cmd::new(PROGRAM, "--list").output()?)?;
    let costs: Vec<Cost> = cases.into_iter().map(measure).collect::<Result<_, _>>()?;
    print!("\n{}", report::tables(&costs));
    write(CURRENT, &report::json(&costs, &environment()?))?;
    if args.renew { renew() } else { compare_with_baseline() }
}

/// Parses the list of the program's cases: kind, name, count and description, separated by tabs.
fn parse_list(text: &str) -> Result<Vec<CostCase>, TaskError> {
    let case = |line: &str| {
        let mut fields = line.split('\t');
        let kind = match fields.next()? {
            "instructions" => CostKind::Instructions,
            "memory" => CostKind::Memory,
            _ => return None,
        };
        let name = fields.next()?.to_owned();
        let count = fields.next()?.parse().ok()?;
        Some(CostCase { kind, name, count, about: fields.next()?.to_owned() })
    };
    let parse =
        |line| case(line).ok_or_else(|| TaskError::new(format!("{PROGRAM} --list: unexpected `{line}`")));
    text.lines().map(parse).collect()
}

fn measure(case: CostCase) -> Result<Cost, TaskError> {
    let per_unit = |once: u64, twice: u64| (twice as f64 - once as f64) / f64::from(case.count);
    match case.kind {
        CostKind::Instructions => {
            let once = callgrind::parse(&run_under_callgrind(&case, 1)?)?;
            let twice = callgrind::parse(&run_under_callgrind(&case, 2)?)?;
            Ok(Cost { total: per_unit(once, twice), case, parts: Vec::new() })
        }
        CostKind::Memory => {
            let once = massif::parse(&run_under_massif(&case, 1)?)?;
            let twice = massif::parse(&run_under_massif(&case, 2)?)?;
            let bytes = |heap: &massif::Heap, part| heap.get(&part).copied().unwrap_or(0);
            let cost = |part| (part, per_unit(bytes(&once, part), bytes(&twice, part)));
            let mut parts: Vec<_> = Component::ALL.into_iter().map(cost).collect();
            let total = parts.iter().map(|(_, cost)| cost).sum();
            // Less than a byte per actor is a part of something that does not grow with the number of actors.
            parts.retain(|(_, cost)| 1.0 <= *cost);
            parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
            Ok(Cost { case, total, parts })
        }
    }
}

/// Runs a case with a multiple of its count and returns callgrind's output.
fn run_under_callgrind(case: &CostCase, times: u32) -> Result<String, TaskError> {
    run_under_valgrind("callgrind", |file| vec![format!("--callgrind-out-file={file}")], case, times)
}

/// Runs a case with a multiple of its count and returns massif's output.
fn run_under_massif(case: &CostCase, times: u32) -> Result<String, TaskError> {
    let options = |file: &str| {
        let mut options = vec![format!("--massif-out-file={file}")];
        // Exactly the peak, with every allocation and full paths; detailed snapshots before it would only take time.
        let exact = "--peak-inaccuracy=0 --threshold=0 --fullpath-after= --detailed-freq=1000";
        options.extend(exact.split_whitespace().map(str::to_owned));
        options
    };
    run_under_valgrind("massif", options, case, times)
}

fn run_under_valgrind(
    tool: &str,
    options: impl Fn(&str) -> Vec<String>,
    case: &CostCase,
    times: u32,
) -> Result<String, TaskError> {
    let count = (case.count * times).to_string();
    let file = format!("{OUTPUT_DIR}/{tool}-{}-{count}", case.name);
    let command = Cmd::new("valgrind", "--quiet")
        .args([format!("--tool={tool}")])
        .args(options(&file))
        .args([PROGRAM, case.kind.name(), &case.name, &count]);
    match command.run_within(RUN_MAX)? {
        RunOutcome::Code(0) => {}
        outcome => return Err(TaskError::new(format!("`{command}` failed: {outcome:?}"))),
    }
    fs::read_to_string(&file).map_err(|error| TaskError::new(format!("{file}: {error}")))
}

/// Returns the versions of everything that the counts depend on besides our code and `Cargo.lock`.
fn environment() -> Result<Vec<(&'static str, String)>, TaskError> {
    let rustc = Cmd::new("rustc", "-vV").output()?;
    let target = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("unknown").to_owned();
    let first_line = |text: &str| text.lines().next().unwrap_or("unknown").to_owned();
    Ok(vec![
        ("rustc", first_line(&rustc)),
        ("target", target),
        ("libc", first_line(&Cmd::new("getconf", "GNU_LIBC_VERSION").output()?)),
        ("valgrind", first_line(&Cmd::new("valgrind", "--version").output()?)),
    ])
}

fn write(path: &str, text: &str) -> Result<(), TaskError> {
    let written = fs::create_dir_all(Path::new(path).parent().unwrap_or(Path::new(".")))
        .and_then(|()| fs::write(path, text));
    written.map_err(|error| TaskError::new(format!("cannot write {path}: {error}")))
}

/// Fails if a count is worse than the baseline by more than the threshold, or is no longer measured.
fn compare_with_baseline() -> Result<(), TaskError> {
    println!("\n$ cargo xtask bench compare {BASELINE} {CURRENT} --threshold {THRESHOLD}");
    let base = Results::read(Path::new(BASELINE))?;
    let current = Results::read(Path::new(CURRENT))?;
    compare::compare(&base, &current, THRESHOLD).map_err(|error| {
        TaskError::new(format!("{error}\nif this is intended, store the new counts: {RENEW}"))
    })
}

/// Replaces the stored baseline.
fn renew() -> Result<(), TaskError> {
    if Path::new(BASELINE).exists() {
        println!("\nThe previous baseline, and the new one:");
        let base = Results::read(Path::new(BASELINE))?;
        let changes = compare::print_changes(&base, &Results::read(Path::new(CURRENT))?, THRESHOLD)?;
        println!("{}", compare::summary(&changes));
    }
    let text = fs::read_to_string(CURRENT).map_err(|error| TaskError::new(format!("{CURRENT}: {error}")))?;
    write(BASELINE, &text)?;
    println!("wrote {BASELINE}; commit it with the reason for the change");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_be_4_percent_above_the_baseline_but_neither_6_nor_missing() {
        let counts = |tell: f64, others: &str| {
            let rows = format!(r#"[{{ "name": "instructions/tell", "count": {tell} }}{others}]"#);
            Results::parse(&format!(r#"{{ "better": "lower", "rounds": 1, "rows": {rows} }}"#)).unwrap()
        };
        let idle = r#", { "name": "memory/idle", "count": 240 }"#;
        let result = |current| {
            let compared = compare::compare(&counts(1_000.0, idle), &current, THRESHOLD);
            compared.map_err(|error| error.to_string())
        };
        assert_eq!(result(counts(1_040.0, idle)), Ok(()));
        let worse = "worse by more than 5 %: instructions/tell (-6.0 %)";
        assert_eq!(result(counts(1_060.0, idle)), Err(worse.to_owned()));
        assert_eq!(result(counts(1_000.0, "")), Err("no longer measured: memory/idle".to_owned()));
    }

    #[test]
    fn the_stored_baseline_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(BASELINE);
        let baseline = Results::read(&path).unwrap();
        assert!(baseline.environment.keys().map(String::as_str).eq(["libc", "rustc", "target", "valgrind"]));
        assert!(["instructions/tell", "memory/idle/cell"].iter().all(|row| baseline.find(row).is_some()));
    }

    #[test]
    fn the_list_of_cases_is_parsed() {
        let cases = parse_list("instructions\ttell\t8192\ttell, one message\nmemory\tidle\t64\tidle actor\n");
        let case = |kind, name: &str, count, about: &str| CostCase {
            kind,
            name: name.to_owned(),
            count,
            about: about.to_owned(),
        };
        assert_eq!(
            cases,
            Ok(vec![
                case(CostKind::Instructions, "tell", 8192, "tell, one message"),
                case(CostKind::Memory, "idle", 64, "idle actor")
            ])
        );
        let error = parse_list("instructions\ttell\tmany\tx").unwrap_err().to_string();
        assert!(error.contains("unexpected `instructions\ttell\tmany\tx`"), "{error}");
    }
}
