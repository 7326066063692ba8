//! UDP forwards over loopback: clients, sizes, refusals and idle flows.

use std::net::UdpSocket;

use serde_json::{Value, json};

use super::process::wait_for;
use super::sites::LinkSide;
use super::test_link::{LinkOptions, TestLink};
use super::udp_peer::{EchoServer, numbered, wait_answer};

fn server() -> EchoServer {
    EchoServer::start(UdpSocket::bind("127.0.0.1:0").unwrap())
}

fn start(name: &str, server: &EchoServer, settings: &str) -> TestLink {
    let udp_targets = &[(server.address, settings)];
    TestLink::on_loopback(name, &LinkOptions { udp_targets, ..LinkOptions::default() })
}

#[test]
fn datagrams_of_any_length_are_answered_to_the_client_that_sent_them() {
    for (name, settings) in [("pin", ""), ("stripe", ",lane=stripe"), ("duplicate", ",lane=duplicate")] {
        let server = server();
        let link = start(&format!("udp-{name}"), &server, settings);
        link.wait_active(2);
        let clients = [link.udp_client(0), link.udp_client(0)];
        for (number, client) in clients.iter().enumerate() {
            // DNS, QUIC, WireGuard, a jumbo frame and the longest datagram.
            for len in [4, 1_232, 1_350, 1_452, 9_000, 65_507] {
                wait_answer(client, &numbered(number as u32, len));
            }
        }
        assert_eq!(server.clients(), 2, "{name}: one socket per client");
        let session = link.session(LinkSide::Edge);
        assert_eq!(session["flows"].as_array().unwrap().len(), 2, "{session:#}");
        assert_eq!(session["flows"][0]["lane"], name);
    }
}

#[test]
fn a_target_that_is_allowed_for_tcp_is_refused_for_udp() {
    let link = TestLink::on_loopback("udp-refused", &LinkOptions::default());
    let target = link.target();
    let forward = format!("udp:127.0.0.1:0={target}");
    let path = format!("127.0.0.1:{}", link.port);
    let args = [
        "connect",
        "--keys",
        "edge-keys",
        "--peer",
        &link.sites.core_key,
        "--path",
        &path,
        "--forward",
        &forward,
    ];
    let mut command = link.sites.command(LinkSide::Edge, &args);
    let edge = super::process::LoggedProcess::spawn("second edge", &mut command);
    let address = super::sites::wait_forwards(&edge, "forwarding UDP datagrams", 1)[0];
    let client = link.udp_client_of(address);
    let line = wait_for("refusal", || {
        client.send(b"query").unwrap();
        edge.logged("could not forward UDP datagrams").into_iter().next()
    });
    let expected = format!("the other side does not allow udp:{target}; start it with --allow udp:{target}");
    assert_eq!(line["error"], json!(expected));
    assert_eq!(edge.logged("could not forward UDP datagrams").len(), 1);
}

#[test]
fn a_target_that_does_not_listen_yet_ends_no_flow() {
    let reserved = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let udp_targets = &[(address, "")];
    let link =
        TestLink::on_loopback("udp-unreachable", &LinkOptions { udp_targets, ..LinkOptions::default() });
    link.wait_active(2);
    let client = link.udp_client(0);
    let flow = |session: &Value| session["flows"][0]["flow"].clone();
    for _ in 0..5 {
        client.send(b"nobody listens").unwrap();
    }
    let arrived = |session: &Value| session["flows"][0]["datagrams"]["received"].as_u64() >= Some(5);
    let before = link.wait_session(LinkSide::Core, "datagrams", arrived);
    let _server = EchoServer::start(UdpSocket::bind(address).unwrap());
    wait_answer(&client, &numbered(1, 100));
    assert_eq!(flow(&link.session(LinkSide::Core)), flow(&before), "the flow is the same");
}

#[test]
fn an_idle_flow_ends_on_both_sides_and_the_next_datagram_opens_another() {
    let server = server();
    let link = start("udp-idle", &server, ",idle=1");
    link.wait_active(2);
    let client = link.udp_client(0);
    wait_answer(&client, &numbered(1, 100));
    for side in [LinkSide::Edge, LinkSide::Core] {
        link.wait_session(side, "end of the flow", |session| session["flows"] == json!([]));
    }
    wait_answer(&client, &numbered(2, 100));
    let totals = link.session(LinkSide::Core)["datagrams"].clone();
    assert!(totals["received"].as_u64() >= Some(2), "ended flows count too: {totals}");
}
