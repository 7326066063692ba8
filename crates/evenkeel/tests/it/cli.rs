//! The binary, as a user runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

#[test]
fn a_sim_node_says_where_it_is_serves_and_ends_well_when_told() {
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
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"id\":\"qwen\""), "{answer}");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_demo_compares_one_shared_key_with_a_key_per_tenant() {
    let output = evenkeel(&["demo", "--seconds", "3", "--quiet"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}{complained}");
    for part in ["One shared key", "A key per tenant", "chat waited ", "tokens/s (", "team got "] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

#[test]
fn misuse_ends_with_2_and_says_what_was_meant() {
    for (args, part) in [
        (&[][..], "Usage: evenkeel"),
        (&["sim-nod"], "'sim-node'"),
        (&["serv"], "'serve'"),
        (&["check"], "<FILE>"),
        (&["serve", "--listen", "here"], "--listen <ADDR>"),
        (&["tenant"], "Usage: evenkeel tenant"),
        (&["tenant", "add"], "<NAME>"),
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
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && said.contains(part), "{args:?} says {said}");
    }
}

#[test]
fn what_cannot_be_done_ends_with_1_and_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = evenkeel(&["sim-node", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with(&format!("evenkeel: cannot listen on {address}: ")), "{said}");
}

#[test]
fn help_names_every_fault_and_shows_examples() {
    let output = evenkeel(&["sim-node", "--help"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    for (name, _) in evenkeel_sim_node::FaultKind::ALL {
        assert!(said.contains(name), "no {name}");
    }
    assert!(said.contains("Examples:"), "{said}");
    let version = evenkeel(&["--version"]).stdout;
    assert_eq!(String::from_utf8(version).unwrap(), concat!("evenkeel ", env!("CARGO_PKG_VERSION"), "\n"));
}

fn evenkeel(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(args).output().unwrap()
}
