//! A server process with too few file descriptors logs and counts that, and keeps serving.

use std::net::TcpStream;
use std::process::Command;

use crate::bodies::wait_metric;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

#[test]
fn a_server_without_free_descriptors_logs_and_counts_it_and_keeps_serving() {
    let dir = TestDir::new("descriptors");
    dir.write("evenkeel.toml", "[telemetry]\nmetrics = 'public'\n");
    let serve = dir.command(&["serve", "--listen", "127.0.0.1:0", "--config", "evenkeel.toml"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 96; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    limited.current_dir(dir.file("")).env_clear();
    let server = ServerProcess::spawn_after(&mut limited, "the limit of file descriptors is too low");
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    server.wait_log("could not accept a connection");
    wait_metric(&server, "evenkeel_accept_errors_total", |errors| errors > 0.0);
    wait_metric(&server, "evenkeel_connections_evicted_total", |evicted| evicted > 0.0);
    assert_eq!(server.get("/livez").status, 200);
    drop(idle);
    wait_metric(&server, "evenkeel_connections", |open| open <= 2.0);
    assert_eq!(server.get("/livez").status, 200);
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let dir = TestDir::new("descriptors-raised");
    let serve = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 128; exec \"$0\" \"$@\""])
        .arg(serve.get_program())
        .args(serve.get_args());
    limited.current_dir(dir.file("")).env_clear();
    let server = ServerProcess::spawn(&mut limited);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let values: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(values[0], values[1], "{line}");
}
