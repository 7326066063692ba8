//! The binaries, run as processes.

use std::path::Path;
use std::process::{Command, Output};

#[test]
fn a_run_prints_a_table_and_writes_the_results() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("micro.json");
    let output = micro(&["swrr/8", "--quick", "--json", &file.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(0));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("| group "), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("swrr/8-paths")).count(), 1);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "[1/1] swrr/8-paths\n");
    let results = std::fs::read_to_string(file).unwrap();
    assert!(results.contains("\"name\": \"swrr/8-paths/swrr\", \"ns_per_op\": "), "{results}");
}

#[test]
fn a_usage_error_exits_with_2_and_a_failure_with_1() {
    for (args, code, message) in [
        (&["--fast"][..], 2, "error: unexpected argument '--fast' found\n"),
        (&["teleport"], 2, "error: no group's name contains 'teleport'; --list shows them\n"),
    ] {
        let output = micro(args);
        assert_eq!(output.status.code(), Some(code));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with(message), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let missing = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no/such/directory.json");
    let output = micro(&["swrr", "--json", &missing.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr).unwrap().starts_with("micro: "),
        "reported before the first round"
    );
}

#[test]
fn help_and_list_measure_nothing() {
    let help = micro(&["--help"]);
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("Usage: cargo xtask bench micro -- [OPTIONS] [FILTER]")
    );
    let list = micro(&["--list"]);
    assert!(String::from_utf8(list.stdout).unwrap().contains("\ndrr-pick/1000000-keys\n"));
    assert!(help.stderr.is_empty() && list.stderr.is_empty());
}

#[test]
fn actor_costs_runs_a_listed_case_and_rejects_any_other() {
    let list = actor_costs(&["--list"]);
    assert!(String::from_utf8(list.stdout).unwrap().starts_with("instructions\ttell\t8192\t"));
    assert_eq!(actor_costs(&["instructions", "tell", "64"]).status.code(), Some(0));
    for args in [&["memory", "tell", "64"][..], &["instructions", "tell"], &[]] {
        assert_eq!(actor_costs(args).status.code(), Some(2), "{args:?}");
    }
}

fn actor_costs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_actor-costs")).args(args).output().expect("built with this test")
}

fn micro(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_micro")).args(args).output().expect("micro was built with this test")
}
