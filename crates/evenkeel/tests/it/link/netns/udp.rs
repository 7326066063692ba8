//! UDP forwards over emulated paths: order, losses and black holes.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use evenkeel_test_network::{Network, PathSpec, network_or_skip};
use serde_json::Value;

use crate::link::ms;
use crate::link::sites::LinkSide;
use crate::link::test_link::{LinkOptions, TestLink};
use crate::link::udp_peer::{EchoServer, answers, numbered, wait_answer};

/// Time between two datagrams.
const PACE: Duration = ms(3);

/// Starts a link with a UDP forward per mode to an echo server in the core.
fn start(name: &str, network: Network, modes: &[&str]) -> (TestLink, Vec<EchoServer>) {
    let bind = || EchoServer::start(network.core().run(|| UdpSocket::bind("127.0.0.1:0").unwrap()));
    let servers: Vec<EchoServer> = modes.iter().map(|_| bind()).collect();
    let settings: Vec<String> = modes.iter().map(|mode| format!(",lane={mode}")).collect();
    let targets: Vec<_> =
        servers.iter().zip(&settings).map(|(server, settings)| (server.address, settings.as_str())).collect();
    let link =
        TestLink::with(name, network, &LinkOptions { udp_targets: &targets, ..LinkOptions::default() });
    link.wait_active(2);
    (link, servers)
}

/// Sends numbered datagrams, and returns the numbers of the answers; `at` is called before each.
fn exchange(client: &UdpSocket, count: u32, at: impl Fn(u32)) -> Vec<u32> {
    thread::scope(|scope| {
        let answers = scope.spawn(|| answers(client));
        for number in 1..=count {
            at(number);
            client.send(&numbered(number, 400)).unwrap();
            thread::sleep(PACE);
        }
        answers.join().unwrap()
    })
}

fn offered(network: &Network) -> Vec<u64> {
    network.paths().iter().map(|path| path.to_core().counters().offered).collect()
}

#[test]
fn a_striped_flow_uses_paths_of_different_delays_and_arrives_in_order_in_both_directions() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(25))];
    let (link, servers) = start("udp-stripe", network_or_skip!(&specs), &["stripe"]);
    let client = link.udp_client(0);
    wait_answer(&client, &numbered(0, 400));
    let before = offered(link.network());
    let answered = exchange(&client, 600, |_| {});
    let arrived: Vec<u32> = servers[0].numbers().into_iter().filter(|number| *number > 0).collect();
    assert!(arrived.is_sorted() && answered.is_sorted(), "{arrived:?}");
    // A busy machine may delay a datagram beyond the deadline.
    assert!(arrived.len() > 590 && answered.len() > 580, "{} and {} of 600", arrived.len(), answered.len());
    let carried: Vec<u64> =
        offered(link.network()).iter().zip(before).map(|(now, before)| now - before).collect();
    eprintln!("packets to the core by path: {carried:?}");
    assert!(carried.iter().all(|packets| 80 < *packets), "{carried:?}");

    let status = link.status(LinkSide::Core, &[]).ok();
    assert!(status.contains("DATAGRAMS RECEIVED") && status.contains("stripe"), "{status}");
    let page = link.metrics(LinkSide::Core);
    assert!(page.value("nyx_multipath_reorder_delay_seconds_count") > 0.0, "datagrams waited: {page:?}");
    let received: f64 = [1, 2]
        .map(|number| {
            let path = link.network().path(number);
            let name = format!("{}={}:{}", path.interface(), path.core_address(), link.port);
            page.value(&format!("evenkeel_link_datagram_received_total{{link=\"listen\",path=\"{name}\"}}"))
        })
        .iter()
        .sum();
    assert!(received >= 600.0, "{received}");
}

#[test]
fn a_duplicated_flow_survives_losses_that_a_pinned_flow_suffers() {
    let lossy = PathSpec::new(10.0, ms(5)).with_loss(0.05);
    let (link, servers) = start("udp-loss", network_or_skip!(&[lossy, lossy]), &["pin", "duplicate"]);
    let lost = |index: usize| {
        let client = link.udp_client(index);
        wait_answer(&client, &numbered(0, 400));
        exchange(&client, 1_000, |_| {});
        let mut arrived = servers[index].numbers();
        arrived.retain(|number| *number > 0);
        let count = arrived.len();
        arrived.sort_unstable();
        arrived.dedup();
        assert_eq!(arrived.len(), count, "a datagram arrived twice");
        1_000 - count
    };
    let pinned = lost(0);
    let duplicated = lost(1);
    eprintln!("of 1000 datagrams at 5 % loss per path: pin lost {pinned}, duplicate {duplicated}");
    assert!((20..=120).contains(&pinned), "{pinned}");
    assert!(4 * duplicated < pinned, "pin lost {pinned}, duplicate {duplicated}");
    let core = link.session(LinkSide::Core);
    let flow = |lane: &str| {
        let flows = core["flows"].as_array().unwrap();
        flows.iter().find(|flow| flow["lane"] == lane).unwrap()["datagrams"].clone()
    };
    assert!(flow("duplicate")["duplicates"].as_u64() > Some(800), "{core:#}");
    assert_eq!(flow("pin")["lost"], Value::from(pinned), "{core:#}");
}

#[test]
fn a_black_hole_costs_a_duplicated_flow_no_datagram() {
    let specs = [PathSpec::new(10.0, ms(5)), PathSpec::new(10.0, ms(15))];
    let (link, servers) = start("udp-hole", network_or_skip!(&specs), &["duplicate"]);
    let client = link.udp_client(0);
    wait_answer(&client, &numbered(0, 400));
    let network = link.network();
    let answered = exchange(&client, 600, |number| match number {
        100 => network.path(1).black_hole(true),
        400 => network.path(1).black_hole(false),
        _ => {}
    });
    let mut arrived = servers[0].numbers();
    arrived.retain(|number| *number > 0);
    assert_eq!((arrived.len(), answered.len()), (600, 600));
}
