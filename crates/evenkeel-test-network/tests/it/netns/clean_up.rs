//! Removal of namespaces, and machines without them.

use super::{Pair, ms};
use evenkeel_test_network::{Network, PathSpec, network_or_skip};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

#[test]
fn a_panic_removes_namespaces_and_the_processes_in_them() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let names = names(&network);
    assert!(names.iter().all(|name| exists(name)));
    let mut child = network.core().command("sleep").arg("1000").spawn().unwrap();
    thread::spawn(move || {
        Pair::new(&network).echo().unwrap();
        panic!("expected by the test");
    })
    .join()
    .unwrap_err();
    assert!(!names.iter().any(|name| exists(name)));
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_new_network_removes_namespaces_of_processes_that_have_exited() {
    let network = network_or_skip!(&[]);
    let mut exited = Command::new("true").spawn().unwrap();
    exited.wait().unwrap();
    let leftover = format!("ek-edge-{}-0", exited.id());
    ip(&["netns", "add", &leftover]);
    assert!(exists(&leftover));
    let other = Network::new(&[]).unwrap();
    assert!(!exists(&leftover));
    assert!(names(&network).iter().chain(&names(&other)).all(|name| exists(name)));
}

#[test]
fn without_the_capability_a_test_is_skipped_visibly_and_fails_in_ci() {
    let _network = network_or_skip!(&[]);
    let local = run_without_capability(&mut Command::new("setpriv"), false);
    let text = String::from_utf8_lossy(&local.stderr).into_owned();
    assert!(local.status.success(), "{text}");
    let reason = "no network namespaces: the process does not have CAP_NET_ADMIN; run it as root";
    assert!(text.contains(&format!("SKIPPED: {reason}")), "{text}");
    let in_ci = run_without_capability(&mut Command::new("setpriv"), true);
    assert!(!in_ci.status.success());
}

/// Runs another test of this binary.
fn run_without_capability(command: &mut Command, is_ci: bool) -> Output {
    command.args(["--bounding-set=-net_admin", "--"]).arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", "netns::routes::a_thread_runs_in_its_namespace"])
        .env_remove("CI");
    if is_ci {
        command.env("CI", "true");
    }
    command.output().unwrap()
}

fn names(network: &Network) -> [String; 2] {
    [network.edge(), network.core()].map(|namespace| namespace.name().to_owned())
}

fn exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

fn ip(args: &[&str]) {
    assert!(Command::new("ip").args(args).status().unwrap().success(), "{args:?}");
}
