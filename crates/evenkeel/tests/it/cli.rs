//! Commands of the binary that need no server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

#[test]
fn a_sim_node_prints_its_address_serves_and_exits_cleanly_on_sigterm() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["sim-node", "--model", "llama", "--model", "qwen", "--slots", "2", "--fault", "500-burst"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with(": llama, qwen; 2 slots\n"), "{line}");
    let address = line.split("http://").nth(1).unwrap().split(": ").next().unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /v1/models HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.contains("\"id\":\"qwen\""), "{response}");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_demo_compares_one_shared_key_with_a_key_per_tenant() {
    let output = evenkeel(&["demo", "--seconds", "3", "--quiet"]);
    let output_text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{output_text}{errors}");
    for part in ["One shared key", "A key per tenant", "chat waited ", "tokens/s (", "team got "] {
        assert!(output_text.contains(part), "no {part:?} in {output_text}");
    }
}

#[test]
fn a_usage_error_exits_with_2_and_a_hint() {
    for (args, part) in [
        (&[][..], "Usage: evenkeel"),
        (&["sim-nod"], "'sim-node'"),
        (&["serv"], "'serve'"),
        (&["check"], "<FILE>"),
        (&["serve", "--listen", "here"], "--listen <ADDR>"),
        (&["tenant"], "Usage: evenkeel tenant"),
        (&["tenant", "add"], "<NAME>"),
        (&["tenant", "set", "a", "--standing", "active"], "--standing was renamed to --state"),
        (&["demo", "--seconds", "86401"], "0..=86400"),
        (&["completions", "csh"], "possible values"),
        (&["sim-node", "--slot", "3"], "'--slots'"),
        (&["sim-node", "--slots", "0"], "1..=4096"),
        (&["sim-node", "--fault", "rest"], "'reset'"),
        (&["sim-node", "--fault-rate", "0.5"], "--fault <KIND>"),
        (&["sim-node", "--fault", "reset", "--fault-rate", "2"], "fault-rate must be from 0 to 1"),
        (&["sim-node", "--model", "two words"], "model must be"),
        (&["sim-node", "--batch-slowdown", "11"], "batch-slowdown must be from 0 to 10"),
    ] {
        let output = evenkeel(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let output_text = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && output_text.contains(part), "{args:?} says {output_text}");
    }
}

#[test]
fn a_failure_exits_with_1_and_the_reason() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = evenkeel(&["sim-node", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert!(output_text.starts_with(&format!("evenkeel: cannot listen on {address}: ")), "{output_text}");
}

#[test]
fn help_names_every_fault_and_shows_examples() {
    let output = evenkeel(&["sim-node", "--help"]);
    assert!(output.status.success());
    let output_text = String::from_utf8(output.stdout).unwrap();
    for (name, _) in evenkeel_sim_node::FaultKind::ALL {
        assert!(output_text.contains(name), "no {name}");
    }
    assert!(output_text.contains("Examples:"), "{output_text}");
    let version = evenkeel(&["--version"]).stdout;
    assert_eq!(String::from_utf8(version).unwrap(), concat!("evenkeel ", env!("CARGO_PKG_VERSION"), "\n"));
}

fn evenkeel(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(args).output().unwrap()
}
