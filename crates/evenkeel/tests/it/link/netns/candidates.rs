//! Candidates replace active paths that become slow or die.

use evenkeel_test_network::{PathSpec, network_or_skip};
use serde_json::Value;

use crate::link::sites::LinkSide;
use crate::link::test_link::{ForwardLane, LinkOptions, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

/// Returns the indexes of the paths with a role.
fn paths_with(session: &Value, role: &str) -> Vec<usize> {
    let paths = session["paths"].as_array().unwrap().iter().enumerate();
    paths.filter(|(_, path)| path["role"] == role).map(|(index, _)| index).collect()
}

#[test]
fn a_candidate_replaces_a_slow_path_and_then_dead_ones_and_no_byte_is_lost() {
    let spec = PathSpec::new(10.0, ms(15));
    // A margin of a half, so that noise of the machine does not count as worse.
    let config = "[link]\npaths_active_max = 2\nprune_interval_ms = 1000\nprune_margin = 0.5\n";
    let options = LinkOptions { config, ..LinkOptions::default() };
    let link = TestLink::with("candidates", network_or_skip!(&[spec; 3]), &options);
    link.wait_active(3);
    let session = link.session(LinkSide::Edge);
    let candidates = paths_with(&session, "candidate");
    let [candidate] = candidates[..] else { panic!("{session:#}") };
    let slow = paths_with(&session, "active")[0];
    let bonded = link.connect(ForwardLane::Bonded);
    let stream = link.connect(ForwardLane::Stream);
    let transfers = [
        Transfer::start_endless(&bonded.edge, &bonded.core),
        Transfer::start_endless(&stream.core, &stream.edge),
    ];
    // Long enough for ten probes of the candidate.
    transfers.iter().for_each(|transfer| transfer.wait_progress(4 * MB));
    let session = link.session(LinkSide::Edge);
    let sent = |path: usize| session["paths"][path]["sent_bytes"].as_u64().unwrap();
    assert!(10 * sent(candidate) < sent(slow), "{session:#}");
    assert!(link.status(LinkSide::Edge, &[]).ok().contains("CANDIDATE"));

    link.network().path(slow + 1).set(PathSpec::new(10.0, ms(150)));
    // Each side decides about the paths on which it sends.
    let is_replaced = |session: &Value| paths_with(session, "candidate") == [slow];
    let session = link.wait_session(LinkSide::Edge, "swap", is_replaced);
    link.wait_session(LinkSide::Core, "swap", is_replaced);
    let name = &session["paths"][slow]["name"];
    let logged = link.edge.logged("candidate replaces an active path: the p95 of");
    assert!(logged.iter().any(|line| line["replaced"] == *name), "{logged:?}");
    let page = link.metrics(LinkSide::Edge);
    assert!(page.value("evenkeel_link_path_swaps_total{link=\"connect\",cause=\"slower\"}") > 0.0);
    let counts = ["evenkeel_link_candidate_paths{link=\"connect\"}", "nyx_multipath_active_paths"];
    assert_eq!(counts.map(|name| page.value(name) as u64), [1, 2], "{page:?}");
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    assert_ne!(link.session(LinkSide::Edge)["paths"][candidate]["sent_bytes"], 0);

    for path in paths_with(&session, "active") {
        link.network().path(path + 1).black_hole(true);
    }
    let session = link
        .wait_session(LinkSide::Edge, "takeover", |session| paths_with(session, "active").contains(&slow));
    assert_ne!(session["path_swaps"]["unusable"], 0, "{session:#}");
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB / 4));
    Transfer::stop_all(transfers);
}
