use evenkeel_test_postgres::ServerUrl;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const GONE_MAX: Duration = Duration::from_secs(30);

#[test]
fn the_server_ends_and_its_directory_is_removed_when_its_owner_is_killed() {
    let mut owner = start_owner();
    // SIGKILL, so that no destructor runs.
    owner.process.kill().unwrap();
    owner.process.wait().unwrap();
    wait_until(|| !owner.directory.exists());
    assert!(!is_running(&owner.server_pid));
}

#[test]
fn the_server_ends_when_its_owner_ends_normally() {
    let mut owner = start_owner();
    drop(owner.process.stdin.take());
    assert!(owner.process.wait().unwrap().success());
    assert!(!owner.directory.exists());
    assert!(!is_running(&owner.server_pid));
}

/// A process that runs a server.
struct Owner {
    process: Child,
    server_pid: String,
    directory: PathBuf,
}

fn start_owner() -> Owner {
    let mut process = Command::new(env!("CARGO_BIN_EXE_test-postgres"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the owner starts");
    let mut url = String::new();
    let stdout = process.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut url).expect("the owner prints a line");
    let server = ServerUrl::parse(url.trim_end()).expect("the line is a URL");
    let data = server.psql("postgres", "SHOW data_directory").expect("the server runs");
    let data = Path::new(data.trim_end());
    let status =
        std::fs::read_to_string(data.join("postmaster.pid")).expect("a running server has a PID file");
    let server_pid = status.lines().next().expect("its first line is the PID").to_owned();
    assert!(is_running(&server_pid));
    let directory = data.parent().expect("the data is in the server's directory").to_owned();
    Owner { process, server_pid, directory }
}

fn is_running(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().expect("kill runs").success()
}

/// Waits for a change in a process that is no child of this one, so that nothing reports it.
fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < GONE_MAX, "nothing changed within {GONE_MAX:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
