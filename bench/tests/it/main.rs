//! The programs as they are called.

use std::path::Path;
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_actor-bench");
const MEM: &str = env!("CARGO_BIN_EXE_actor-mem");
const ROUNDS: &str = env!("CARGO_BIN_EXE_actor-rounds");

const RUNTIMES: [&str; 10] = [
    "tokio-mpsc",
    "evenkeel",
    "evenkeel-tokio",
    "crossbeam-threads",
    "actix",
    "ractor",
    "kameo",
    "xtra",
    "seed-sketch",
    "beam",
];
const ON_TOKIO: [&str; 7] =
    ["tokio-mpsc", "evenkeel", "evenkeel-tokio", "ractor", "kameo", "xtra", "seed-sketch"];

#[test]
fn every_runtime_runs_every_workload_or_says_why_not() {
    let workloads = ["tell1", "mpsc4", "ask", "fan10", "fan100", "fan1000", "skynet", "spawn"];
    let delays = ["wake", "lat1", "lat10", "lat100", "lat1000"];
    for runtime in RUNTIMES {
        for workload in workloads.into_iter().chain(delays) {
            let output = call(BENCH, &[runtime, workload, "scale=0.001"]);
            if let Some(why) = refusal(runtime, workload) {
                assert_eq!(said(&output), (3, format!("actor-bench: unsupported: {why}\n")));
                continue;
            }
            assert_eq!(said(&output), (0, String::new()), "{runtime} {workload}");
            let line = printed(&output);
            assert!(line.starts_with("ops=") && line.contains(" cpu_ns_per_op="), "{line}");
            assert_eq!(line.contains(" p99_us="), delays.contains(&workload), "{line}");
        }
    }
}

#[test]
fn bounded_mailboxes_and_one_worker_are_taken_or_refused_by_name() {
    for runtime in RUNTIMES {
        let output = call(BENCH, &[runtime, "mpsc4", "scale=0.001", "mailbox=4", "workers=1", "metrics=off"]);
        let (code, error) = said(&output);
        let refuses = ["actix", "ractor", "seed-sketch", "beam"].contains(&runtime);
        assert_eq!(code, if refuses { 3 } else { 0 }, "{runtime}: {error}");
    }
}

#[test]
fn an_echo_runs_beside_whoever_runs_on_tokio() {
    for runtime in RUNTIMES {
        let output = call(BENCH, &[runtime, "ask", "scale=0.01", "echo=on"]);
        let (code, error) = said(&output);
        let on_tokio = ON_TOKIO.contains(&runtime);
        assert_eq!(code, if on_tokio { 0 } else { 3 }, "{runtime}: {error}");
        assert_eq!(printed(&output).contains(" echo_p99_us="), on_tokio, "{runtime}");
    }
}

#[test]
fn only_the_counting_allocator_weighs_actors() {
    let weighed = call(MEM, &["tokio-mpsc", "heap", "scale=0.01"]);
    let line = printed(&weighed);
    assert!(figure(&line, "heap_bytes").unwrap() > 100.0, "{line}");
    let refused = call(BENCH, &["tokio-mpsc", "heap"]);
    assert_eq!(said(&refused), (3, "actor-bench: unsupported: only actor-mem counts bytes\n".to_owned()));
}

#[test]
fn the_vm_weighs_its_own_processes() {
    let line = printed(&call(MEM, &["beam", "heap", "scale=0.01"]));
    for name in ["heap_bytes", "touched_bytes"] {
        let bytes = figure(&line, name).unwrap();
        assert!(1000.0 < bytes && bytes < 10_000.0, "{line}");
    }
}

#[test]
fn without_erlang_its_row_says_how_to_get_it() {
    let mut command = Command::new(BENCH);
    let output = command.args(["beam", "ask"]).env("PATH", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let (code, error) = said(&output);
    assert_eq!(code, 1);
    assert!(error.ends_with(" is missing; `apt-get install erlang-base` brings it\n"), "{error}");
}

#[test]
fn rounds_show_tables_and_write_the_figures() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rounds.json");
    let file = file.to_string_lossy();
    let quick = ["--rounds", "2", "--scale", "0.001", "--seed", "7", "--json", &file];
    let what = ["--runtimes", "xtra,tokio-mpsc@workers=1", "--workloads", "ask,heap,register"];
    let output = call(ROUNDS, &[&quick[..], &what].concat());
    let (code, progress) = said(&output);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.starts_with("seed 7; repeat the order with --seed 7\nround 1/2: "), "{progress}");
    assert_eq!(progress.lines().count(), 1 + 2 * (4 + 4 + 4), "{progress}");
    let tables = printed(&output);
    assert_eq!(tables.matches("\n| tokio-mpsc (again) ").count(), 2, "{tables}");
    assert_eq!(tables.matches("\n| tokio-mpsc@workers=1 ").count(), 2, "{tables}");
    assert_eq!(tables.matches("\n| flag ").count(), 1, "{tables}");
    let figures: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&*file).unwrap()).unwrap();
    assert_eq!(figures["rows"].as_array().map(Vec::len), Some(12));
    assert_eq!(figures["missing"], serde_json::json!([]));
}

#[test]
fn a_misuse_ends_with_2_and_a_failure_with_1() {
    for (program, args, code, error) in [
        (BENCH, &["ractor"][..], 2, "actor-bench: a runtime and a workload are needed; see --help\n"),
        (MEM, &["ractor", "teleport"], 2, "actor-mem: no workload is called `teleport`; see --help\n"),
        (ROUNDS, &["--fast"], 2, "actor-rounds: no flag is called `--fast`; see --help\n"),
    ] {
        assert_eq!(said(&call(program, args)), (code, error.to_owned()));
    }
    let (code, error) = said(&call(ROUNDS, &["--json", "no/such/folder.json"]));
    assert_eq!(code, 1);
    assert!(error.starts_with("actor-rounds: no/such/folder.json: "), "said before the first round: {error}");
}

#[test]
fn help_measures_nothing() {
    for program in [BENCH, MEM, ROUNDS] {
        let output = call(program, &["--help"]);
        assert_eq!(said(&output), (0, String::new()));
        assert!(printed(&output).contains("\nworkloads:\n"));
    }
}

/// Why a runtime refuses a workload, if it does.
fn refusal(runtime: &str, workload: &str) -> Option<&'static str> {
    match (runtime, workload) {
        ("crossbeam-threads", "skynet") => Some("its actors spawn no actors"),
        ("beam", "wake") => Some("no foreign thread can tell a process"),
        ("beam", "lat1" | "lat10" | "lat100" | "lat1000") => Some("bench.erl takes no delays"),
        _ => None,
    }
}

fn figure(line: &str, name: &str) -> Option<f64> {
    let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words.find(|(key, _)| *key == name).and_then(|(_, figure)| figure.parse().ok())
}

fn call(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the program was built with this test")
}

fn said(output: &Output) -> (i32, String) {
    let code = output.status.code().expect("the program was not killed");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
