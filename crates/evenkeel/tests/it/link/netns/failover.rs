//! Transfers continue while paths fail, flap, limp, come and go.

use std::process::Command;
use std::thread;
use std::time::Duration;

use evenkeel_test_network::{PathSpec, network_or_skip};
use serde_json::Value;

use crate::link::sites::LinkSide;
use crate::link::test_link::{Connection, ForwardLane, LinkOptions, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

/// Generous limit of a stall: fail-over within 1 s is tested in virtual time.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Set to let the tests of lasting faults run for a minute.
const LONG_VARIABLE: &str = "EVENKEEL_TEST_LONG";

/// Returns the duration of a lasting fault.
fn fault_time() -> Duration {
    Duration::from_secs(if std::env::var_os(LONG_VARIABLE).is_some() { 60 } else { 20 })
}

/// Returns the status of the edge's path with this number.
fn path_status(link: &TestLink, number: usize) -> Value {
    link.session(LinkSide::Edge)["paths"][number - 1].clone()
}

/// Starts a bonded transfer to the core and one of the stream lane to the edge.
fn start_transfers(link: &TestLink) -> (Vec<Connection>, [Transfer; 2]) {
    let bonded = link.connect(ForwardLane::Bonded);
    let stream = link.connect(ForwardLane::Stream);
    let transfers = [
        Transfer::start_endless(&bonded.edge, &bonded.core),
        Transfer::start_endless(&stream.core, &stream.edge),
    ];
    (vec![bonded, stream], transfers)
}

/// Watches the transfers for a time; each must progress.
#[track_caller]
fn assert_progress(transfers: &[Transfer], span: Duration) {
    let stalls: Vec<Duration> = thread::scope(|scope| {
        let watches: Vec<_> =
            transfers.iter().map(|transfer| scope.spawn(|| transfer.longest_stall(span))).collect();
        watches.into_iter().map(|watch| watch.join().unwrap()).collect()
    });
    eprintln!("longest stalls: {stalls:?}");
    assert!(stalls.iter().all(|stall| *stall < STALL_MAX), "{stalls:?}");
}

#[test]
fn transfers_continue_when_any_one_path_is_black_holed() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20)), PathSpec::new(10.0, ms(50))];
    let link = TestLink::start("failover", network_or_skip!(&specs));
    link.wait_active(3);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    for path in link.network().paths() {
        path.black_hole(true);
        assert_progress(&transfers, Duration::from_secs(3));
        transfers.iter().for_each(|transfer| transfer.wait_progress(MB / 2));
        path.black_hole(false);
        link.wait_active(3);
    }
    Transfer::stop_all(transfers);
}

#[test]
fn redundant_connections_lose_nothing_and_go_on_when_either_path_is_black_holed() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20))];
    let link = TestLink::start("redundant", network_or_skip!(&specs));
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Redundant);
    let transfers = [
        Transfer::start_endless(&connection.edge, &connection.core),
        Transfer::start_endless(&connection.core, &connection.edge),
    ];
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB / 2));
    for number in [1, 2] {
        let path = link.network().path(number);
        path.black_hole(true);
        transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
        assert!(path.to_core().counters().black_holed > 0);
        path.black_hole(false);
        link.wait_active(2);
    }
    Transfer::stop_all(transfers);
    let core = link.session(LinkSide::Core);
    assert!(core["duplicate_bytes"].as_u64() > Some(MB), "each chunk arrives twice: {core:#}");
}

#[test]
fn transfers_continue_while_a_path_flaps_every_two_seconds() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20))];
    let link = TestLink::start("flapping", network_or_skip!(&specs));
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    let span = fault_time();
    thread::scope(|scope| {
        scope.spawn(|| {
            for half_period in 0..span.as_secs() / 2 {
                link.network().path(1).black_hole(half_period % 2 == 0);
                thread::sleep(Duration::from_secs(2));
            }
        });
        assert_progress(&transfers, span);
    });
    link.network().path(1).black_hole(false);
    link.wait_active(2);
    Transfer::stop_all(transfers);
}

#[test]
fn a_path_whose_rate_collapses_degrades_and_transfers_continue() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20))];
    let link = TestLink::start("limping", network_or_skip!(&specs));
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    link.network().path(1).set(PathSpec::new(0.05, ms(5)));
    assert_progress(&transfers, Duration::from_secs(6));
    link.wait_session(LinkSide::Edge, "degraded path", |session| session["paths"][0]["state"] != "ACTIVE");
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    Transfer::stop_all(transfers);
}

#[test]
fn a_path_that_limps_from_the_start_does_not_stall_transfers() {
    let specs = [PathSpec::new(0.05, ms(5)), PathSpec::new(10.0, ms(20))];
    let link = TestLink::start("limping-start", network_or_skip!(&specs));
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    assert_progress(&transfers, Duration::from_secs(8));
    Transfer::stop_all(transfers);
}

#[test]
fn a_path_whose_round_trip_climbs_degrades_and_transfers_continue() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20))];
    let link = TestLink::start("climbing", network_or_skip!(&specs));
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    for one_way_ms in (100..=1_000).step_by(100) {
        link.network().path(1).set(PathSpec::new(10.0, ms(one_way_ms)));
        thread::sleep(ms(200));
    }
    assert_progress(&transfers, Duration::from_secs(3));
    link.wait_session(LinkSide::Edge, "degraded path", |session| session["paths"][0]["state"] != "ACTIVE");
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    Transfer::stop_all(transfers);
}

#[test]
fn a_steady_path_of_800_ms_stays_active_beside_a_fast_one() {
    let specs = [PathSpec::new(10.0, ms(10)), PathSpec::new(5.0, ms(400))];
    let link = TestLink::start("steady", network_or_skip!(&specs));
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    assert_progress(&transfers, fault_time());
    for side in [LinkSide::Edge, LinkSide::Core] {
        let path = link.session(side)["paths"][1].clone();
        assert_eq!(path["state"], "ACTIVE", "{path}");
        assert_eq!((path["activated"].as_u64(), path["deactivated"].as_u64()), (Some(1), Some(0)), "{path}");
        assert!(path["rtt_ms"].as_f64() > Some(750.0), "{path}");
    }
    for process in [&link.edge, &link.core] {
        // The fast path is full, so that a pause of the machine may make it slow compared with itself.
        let is_steady = |line: &Value| line["path"].as_str().is_some_and(|path| path.starts_with("p2="));
        let lines: Vec<_> = process.logged("DEGRADED").into_iter().filter(is_steady).collect();
        assert!(lines.is_empty(), "{lines:?}");
    }
    Transfer::stop_all(transfers);
    // It has carried bonded bytes.
    let carried = link.network().path(2).to_core().counters().delivered_bytes;
    assert!(carried > MB, "{carried}");
}

#[test]
fn paths_that_are_down_at_the_start_or_go_down_are_used_once_they_are_up() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(20)), PathSpec::new(10.0, ms(20))];
    let network = network_or_skip!(&specs);
    network.path(2).down().unwrap();
    network.path(3).black_hole(true);
    let link = TestLink::start("late", network);
    link.wait_active(1);
    let (_connections, transfers) = start_transfers(&link);
    transfers.iter().for_each(|transfer| transfer.wait_progress(MB));
    assert_ne!(path_status(&link, 2)["state"], "ACTIVE");
    assert_ne!(path_status(&link, 3)["state"], "ACTIVE");
    let errors = link.edge.wait_logs("could not connect a path", 2);
    let error_of = |path: &str| {
        let line = errors.iter().find(|line| line["path"].as_str().unwrap().starts_with(path)).unwrap();
        line["error"].as_str().unwrap().to_owned()
    };
    assert!(error_of("p2=").starts_with(&format!("no route to 10.0.2.2:{}", link.port)), "{errors:?}");
    assert!(error_of("p3=").ends_with("the path is down, or UDP is blocked"), "{errors:?}");
    link.network().path(2).up().unwrap();
    link.network().path(3).black_hole(false);
    link.wait_active(3);
    let path = link.network().path(1);
    path.down().unwrap();
    assert_progress(&transfers, Duration::from_secs(3));
    path.up().unwrap();
    link.wait_active(3);
    Transfer::stop_all(transfers);
    for path in link.network().paths() {
        let carried = path.to_core().counters().delivered_bytes;
        assert!(carried > MB / 2, "{carried}");
    }
}

#[test]
fn an_interface_that_is_removed_and_created_again_is_used_again() {
    let network = network_or_skip!(&[PathSpec::new(10.0, ms(5))]);
    let [edge, core] = [network.edge().name().to_owned(), network.core().name().to_owned()];
    let create = || {
        ip(&format!("link add w0 netns {edge} type veth peer name w0 netns {core}"));
        for (namespace, address) in [(&edge, "10.9.0.1/24"), (&core, "10.9.0.2/24")] {
            ip(&format!("-n {namespace} address add {address} dev w0"));
            ip(&format!("-n {namespace} link set w0 up"));
        }
    };
    create();
    let link =
        TestLink::with("replug", network, &LinkOptions { paths: &["w0=10.9.0.2"], ..LinkOptions::default() });
    link.wait_active(2);
    let (_connections, transfers) = start_transfers(&link);
    for _ in 0..2 {
        ip(&format!("-n {edge} link delete w0"));
        assert_progress(&transfers, Duration::from_secs(3));
        assert_ne!(path_status(&link, 2)["state"], "ACTIVE");
        create();
        link.wait_active(2);
    }
    Transfer::stop_all(transfers);
}

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {args}: {output:?}");
}
