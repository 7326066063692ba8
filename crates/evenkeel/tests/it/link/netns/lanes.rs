//! The bonded lane without a path that is not worth its delay.

use evenkeel_test_network::{PathSpec, network_or_skip};

use crate::link::process::wait_for;
use crate::link::sites::LinkSide;
use crate::link::test_link::{ForwardLane, LinkOptions, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

#[test]
fn a_slow_lossy_path_leaves_the_bonded_lane_and_returns_when_it_is_well() {
    let good = PathSpec::new(15.0, ms(10));
    let bad = PathSpec::new(0.6, ms(300)).with_loss(0.03);
    // No trial disturbs the test: the path returns because its round trip has changed.
    let config = "[link]\nbonded_backoff_min_ms = 300000\n";
    let options = LinkOptions { config, ..LinkOptions::default() };
    let link = TestLink::with("bad-path", network_or_skip!(&[good, bad]), &options);
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Bonded);
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    let session = link.wait_session(LinkSide::Edge, "path out of the bonded lane", |session| {
        session["paths"][1]["bonded"] == false
    });
    assert_eq!(session["paths"][0]["bonded"], true, "{session:#}");
    let log = link.edge.wait_log("left the bonded lane: it adds");
    assert_eq!(log["path"], session["paths"][1]["name"], "{log}");
    // If the first path falls silent on a busy machine, the second takes over for a moment.
    wait_for("table", || link.status(LinkSide::Edge, &[]).ok().contains("  out  ").then_some(()));
    wait_for("metrics", || {
        let page = link.metrics(LinkSide::Edge);
        let value = |name: &str| page.value(&format!("evenkeel_link_{name}{{link=\"connect\"}}")) as u64;
        (value("bonded_paths") == 1 && value("bonded_exits_total") > 0).then_some(())
    });
    let sent = || link.session(LinkSide::Edge)["paths"][1]["sent_bytes"].as_u64().unwrap();
    wait_for("transfer without the path", || {
        let before = sent();
        transfer.wait_progress(MB);
        (sent() == before).then_some(())
    });

    link.network().path(2).set(good);
    link.edge.wait_log("returned to the bonded lane");
    let before = sent();
    wait_for("data on the path", || (before + MB < sent()).then_some(()));
    transfer.stop();
}
