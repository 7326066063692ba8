//! Metrics of a link process move with its paths.

use evenkeel_test_network::{PathSpec, network_or_skip};
use serde_json::json;

use crate::link::process::wait_for;
use crate::link::sites::LinkSide;
use crate::link::test_link::{ForwardLane, MetricsPage, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

#[test]
fn the_metrics_of_both_sides_have_the_names_and_types_of_the_specification() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(60))];
    let link = TestLink::start("metric-names", network_or_skip!(&specs));
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Bonded);
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    transfer.wait_progress(2 * MB);
    for side in [LinkSide::Edge, LinkSide::Core] {
        let MetricsPage(page) = link.metrics(side);
        for (name, kind) in [
            ("nyx_multipath_path_rtt_seconds", "histogram"),
            ("nyx_multipath_path_activated_total", "counter"),
            ("nyx_multipath_path_deactivated_total", "counter"),
            ("nyx_multipath_active_paths", "gauge"),
            ("nyx_wrr_weight_ratio_deviation", "gauge"),
            ("nyx_multipath_reorder_delay_seconds", "histogram"),
            ("nyx_multipath_reorder_buffer_utilization", "gauge"),
        ] {
            assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name} of {side:?}: {page}");
            let has_value = |line: &str| line.starts_with(name) && !line.starts_with('#');
            assert!(page.lines().any(has_value), "{name} of {side:?}: {page}");
        }
    }
    // The chunks of the fast path wait at the core for those of the slow one.
    let page = link.metrics(LinkSide::Core);
    assert!(page.value("nyx_multipath_reorder_delay_seconds_count") > 0.0, "{page:?}");
    assert!(page.value("nyx_multipath_reorder_delay_seconds_sum") > 0.0, "{page:?}");
    let flow = link.session(LinkSide::Core)["flows"][0]["flow"].clone();
    let utilization = format!("nyx_multipath_reorder_buffer_utilization{{flow=\"listen/{flow}\"}}");
    wait_for("data in the reorder buffer", || {
        (link.metrics(LinkSide::Core).value(&utilization) > 0.0).then_some(())
    });
    transfer.stop();
    drop(connection);
    link.wait_session(LinkSide::Core, "end of the flow", |session| session["flows"] == json!([]));
    let MetricsPage(page) = link.metrics(LinkSide::Core);
    assert!(!page.contains(&utilization), "{page}");
}

#[test]
fn metrics_follow_the_delay_and_the_loss_of_paths() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(10))];
    let link = TestLink::start("metric-changes", network_or_skip!(&specs));
    link.wait_active(2);
    let page = link.metrics(LinkSide::Edge);
    assert_eq!(counts(&page), [2, 0, 2], "{page:?}");
    let slow = |page: &MetricsPage| {
        page.value("nyx_multipath_path_rtt_seconds_count")
            - page.value("nyx_multipath_path_rtt_seconds_bucket{le=\"0.1\"}")
    };
    let before = slow(&page);
    link.network().path(2).set(PathSpec::new(10.0, ms(70)));
    let wait = |what: &str, is_met: &dyn Fn(&MetricsPage) -> bool| {
        wait_for(what, || is_met(&link.metrics(LinkSide::Edge)).then_some(()));
    };
    wait("longer round trips", &|page| slow(page) > before + 3.0);

    link.network().path(1).black_hole(true);
    wait("deactivated path", &|page| counts(page) == [2, 1, 1]);
    link.network().path(1).black_hole(false);
    wait("activated path", &|page| counts(page) == [3, 1, 2]);
}

/// Returns the numbers of activations, deactivations and active paths.
fn counts(page: &MetricsPage) -> [u64; 3] {
    let names = ["path_activated_total", "path_deactivated_total", "active_paths"];
    names.map(|name| page.value(&format!("nyx_multipath_{name}")) as u64)
}
