//! Shares of the paths through a live link, as the specification of weighted round robin tests them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use evenkeel_test_network::{Namespace, Network, PathSpec, network_or_skip};
use serde_json::Value;

use crate::link::ms;
use crate::link::process::wait_for;
use crate::link::sites::LinkSide;
use crate::link::test_link::{LinkOptions, TestLink};

/// Bytes that a short connection sends, so that they outweigh probes and acknowledgements.
const SHORT_BYTES: usize = 5_500;

/// Bytes of IP packets per byte of a connection: headers take 60 of 1200 bytes.
const WIRE_BYTES_PER_BYTE: f64 = 1.05;

/// A link with a service that answers short connections.
struct ShortConnections {
    link: TestLink,
    forward: SocketAddr,
}

impl ShortConnections {
    fn start(name: &str, network: Network, config: &str) -> Self {
        let service = start_service(network.core());
        let options = LinkOptions { config, targets: &[service], ..LinkOptions::default() };
        let link = TestLink::with(name, network, &options);
        let forward = link.forward_to_target(0);
        Self { link, forward }
    }

    /// Makes this many connections, from four clients; each is served.
    fn make(&self, count: usize) {
        const CLIENTS: usize = 4;
        let forward = self.forward;
        let client = move || {
            for _ in 0..count / CLIENTS {
                let mut socket = TcpStream::connect(forward).unwrap();
                socket.write_all(&[7; SHORT_BYTES]).unwrap();
                socket.shutdown(Shutdown::Write).unwrap();
                let mut answer = String::new();
                socket.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, SHORT_BYTES.to_string());
            }
        };
        let clients = [(); CLIENTS].map(|()| self.link.network().edge().spawn(client));
        clients.into_iter().for_each(|client| client.join().unwrap());
    }

    /// Makes connections; returns the bytes that the emulator delivered to the core meanwhile, by path.
    fn delivered(&self, count: usize) -> Vec<f64> {
        let delivered = || {
            let paths = self.link.network().paths().iter();
            paths.map(|path| path.to_core().counters().delivered_bytes as f64).collect::<Vec<_>>()
        };
        let before = delivered();
        self.make(count);
        delivered().iter().zip(before).map(|(after, before)| after - before).collect()
    }

    /// Makes connections; returns the share of each path in their bytes, as the emulator counted them.
    ///
    /// The rest of the bytes, acknowledgements and probes, takes all paths alike.
    fn delivered_shares(&self, count: usize) -> Vec<f64> {
        let bytes = self.delivered(count);
        let of_connections = (count * SHORT_BYTES) as f64 * WIRE_BYTES_PER_BYTE;
        let others = (bytes.iter().sum::<f64>() - of_connections) / bytes.len() as f64;
        bytes.iter().map(|bytes| (bytes - others) / of_connections).collect()
    }

    /// Waits until every path has the weight that its round trip and loss give it.
    fn wait_settled(&self, paths: usize) {
        self.link.wait_active(paths);
        self.link.wait_session(LinkSide::Edge, "final weights", |session| {
            let is_settled = |path: &Value| {
                let target = 1_000.0 / number(path, "rtt_ms") * (1.0 - number(path, "loss"));
                number(path, "weight") > target * 0.9 - 1.0
            };
            session["paths"].as_array().unwrap().iter().all(is_settled)
        });
    }
}

/// Starts a service that answers each connection with the number of bytes received.
fn start_service(core: &Namespace) -> SocketAddr {
    let listener = core.run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                socket.read_to_end(&mut bytes).unwrap();
                socket.write_all(bytes.len().to_string().as_bytes()).unwrap();
            });
        }
    });
    address
}

#[track_caller]
fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Returns observed and expected shares of the stream-lane flows, by path.
fn flow_shares(session: &Value) -> Vec<(f64, f64)> {
    let paths = session["paths"].as_array().unwrap().iter();
    let share =
        |path: &Value| (number(&path["flow_share"], "observed"), number(&path["flow_share"], "theory"));
    paths.map(share).collect()
}

#[test]
fn three_lossless_paths_get_the_shares_of_the_specification() {
    let specs = [5, 10, 50].map(|one_way| PathSpec::new(20.0, ms(one_way)));
    let connections = ShortConnections::start("shares", network_or_skip!(&specs), "");
    connections.wait_settled(3);
    let delivered = connections.delivered_shares(1_600);
    let session = connections.link.session(LinkSide::Edge);
    let shares = flow_shares(&session);
    let rtts = session["paths"].as_array().unwrap().iter().map(|path| number(path, "rtt_ms"));
    eprintln!(
        "delivered {delivered:?}, observed and expected {shares:?}, round trips {:?}",
        rtts.collect::<Vec<_>>()
    );
    for shares in [&delivered, &shares.iter().map(|share| share.0).collect()] {
        assert!((0.58..=0.67).contains(&shares[0]), "{shares:?}");
        assert!((0.28..=0.35).contains(&shares[1]), "{shares:?}");
        assert!((0.04..=0.09).contains(&shares[2]), "{shares:?}");
    }
    for (delivered, (observed, _)) in delivered.iter().zip(&shares) {
        assert!((delivered - observed).abs() < 0.03, "{delivered} delivered, {observed} reported");
    }

    let deviation = shares.iter().map(|(observed, theory)| (observed - theory).abs()).sum::<f64>() / 3.0;
    let entropy = shares.iter().map(|(observed, theory)| observed * (observed / theory).ln()).sum::<f64>();
    assert!((number(&session, "share_deviation") - deviation).abs() < 1e-9, "{deviation}: {session}");
    assert!((number(&session, "relative_entropy") - entropy).abs() < 1e-9, "{entropy}: {session}");
    let page = connections.link.metrics(LinkSide::Edge);
    assert!((page.value("nyx_wrr_weight_ratio_deviation") - deviation).abs() < 1e-9, "{page:?}");
    assert!((page.value("evenkeel_path_relative_entropy") - entropy).abs() < 1e-9, "{page:?}");
    assert!(deviation < 0.05, "{deviation}");
}

#[test]
fn a_path_with_high_rtt_and_high_loss_gets_less_than_a_tenth_but_not_nothing() {
    let specs = [
        PathSpec::new(20.0, ms(5)),
        PathSpec::new(20.0, ms(10)),
        PathSpec::new(20.0, ms(150)).with_loss(0.15),
    ];
    let config = "[link]\nwindow = 400\n";
    let connections = ShortConnections::start("unhealthy", network_or_skip!(&specs), config);
    connections.link.wait_active(2);
    connections.link.wait_session(LinkSide::Edge, "weight of path 3", |session| {
        session["paths"][2]["weight"].as_f64().is_some()
    });
    let delivered = connections.delivered(400);
    let shares = flow_shares(&connections.link.session(LinkSide::Edge));
    eprintln!("delivered {delivered:?}, observed and expected {shares:?}");
    assert!(0.0 < shares[2].0 && shares[2].0 < 0.1, "{shares:?}");
    assert!(delivered[2] < 0.1 * delivered.iter().sum::<f64>(), "{delivered:?}");
}

#[test]
fn a_weight_cap_of_1_gives_unequal_paths_equal_shares() {
    let specs = [PathSpec::new(20.0, ms(5)), PathSpec::new(20.0, ms(40))];
    let config = "[link]\nweight_cap = 1\nwindow = 160\n";
    let connections = ShortConnections::start("cap", network_or_skip!(&specs), config);
    connections.link.wait_active(2);
    // A new path starts with a tenth of its weight.
    wait_for("equal weights", || {
        connections.make(160);
        let shares = flow_shares(&connections.link.session(LinkSide::Edge));
        shares.iter().all(|share| (share.1 - 0.5).abs() < 0.01).then_some(())
    });
    let delivered = connections.delivered_shares(160);
    let shares = flow_shares(&connections.link.session(LinkSide::Edge));
    eprintln!("delivered {delivered:?}, observed and expected {shares:?}");
    assert!((0.4..0.6).contains(&delivered[0]), "{delivered:?}");
    assert!(shares.iter().all(|share| (share.0 - 0.5).abs() < 0.05), "{shares:?}");
}

#[test]
fn the_loss_floor_limits_the_weight_that_a_lossy_path_loses() {
    let specs = [PathSpec::new(20.0, ms(10)), PathSpec::new(20.0, ms(10)).with_loss(0.25)];
    let without_penalty = loss_factor(network_or_skip!(&specs), "1.0");
    let with_penalty = loss_factor(network_or_skip!(&specs), "0.05");
    assert!(without_penalty > 0.9, "{without_penalty}");
    assert!(with_penalty < 0.9, "{with_penalty}");
}

/// Returns the fraction of its weight that the lossy second path keeps: the median of several readings.
fn loss_factor(network: Network, loss_floor: &str) -> f64 {
    const READINGS: usize = 5;
    // Only round trip and loss decide: health changes no weight, and a weight follows its measurements at once.
    let config = format!(
        "[link]\nloss_floor = {loss_floor}\nweight_scale = 100000\ndegrade_loss = 1.0\ndegraded_factor = 1.0\n\
         recovery_factor = 1.0\nunhealthy_share_max = 0.95\nchange_min = 0.0\nraise_max = 100000.0\n\
         raise_interval_ms = 1\n"
    );
    let connections = ShortConnections::start("floor", network, &config);
    connections.link.wait_active(2);
    let mut factors = Vec::new();
    wait_for("readings of a lossy path", || {
        connections.make(40);
        let session = connections.link.session(LinkSide::Edge);
        let path = &session["paths"][1];
        if path["weight"].is_u64() && number(path, "loss") > 0.15 {
            factors.push(number(path, "weight") * number(path, "rtt_ms") / 100_000.0);
        }
        (factors.len() == READINGS).then_some(())
    });
    eprintln!("loss floor {loss_floor}: {factors:?}");
    factors.sort_by(f64::total_cmp);
    factors[READINGS / 2]
}
