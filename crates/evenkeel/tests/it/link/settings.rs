//! Settings of `[link]` take effect.

use std::io::{Read, Write};
use std::net::Shutdown;

use serde_json::{Value, json};

use super::sites::LinkSide;
use super::test_link::{ForwardLane, LinkOptions, TestLink};

fn start(name: &str, config: &str) -> TestLink {
    let link = TestLink::on_loopback(name, &LinkOptions { config, ..LinkOptions::default() });
    link.wait_active(2);
    link
}

/// Waits until both paths have this weight.
fn wait_weights(link: &TestLink, weight: u32) {
    link.wait_session(LinkSide::Edge, "weights", |session| {
        let paths = session["paths"].as_array().unwrap();
        paths.iter().all(|path| path["weight"] == weight)
    });
}

fn exchange(link: &TestLink) {
    let mut connection = link.connect(ForwardLane::Stream);
    connection.edge.write_all(b"ping").unwrap();
    connection.edge.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    connection.core.read_to_string(&mut text).unwrap();
    assert_eq!(text, "ping");
}

#[test]
fn the_weight_scale_is_the_weight_of_a_path_with_a_round_trip_of_a_millisecond() {
    // A round trip on a busy machine takes longer.
    let link = start("scale", "[link]\nweight_scale = 40\n");
    link.wait_session(LinkSide::Edge, "weights", |session| {
        let is_scaled = |path: &Value| {
            let expected = (40.0 / path["rtt_ms"].as_f64().unwrap().max(1.0)).round();
            path["weight"].as_f64() == Some(expected)
        };
        session["paths"].as_array().unwrap().iter().all(is_scaled)
    });
}

#[test]
fn the_weight_cap_is_the_largest_weight() {
    let link = start("cap", "[link]\nweight_cap = 3\n");
    wait_weights(&link, 3);
}

#[test]
fn shares_are_reported_after_the_window_of_picks() {
    let link = start("window", "[link]\nweight_cap = 1\nwindow = 6\n");
    let shares = || {
        let paths = link.session(LinkSide::Edge)["paths"].clone();
        [paths[0]["flow_share"].clone(), paths[1]["flow_share"].clone()]
    };
    let before = shares();
    assert!(before.iter().all(Value::is_null), "{before:?}");
    for _ in 0..6 {
        exchange(&link);
    }
    let shares = shares();
    let sum: f64 = shares.iter().map(|share| share["observed"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{shares:?}");
}

#[test]
fn no_more_connections_are_forwarded_than_flows_max() {
    let link = start("flows", "[link]\nflows_max = 2\n");
    let connections = [link.connect(ForwardLane::Stream), link.connect(ForwardLane::Bonded)];
    let mut third = link.open(link.forward(ForwardLane::Stream));
    assert!(third.read(&mut [0]).is_err());
    link.edge.wait_log("could not forward a connection");
    drop(connections);
    link.wait_session(LinkSide::Edge, "end of the flows", |session| session["flows"] == json!([]));
    exchange(&link);
}

#[test]
fn a_variable_of_the_environment_wins_over_the_file() {
    let sites = super::sites::Sites::new("env", "[link]\nweight_cap = 3\n");
    let mut command = sites.dir.command(&["check", "link.toml"]);
    let output = command.env("EVENKEEL_LINK_WEIGHT_CAP", "5").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("weight_cap = 5"), "{text}");
}
