//! Routes over relays whose delays differ.

use std::thread;

use evenkeel_test_network::{PathSpec, network_or_skip};
use serde_json::Value;

use crate::link::sites::LinkSide;
use crate::link::test_link::{ForwardLane, LinkOptions, TestLink};
use crate::link::test_relay::{AllowedNext, RelaySpec};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

fn route(session: &Value) -> Vec<String> {
    let relays = session["paths"][0]["relays"].as_array().cloned().unwrap_or_default();
    relays.iter().map(|relay| relay.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_better_route_replaces_the_current_one_under_load_without_losing_a_byte() {
    let relay = |ip| RelaySpec { side: LinkSide::Core, ip, next: AllowedNext::Core };
    let options = LinkOptions {
        config: "[link]\nhops_min = 1\nhops_max = 1\nroute_probe_ms = 300\n",
        relays: &[relay("10.0.1.2"), relay("10.0.2.2")],
        ..LinkOptions::default()
    };
    let network = network_or_skip!(&[PathSpec::new(20.0, ms(5)), PathSpec::new(20.0, ms(5))]);
    let link = TestLink::over_one_path("swap", network, "10.0.1.2", &options);
    link.wait_active(1);
    let before = route(&link.session(LinkSide::Edge));
    let slow = if before[0].starts_with("10.0.1.2:") { 1 } else { 2 };
    let connections = [ForwardLane::Stream, ForwardLane::Bonded].map(|lane| link.connect(lane));
    let transfers: Vec<Transfer> = connections
        .iter()
        .map(|connection| Transfer::start_endless(&connection.edge, &connection.core))
        .collect();
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB / 4));
    // In small steps, because a sudden change would look like a path that has fallen silent.
    for one_way_ms in (5..=75).step_by(2) {
        link.network().path(slow).set(PathSpec::new(20.0, ms(one_way_ms)));
        thread::sleep(ms(30));
    }
    link.wait_session(LinkSide::Edge, "another route", |session| {
        let route = route(session);
        !route.is_empty() && route != before
    });
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    Transfer::stop_all(transfers);
    let line = link.edge.wait_log("route swapped for a better one");
    assert_eq!(line["from"], before[0], "{line}");
    assert!(line["rtt_ms"].as_f64() < line["rtt_ms_before"].as_f64(), "{line}");
    let metrics = link.metrics(LinkSide::Edge);
    assert!(metrics.value("evenkeel_link_route_swaps_total{link=\"connect\"}") >= 1.0);
    // The path was never without a connection.
    assert_eq!(link.session(LinkSide::Edge)["paths"][0]["deactivated"], 0);
}

#[test]
fn the_hop_rule_shortens_a_route_that_performs_well() {
    // Over both relays, packets cross the emulated path three times: to the core, back, and to the core again.
    let options = LinkOptions {
        config: "[link]\nhops_min = 1\nhops_max = 2\nhops_start = 2\nroute_probe_ms = 300\n",
        relays: &[
            RelaySpec { side: LinkSide::Core, ip: "10.0.1.2", next: AllowedNext::Any },
            RelaySpec { side: LinkSide::Edge, ip: "10.0.1.1", next: AllowedNext::Core },
        ],
        ..LinkOptions::default()
    };
    let link = TestLink::over_one_path(
        "hop-rule",
        network_or_skip!(&[PathSpec::new(10.0, ms(5))]),
        "10.0.1.2",
        &options,
    );
    link.wait_active(1);
    link.edge.wait_log("route swapped for a better one");
    let first = link.edge.wait_log("path connected")["route"].clone();
    assert_eq!(first.as_str().unwrap().split(", ").count(), 2, "{first}");
    link.wait_session(LinkSide::Edge, "a route with one hop", |session| session["paths"][0]["hops"] == 1);
}
