//! The binary, run as a process.

use std::io::Read;
use std::process::{Command, Output, Stdio};

#[test]
fn the_demo_shows_both_policies_and_only_fifo_rejects_the_quiet_tenant() {
    let output = evenkeel_sim(&["demo", "--seconds", "20"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let rejected: Vec<u32> = text
        .lines()
        .filter(|line| line.trim_start().starts_with("quiet "))
        .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
        .collect();
    assert_eq!(rejected.len(), 2, "{text}");
    assert!(rejected[0] > 0 && rejected[1] == 0, "{text}");
}

#[test]
fn the_same_seed_prints_the_same_line_and_another_seed_another() {
    let line = |seed| evenkeel_sim(&["run", "flood", "--seconds", "3", "--quiet", "--seed", seed]).stdout;
    assert_eq!(line("5"), line("5"));
    assert_ne!(line("5"), line("6"));
    assert_eq!(line("5").iter().filter(|&&byte| byte == b'\n').count(), 1);
}

#[test]
fn every_event_is_printed_on_one_line() {
    let output = evenkeel_sim(&["run", "weights", "--seconds", "1", "--events"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() > 100 && text.lines().all(|line| line.contains("request:")), "{text}");
}

#[test]
fn a_closed_output_pipe_is_not_a_failure() {
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
fn a_usage_error_exits_with_2_and_names_the_mistake() {
    for (args, part) in [
        (&["dmeo"][..], "unrecognized subcommand 'dmeo'"),
        (&["run", "nothing"], "flood, weights"),
        (&[], "Usage: evenkeel-sim"),
    ] {
        let output = evenkeel_sim(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(part) && text.contains("--help"), "{text}");
    }
}

#[test]
fn fairness_prints_a_row_per_workload() {
    let output = evenkeel_sim(&["fairness"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["2 clients", "8 clients", "short, long", "in, out", "on and off"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(name)), "{text}");
    }
}

#[test]
fn a_redirect_scenario_prints_its_seed_the_ideal_and_a_row_per_rule() {
    let output = evenkeel_sim(&["run", "redirect-herding", "--seconds", "20", "--seed", "3"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("redirect-herding: ") && text.contains("(seed 3)"), "{text}");
    for row in ["one queue over all slots", "Evenkeel", "no redirects"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(row)), "{text}");
    }
}

#[test]
fn a_link_scenario_prints_its_seed_a_row_per_path_and_the_flows() {
    let output = evenkeel_sim(&["run", "link-failover", "--seconds", "8", "--seed", "3", "--events"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("link-failover: ") && text.contains("(seed 3)"), "{text}");
    for part in [
        "path 0: ACTIVE to DEGRADED: no acknowledgement for too long",
        "path 2: 20 Mbit/s, 100 ms;",
        " 0 wrong",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

#[test]
fn poison_prints_a_row_per_cell() {
    let output = evenkeel_sim(&["poison"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for fault in ["500", "close", "hang", "429"] {
        let rows = text.lines().filter(|line| line.trim_start().starts_with(fault));
        assert_eq!(rows.count(), 24, "{fault}: {text}");
    }
}

#[test]
fn help_version_and_list_print_their_texts() {
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
