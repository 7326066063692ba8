//! Paths over chains of relays, on loopback.

use std::net::UdpSocket;
use std::slice;

use serde_json::{Value, json};

use super::MB;
use super::process::LoggedProcess;
use super::sites::{LinkSide, Sites, create_keys, wait_port};
use super::test_link::{Connection, ForwardLane, LinkOptions, TestLink};
use super::test_relay::{AllowedNext, RelaySpec, TestRelay, relay_command};
use super::transfer::Transfer;
use crate::test_dir::CommandOutput;

const CHAIN_OF_THREE: &str = "[link]\nhops_min = 3\nhops_max = 3\n";

fn start(name: &str, relays: &[RelaySpec]) -> TestLink {
    let options = LinkOptions { config: CHAIN_OF_THREE, relays, ..LinkOptions::default() };
    let link = TestLink::on_loopback(name, &options);
    link.wait_active(2);
    link
}

/// Starts an endless transfer to the core in each lane.
fn start_transfers(link: &TestLink) -> (Vec<Connection>, Vec<Transfer>) {
    let connections: Vec<Connection> =
        [ForwardLane::Stream, ForwardLane::Bonded].map(|lane| link.connect(lane)).into();
    let transfers = connections
        .iter()
        .map(|connection| Transfer::start_endless(&connection.edge, &connection.core))
        .collect();
    (connections, transfers)
}

/// Returns the relays of a path.
fn route(session: &Value, path: usize) -> Vec<String> {
    let relays = session["paths"][path]["relays"].as_array().cloned().unwrap_or_default();
    relays.iter().map(|relay| relay.as_str().unwrap().to_owned()).collect()
}

fn relay_status(link: &TestLink, index: usize) -> Value {
    let mut command = link.sites.dir.command(&["link", "status", "--json"]);
    command.env("EVENKEEL_RUNTIME_DIR", link.sites.dir.file(&format!("run-relay-{index}-keys")));
    let status: Value = serde_json::from_str(&CommandOutput::new(command.output().unwrap()).ok()).unwrap();
    status[0]["relay"].clone()
}

#[test]
fn a_chain_of_relays_carries_both_lanes_and_is_shown() {
    let mut link = start("chain", &[RelaySpec::LOOPBACK; 3]);
    let connection = link.connect(ForwardLane::Bonded);
    let up = Transfer::start(&connection.edge, &connection.core, 3 * MB);
    let down = Transfer::start(&connection.core, &connection.edge, 3 * MB);
    assert_eq!((up.finish(), down.finish()), (3 * MB, 3 * MB));
    let session = link.session(LinkSide::Edge);
    let mut expected: Vec<String> = link.relays.iter().map(|relay| relay.address.to_string()).collect();
    expected.sort();
    for path in [0, 1] {
        let mut relays = route(&session, path);
        relays.sort();
        assert_eq!(relays, expected);
        assert_eq!(session["paths"][path]["hops"], 3);
    }
    // The core sees the last relay only.
    assert_eq!(link.session(LinkSide::Core)["paths"][0]["hops"], Value::Null);
    let text = link.status(LinkSide::Edge, &[]).ok();
    assert!(text.contains("HOPS"), "{text}");
    let metrics = link.metrics(LinkSide::Edge);
    let series = format!("evenkeel_link_hops{{link=\"connect\",path=\"127.0.0.1=127.0.0.1:{}\"}}", link.port);
    assert!((metrics.value(&series) - 3.0).abs() < 0.1);

    let status = relay_status(&link, 0);
    assert_eq!(status["peers"][0]["fingerprint"], json!(link.sites.edge_key));
    assert!(status["peers"][0]["associations"].as_u64() >= Some(2), "{status}");
    for direction in ["to_next", "to_client"] {
        assert!(status[direction]["bytes"].as_u64() > Some(3 * MB), "{status}");
    }
    let relay = &mut link.relays[0].process;
    relay.signal();
    assert_eq!(relay.wait(), Some(0));
}

#[test]
fn a_relay_killed_in_the_middle_of_transfers_costs_no_byte_and_its_path_takes_another_route() {
    let mut link = start("relay-killed", &[RelaySpec::LOOPBACK; 6]);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    // The paths have no relay in common.
    let killed = route(&link.session(LinkSide::Edge), 0)[1].clone();
    let index = link.relays.iter().position(|relay| relay.address.to_string() == killed).unwrap();
    drop(link.relays.remove(index));
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    link.wait_session(LinkSide::Edge, "path over another route", |session| {
        let route = route(session, 0);
        route.len() == 3 && !route.contains(&killed)
    });
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    Transfer::stop_all(transfers);
    link.wait_active(2);
}

#[test]
fn with_a_single_path_connections_wait_for_another_route_and_continue() {
    let relays = [RelaySpec::LOOPBACK; 4];
    let options = LinkOptions { config: CHAIN_OF_THREE, relays: &relays, ..LinkOptions::default() };
    let mut link = TestLink::with_one_path("single-route", &options);
    link.wait_active(1);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    let killed = route(&link.session(LinkSide::Edge), 0)[0].clone();
    link.relays.retain(|relay| relay.address.to_string() != killed);
    link.wait_session(LinkSide::Edge, "another route", |session| {
        let route = route(session, 0);
        route.len() == 3 && !route.contains(&killed)
    });
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    Transfer::stop_all(transfers);
}

#[test]
fn a_chain_whose_relays_allow_only_one_order_is_found() {
    let next = |next| RelaySpec { next, ..RelaySpec::LOOPBACK };
    let relays = [next(AllowedNext::Later), next(AllowedNext::Later), next(AllowedNext::Core)];
    let link = start("order", &relays);
    let addresses: Vec<String> = link.relays.iter().map(|relay| relay.address.to_string()).collect();
    let order = [addresses[0].clone(), addresses[1].clone(), addresses[2].clone()];
    for path in [0, 1] {
        assert_eq!(route(&link.session(LinkSide::Edge), path), order);
    }
}

/// A relay and a core on loopback, without an edge.
struct RelayOnly {
    sites: Sites,
    core: LoggedProcess,
    relay: TestRelay,
}

impl RelayOnly {
    /// Starts a relay that may forward to `next`, and be used by `peer`; by default the core and the edge.
    fn start(name: &str, next: Option<&str>, peer: Option<&str>) -> Self {
        let sites = Sites::new(name, "[link]\nhops_min = 1\nhops_max = 1\n");
        let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
        let own = format!("127.0.0.1:{}", wait_port(&core));
        let key = create_keys(&sites.dir, "relay-keys");
        let next = [next.unwrap_or(&own).to_owned()];
        let peer = peer.unwrap_or(&sites.edge_key).to_owned();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let mut command = relay_command(&sites, "relay-keys", any_port, &next, &peer);
        let process = LoggedProcess::spawn("relay", &mut command);
        let address = process.wait_log("relaying the packets of links")["address"].clone();
        let address = address.as_str().unwrap().parse().unwrap();
        let relay = TestRelay { process, address, key };
        Self { sites, core, relay }
    }

    /// Starts an edge over relays; returns the error that it logs.
    fn connect_error(&self, relay: &str) -> String {
        let path = format!("127.0.0.1:{}", wait_port(&self.core));
        let mut command = self.sites.connect(slice::from_ref(&path), &[]);
        command.args(["--relay", relay]);
        let edge = LoggedProcess::spawn("edge", &mut command);
        edge.wait_log("could not connect a path")["error"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_relay_that_does_not_know_our_key_is_named_with_the_remedy() {
    let stranger = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let test = RelayOnly::start("relay-peer", None, Some(stranger));
    let error = test.connect_error(&test.relay.argument());
    let expected = format!(
        "relay {} (hop 1 of 1) does not know our key; start it with --peer {}",
        test.relay.address, test.sites.edge_key
    );
    assert_eq!(error, expected);
    let line = test.relay.process.wait_log("the relay refused a packet");
    assert_eq!(line["reason"], "the key is not among those of --peer");
}

#[test]
fn a_relay_that_may_not_forward_to_the_listening_side_is_named_with_the_remedy() {
    let test = RelayOnly::start("relay-next", Some("127.0.0.1:1"), None);
    let error = test.connect_error(&test.relay.argument());
    let next = format!("127.0.0.1:{}", wait_port(&test.core));
    let expected = format!("(hop 1 of 1) may not forward to {next}; start it with --next {next}");
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn a_relay_with_another_key_than_configured_is_named_with_both() {
    let test = RelayOnly::start("relay-key", None, None);
    let other = create_keys(&test.sites.dir, "other-keys");
    let error = test.connect_error(&format!("{}={other}", test.relay.address));
    let expected = format!("has the key {}, but {other} is configured", test.relay.key);
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn a_relay_that_does_not_answer_is_named() {
    let test = RelayOnly::start("relay-silent", None, None);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = test.connect_error(&format!("{address}={}", test.relay.key));
    let expected = format!("relay {address} (hop 1 of 1) does not answer within 3s");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_listening_side_that_does_not_answer_over_relays_is_reported_with_them() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let next = silent.local_addr().unwrap().to_string();
    let test = RelayOnly::start("relay-no-core", Some(&next), None);
    let mut command = test.sites.connect(slice::from_ref(&next), &[]);
    command.args(["--relay", &test.relay.argument()]);
    let edge = LoggedProcess::spawn("edge", &mut command);
    let error = edge.wait_log("could not connect a path")["error"].as_str().unwrap().to_owned();
    let relay = test.relay.address;
    let expected = format!(
        "no answer from {next} over relays {relay} within 5s; check that it runs and that UDP from {relay} reaches it"
    );
    assert_eq!(error, expected);
}

#[test]
fn a_relay_refuses_garbage_and_goes_on() {
    let test = RelayOnly::start("relay-garbage", None, None);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in (0..2_000).step_by(50) {
        socket.send_to(&vec![0x5a; len], test.relay.address).unwrap();
    }
    test.relay.process.wait_log("the relay refused a packet");
    let path = format!("127.0.0.1:{}", wait_port(&test.core));
    let mut command = test.sites.connect(slice::from_ref(&path), &[]);
    command.args(["--relay", &test.relay.argument()]);
    let edge = LoggedProcess::spawn("edge", &mut command);
    let line = edge.wait_log("path connected");
    assert_eq!(line["route"], test.relay.address.to_string());
    assert_eq!(test.relay.process.logged("the relay refused a packet").len(), 1);
    // Nothing came back to the source of the garbage.
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 2_000]).is_err());
}

#[test]
fn wrong_sets_of_relays_are_errors_at_the_start() {
    let sites = Sites::new("relay-set", "");
    let keys: Vec<String> = ["a", "b", "c"].map(|name| create_keys(&sites.dir, name)).into();
    let failure = |relays: &[String]| {
        let mut command = sites.connect(&["127.0.0.1:1".to_owned()], &[]);
        relays.iter().for_each(|relay| _ = command.args(["--relay", relay]));
        CommandOutput::new(command.output().unwrap()).failed()
    };
    let relay = |port: u16, key: usize| format!("127.0.0.1:{port}={}", keys[key]);
    let error = failure(&[relay(1, 0), relay(2, 1)]);
    assert!(error.contains("a route needs at least 3 relays (hops_min), but the link has 2"), "{error}");
    let error = failure(&[relay(1, 0), relay(2, 1), relay(1, 2)]);
    assert!(error.contains("relay 127.0.0.1:1 has the address or the key of another relay"), "{error}");
    let error = failure(&vec![relay(1, 0); 65]);
    assert!(error.contains("a link has at most 64 relays, not 65"), "{error}");
    let error = failure(&[relay(1, 0), relay(2, 1), relay(3, 1)]);
    assert!(error.contains("relay 127.0.0.1:3 has the address or the key of another relay"), "{error}");
}
