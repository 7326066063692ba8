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
    // Only a round trip that is more than twice as long counts as worse, whatever else the machine does.
    let config = "[link]\npaths_active_max = 2\nprune_interval_ms = 1000\nprune_margin = 1.0\n";
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
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    assert_eq!(link.session(LinkSide::Edge)["paths"][candidate]["sent_bytes"], 0);
    assert!(link.status(LinkSide::Edge, &[]).ok().contains("CANDIDATE"));

    link.network().path(slow + 1).set(PathSpec::new(10.0, ms(200)));
    let session = link.wait_session(LinkSide::Edge, "swap", |session| session["path_swaps"]["slower"] == 1);
    assert_eq!(paths_with(&session, "candidate"), [slow], "{session:#}");
    // Each side decides about the paths on which it sends.
    link.wait_session(LinkSide::Core, "swap", |session| paths_with(session, "candidate") == [slow]);
    let log = link.edge.wait_log("candidate replaces an active path: the p95 of");
    assert_eq!(
        [&log["path"], &log["replaced"]],
        [candidate, slow].map(|path| &session["paths"][path]["name"])
    );
    let page = link.metrics(LinkSide::Edge);
    assert_eq!(page.value("evenkeel_link_path_swaps_total{link=\"connect\",cause=\"slower\"}"), 1.0);
    assert_eq!(page.value("evenkeel_link_candidate_paths{link=\"connect\"}"), 1.0);
    assert_eq!(page.value("nyx_multipath_active_paths"), 2.0);
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
