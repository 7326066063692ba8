//! Errors that the person who runs a link sees in its log.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;

use super::process::{LoggedProcess, wait_for};
use super::sites::{LinkSide, Sites, create_keys, wait_port};
use super::test_link::{ForwardLane, LinkOptions, TestLink};
use super::transfer::Transfer;

/// Starts an edge with one path to a port of loopback; returns the error that it logs.
fn connect_error(sites: &Sites, port: u16) -> String {
    let edge = LoggedProcess::spawn("edge", &mut sites.connect(&[format!("127.0.0.1:{port}")], &[]));
    edge.wait_log("could not connect a path")["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_wrong_key_on_either_side_is_named_and_logged_once() {
    let mut sites = Sites::new("wrong-key", "");
    let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    let port = wait_port(&core);
    let other_key = create_keys(&sites.dir, "other-keys");
    let core_key = std::mem::replace(&mut sites.core_key, other_key.clone());
    let error = connect_error(&sites, port);
    assert_eq!(error, format!("the peer presented {core_key} but {other_key} is expected"));
    drop(core);

    // Now the edge expects the right key, and the core another one.
    sites.core_key = core_key;
    let edge_key = std::mem::replace(&mut sites.edge_key, other_key);
    let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    let port = wait_port(&core);
    for _ in 0..2 {
        let error = connect_error(&sites, port);
        let expected = format!("127.0.0.1:{port} does not accept our key {edge_key}");
        assert!(error.starts_with(&expected), "{error}");
    }
    let lines = core.wait_logs("an incoming connection of the link failed", 1);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let error = lines[0]["error"].as_str().unwrap();
    assert!(error.contains(&edge_key), "{error}");
}

#[test]
fn a_port_that_does_not_answer_is_reported_as_a_path_that_is_down_or_blocked() {
    let sites = Sites::new("silent-port", "");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = connect_error(&sites, port);
    assert_eq!(
        error,
        format!("no answer from 127.0.0.1:{port} within 5s; the path is down, or UDP is blocked")
    );
}

#[test]
fn a_server_of_another_quic_version_is_reported_as_such() {
    let sites = Sites::new("version", "");
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut packet = [0; 2_048];
        while let Ok((_, client)) = server.recv_from(&mut packet) {
            server.send_to(&version_negotiation(&packet), client).unwrap();
        }
    });
    let error = connect_error(&sites, port);
    let expected = format!("127.0.0.1:{port} does not speak version 1 of the link protocol");
    assert!(error.starts_with(&expected), "{error}");
}

/// Answers an initial packet with the offer of a version that does not exist (RFC 9000, section 17.2.1).
fn version_negotiation(initial: &[u8]) -> Vec<u8> {
    let destination = &initial[6..][..usize::from(initial[5])];
    let rest = &initial[6 + destination.len()..];
    let source = &rest[1..][..usize::from(rest[0])];
    let mut packet = vec![0x80, 0, 0, 0, 0];
    for id in [source, destination] {
        packet.push(id.len() as u8);
        packet.extend(id);
    }
    packet.extend([0x1a, 0x2a, 0x3a, 0x4a]);
    packet
}

#[test]
fn a_link_works_with_those_of_its_paths_that_can_be_opened() {
    let sites = Sites::new("one-path", "");
    let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    let port = wait_port(&core);
    let paths = [format!("nosuch0=127.0.0.1:{port}"), format!("127.0.0.1:{port}")];
    let edge = LoggedProcess::spawn("edge", &mut sites.connect(&paths, &[]));
    let line = edge.wait_log("could not open the socket of a path");
    assert_eq!(line["error"], "no interface is named \"nosuch0\"");
    let line = edge.wait_log("path connected");
    assert_eq!(line["path"], paths[1].as_str());
}

#[test]
fn a_forward_to_a_target_that_is_not_allowed_or_not_there_is_reset_and_explained() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let link =
        TestLink::on_loopback("targets", &LinkOptions { targets: &[closed], ..LinkOptions::default() });
    link.wait_active(2);
    let mut socket = link.open(link.forward_to_target(0));
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let line = link.core.wait_log("could not connect to the target of a forward");
    assert!(line["error"].as_str().unwrap().contains("Connection refused"), "{line}");
    let line = link.edge.wait_log("the other side refused a forwarded connection");
    let expected = format!("could not connect to {closed}: Connection refused");
    assert!(line["error"].as_str().unwrap().starts_with(&expected), "{line}");

    let paths = [format!("127.0.0.3=127.0.0.1:{}", link.port)];
    let targets = ["127.0.0.1:1".to_owned()];
    let edge = LoggedProcess::spawn("edge", &mut link.sites.connect(&paths, &targets));
    let forward = super::sites::wait_forwards(&edge, "forwarding connections", 1)[0];
    let mut socket = link.open(forward);
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let line = link.core.wait_log("refused to forward to a target that is not allowed");
    assert!(line["to"].as_str().unwrap().contains("127.0.0.1:1"), "{line}");
    let line = edge.wait_log("the other side refused a forwarded connection");
    let expected = "the other side does not allow 127.0.0.1:1; start it with --allow 127.0.0.1:1";
    assert_eq!(line["error"], expected);
}

#[test]
fn a_core_that_restarts_ends_the_connections_and_gets_new_ones() {
    let mut link = TestLink::on_loopback("restart", &LinkOptions::default());
    link.wait_active(2);
    let mut connection = link.connect(ForwardLane::Stream);
    assert_eq!(link.core.terminate(), Some(0));
    assert_eq!(connection.edge.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    link.edge.wait_log("the session of the link ended and its flows were reset");
    let target = link.target();
    let address = format!("127.0.0.1:{}", link.port);
    link.core = LoggedProcess::spawn("core", &mut link.sites.listen(&address, &[target]));
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Bonded);
    assert_eq!(Transfer::start(&connection.edge, &connection.core, 100_000).finish(), 100_000);
}

#[test]
fn a_side_that_stops_lets_open_connections_end_and_accepts_no_new_ones() {
    let mut link = TestLink::on_loopback("drain", &LinkOptions::default());
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Stream);
    link.edge.signal();
    link.edge.wait_log("waiting for open connections to end");
    let refused = TcpStream::connect(link.forward(ForwardLane::Stream)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(Transfer::start(&connection.edge, &connection.core, 100_000).finish(), 100_000);
    drop(connection);
    assert_eq!(link.edge.wait(), Some(0));
}

#[test]
fn an_edge_that_ends_resets_its_connections_at_the_core() {
    let mut link = TestLink::on_loopback("edge-ends", &LinkOptions::default());
    link.wait_active(2);
    let mut connection = link.connect(ForwardLane::Stream);
    assert_eq!(link.edge.terminate(), Some(0));
    assert_eq!(connection.core.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    wait_for("end of the session", || {
        let status = link.status(LinkSide::Core, &[]).ok();
        status.contains("no session").then_some(())
    });
}
