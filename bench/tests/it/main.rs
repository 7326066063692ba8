//! The programs, run as child processes.

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
fn every_runtime_runs_every_workload_or_reports_why_not() {
    let workloads = ["tell1", "mpsc4", "ask", "fan10", "fan100", "fan1000", "skynet", "spawn"];
    let latencies = ["wake", "lat1", "lat10", "lat100", "lat1000", "flood-tasks", "flood-thread"];
    for runtime in RUNTIMES {
        for workload in workloads.into_iter().chain(latencies) {
            let output = call(BENCH, &[runtime, workload, "scale=0.001"]);
            if let Some(reason) = unsupported(runtime, workload) {
                assert_eq!(status(&output), (3, format!("actor-bench: unsupported: {reason}\n")));
                continue;
            }
            assert_eq!(status(&output), (0, String::new()), "{runtime} {workload}");
            let line = printed(&output);
            assert!(line.starts_with("ops=") && line.contains(" cpu_ns_per_op="), "{line}");
            assert_eq!(line.contains(" p99_us="), latencies.contains(&workload), "{line}");
        }
    }
}

#[test]
fn bounded_mailboxes_and_one_worker_are_supported_or_rejected() {
    for runtime in RUNTIMES {
        let output = call(BENCH, &[runtime, "mpsc4", "scale=0.001", "mailbox=4", "workers=1", "metrics=off"]);
        let (code, error) = status(&output);
        let is_unsupported = ["actix", "ractor", "seed-sketch", "beam"].contains(&runtime);
        assert_eq!(code, if is_unsupported { 3 } else { 0 }, "{runtime}: {error}");
    }
}

#[test]
fn the_echo_server_runs_beside_every_tokio_runtime() {
    for runtime in RUNTIMES {
        let output = call(BENCH, &[runtime, "ask", "scale=0.01", "echo=on"]);
        let (code, error) = status(&output);
        let on_tokio = ON_TOKIO.contains(&runtime);
        assert_eq!(code, if on_tokio { 0 } else { 3 }, "{runtime}: {error}");
        assert_eq!(printed(&output).contains(" echo_p99_us="), on_tokio, "{runtime}");
    }
}

#[test]
fn only_the_counting_allocator_measures_memory() {
    let measured = call(MEM, &["tokio-mpsc", "heap", "scale=0.01"]);
    let line = printed(&measured);
    assert!(metric(&line, "heap_bytes").unwrap() > 100.0, "{line}");
    let rejected = call(BENCH, &["tokio-mpsc", "heap"]);
    assert_eq!(status(&rejected), (3, "actor-bench: unsupported: only actor-mem counts bytes\n".to_owned()));
}

#[test]
fn the_vm_measures_its_own_memory() {
    let line = printed(&call(MEM, &["beam", "heap", "scale=0.01"]));
    for name in ["heap_bytes", "touched_bytes"] {
        let bytes = metric(&line, name).unwrap();
        assert!((1000.0..10_000.0).contains(&bytes), "{line}");
    }
}

#[test]
fn without_erlang_its_row_says_how_to_install_it() {
    let mut command = Command::new(BENCH);
    let output = command.args(["beam", "ask"]).env("PATH", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let (code, error) = status(&output);
    assert_eq!(code, 1);
    assert!(error.ends_with(" is not installed; try `apt-get install erlang-base`\n"), "{error}");
}

#[test]
fn rounds_print_tables_and_write_json() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rounds.json");
    let file = file.to_string_lossy();
    let quick = ["--rounds", "2", "--scale", "0.001", "--seed", "7", "--json", &file];
    let selected = ["--runtimes", "xtra,tokio-mpsc@workers=1", "--workloads", "ask,heap,register"];
    let output = call(ROUNDS, &[&quick[..], &selected].concat());
    let (code, progress) = status(&output);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.starts_with("seed 7; repeat the order with --seed 7\nround 1/2: "), "{progress}");
    assert_eq!(progress.lines().count(), 1 + 2 * (4 + 4 + 4), "{progress}");
    let tables = printed(&output);
    assert_eq!(tables.matches("\n| tokio-mpsc (again) ").count(), 2, "{tables}");
    assert_eq!(tables.matches("\n| tokio-mpsc@workers=1 ").count(), 2, "{tables}");
    assert_eq!(tables.matches("\n| flag ").count(), 1, "{tables}");
    let results: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&*file).unwrap()).unwrap();
    assert_eq!(results["rows"].as_array().map(Vec::len), Some(12));
    assert_eq!(results["missing"], serde_json::json!([]));
}

#[test]
fn a_usage_error_exits_with_2_and_a_failure_with_1() {
    for (program, args, code, message) in [
        (
            BENCH,
            &["ractor"][..],
            2,
            "error: the following required arguments were not provided:\n  <WORKLOAD>\n",
        ),
        (
            MEM,
            &["ractor", "teleport"],
            2,
            "error: invalid value 'teleport' for '<WORKLOAD>': unknown workload\n",
        ),
        (MEM, &["rector", "heap"], 2, "error: `rector` is not a contender of the workload `heap`\n"),
        (ROUNDS, &["--fast"], 2, "error: unexpected argument '--fast' found\n"),
        (ROUNDS, &["--runtimes", "rector"], 2, "error: unknown runtime `rector`\n"),
    ] {
        let (exit_code, error) = status(&call(program, args));
        assert_eq!(exit_code, code, "{error}");
        assert!(error.starts_with(message), "{error}");
    }
    let (code, error) = status(&call(ROUNDS, &["--json", "no/such/folder.json"]));
    assert_eq!(code, 1);
    assert!(
        error.starts_with("actor-rounds: no/such/folder.json: "),
        "reported before the first round: {error}"
    );
}

#[test]
fn help_is_printed_without_measuring() {
    for program in [BENCH, MEM, ROUNDS] {
        let output = call(program, &["--help"]);
        assert_eq!(status(&output), (0, String::new()));
        assert!(printed(&output).contains("\nWorkloads:\n"));
    }
}

/// Returns the reason why a runtime does not support a workload.
fn unsupported(runtime: &str, workload: &str) -> Option<&'static str> {
    match (runtime, workload) {
        ("crossbeam-threads", "skynet") => Some("its actors cannot spawn actors"),
        ("beam", "wake") => Some("no thread outside the VM can send to a process"),
        ("beam", "lat1" | "lat10" | "lat100" | "lat1000" | "flood-tasks" | "flood-thread") => {
            Some("bench.erl measures no latencies")
        }
        _ => None,
    }
}

fn metric(line: &str, name: &str) -> Option<f64> {
    let mut pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok())
}

fn call(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the program was built with this test")
}

fn status(output: &Output) -> (i32, String) {
    let code = output.status.code().expect("the program was not killed");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
