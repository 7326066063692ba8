//! The binary, as a user runs it.

use std::io::Read;
use std::process::{Command, Output, Stdio};

#[test]
fn the_demo_shows_both_ways_and_the_quiet_tenant_refused_only_in_one() {
    let output = evenkeel_sim(&["demo", "--seconds", "20"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let refused: Vec<u32> = said
        .lines()
        .filter(|line| line.trim_start().starts_with("quiet "))
        .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
        .collect();
    assert_eq!(refused.len(), 2, "{said}");
    assert!(refused[0] > 0 && refused[1] == 0, "{said}");
}

#[test]
fn the_same_seed_prints_the_same_line_and_another_another() {
    let line = |seed| evenkeel_sim(&["run", "flood", "--seconds", "3", "--quiet", "--seed", seed]).stdout;
    assert_eq!(line("5"), line("5"));
    assert_ne!(line("5"), line("6"));
    assert_eq!(line("5").iter().filter(|&&byte| byte == b'\n').count(), 1);
}

#[test]
fn every_event_is_one_line() {
    let output = evenkeel_sim(&["run", "weights", "--seconds", "1", "--events"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.lines().count() > 100 && said.lines().all(|line| line.contains("ticket:")), "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel-sim"))
        .args(["run", "weights", "--events"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{:?}", output);
}

#[test]
fn misuse_ends_with_2_and_says_what_is_wrong() {
    for (args, part) in [
        (&["dmeo"][..], "unknown argument 'dmeo'"),
        (&["run", "nothing"], "flood, weights"),
        (&[], "no command"),
    ] {
        let output = evenkeel_sim(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(part) && said.contains("evenkeel-sim help"), "{said}");
    }
}

#[test]
fn the_fairness_of_every_workload_is_a_row() {
    let output = evenkeel_sim(&["fairness"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    for name in ["2 clients", "8 clients", "short, long", "in, out", "on and off"] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(name)), "{said}");
    }
}

#[test]
fn help_version_and_list_say_what_there_is() {
    for (argument, part) in [
        ("--help", "Examples:"),
        ("help", "demo --seconds 10"),
        ("--version", "evenkeel-sim 0."),
        ("list", "park-wake"),
    ] {
        let output = evenkeel_sim(&[argument]);
        assert!(output.status.success());
        assert!(String::from_utf8(output.stdout).unwrap().contains(part), "{argument}");
    }
}

fn evenkeel_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel-sim")).args(args).output().unwrap()
}
