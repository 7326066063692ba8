//! Nodes with several paths: the shares of their paths, and the path metrics.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_sim_node::testing::{chat, fast};
use evenkeel_sim_node::{SimNode, SimOptions};
use serde_json::{Value, json};

use crate::fleet::{Backend, CHAT, Fleet};

/// Seed 000: weights 100, 50 and 10.
const RTTS_MS: [u64; 3] = [10, 20, 100];

#[test]
fn lossless_paths_get_the_shares_of_the_specification_and_their_metrics_move() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sim = runtime.block_on(SimNode::bind(SimOptions { slots: 32, ..fast() })).unwrap();
    let paths = RTTS_MS.map(|rtt_ms| DelayProxy::start(sim.address(), Duration::from_millis(rtt_ms)));
    let urls = paths.each_ref().map(|path| format!("http://{}", path.address));
    let config = format!(
        "[llm.health]\ninterval_secs = 0.25\ntimeout_secs = 2\n[[llm.nodes]]\nname = 'a'\npaths = {urls:?}\n\
         models = ['sim']\nmax_concurrency = 32\n"
    );
    let fleet = Fleet::start("paths-shares", &config, vec![]);
    fleet.wait_status("measured", |status| {
        RTTS_MS.iter().zip(path_statuses(status)).all(|(&rtt_ms, path)| {
            path["state"] == "active" && path["rtt_ms"].as_f64() < Some(rtt_ms as f64 * 1.15)
        })
    });

    send(&fleet, 1_600);
    let shares = paths.each_ref().map(|path| path.requests.load(Ordering::Relaxed) as f64 / 16.0);
    assert!((58.0..=67.0).contains(&shares[0]), "{shares:?}");
    assert!((28.0..=35.0).contains(&shares[1]), "{shares:?}");
    assert!((4.0..=9.0).contains(&shares[2]), "{shares:?}");
    assert!(path_statuses(&fleet.status()).iter().all(|path| path["state"] == "active"));

    let page = fleet.get("/metrics").body;
    assert_eq!(metric(&page, "nyx_multipath_active_paths"), Some(3.0), "{page}");
    assert_eq!(metric(&page, "nyx_multipath_path_activated_total"), Some(3.0));
    assert_eq!(metric(&page, "nyx_multipath_path_deactivated_total"), Some(0.0));
    assert!(metric(&page, "nyx_multipath_path_rtt_seconds_count") >= Some(9.0));
    assert!(metric(&page, "evenkeel_path_reweights_total{result=\"applied\"}") > Some(0.0));
    let deviation = metric(&page, "nyx_wrr_weight_ratio_deviation").unwrap();
    assert!(deviation > 0.0 && deviation < 0.01, "{deviation}");
    for (url, share) in urls.iter().zip(shares) {
        let reported = metric(&page, &format!("evenkeel_path_share{{source=\"a\",path=\"{url}\"}}")).unwrap();
        assert!((reported * 100.0 - share).abs() < 0.01, "{reported} reported, {share} % counted");
    }

    paths[0].stop();
    fleet.wait_status("deactivated", |status| path_statuses(status)[0]["state"] == "inactive");
    let page = fleet.get("/metrics").body;
    assert_eq!(metric(&page, "nyx_multipath_active_paths"), Some(2.0), "{page}");
    assert_eq!(metric(&page, "nyx_multipath_path_deactivated_total"), Some(1.0));
    send(&fleet, 24);
}

#[test]
fn a_gateway_without_links_and_several_paths_has_no_path_metrics() {
    let fleet = Fleet::start("paths-single", "", vec![("a", Backend::Sim(fast()))]);
    send(&fleet, 8);
    let page = fleet.get("/metrics").body;
    assert!(page.contains("evenkeel_dispatched_total"), "{page}");
    assert!(!page.contains("nyx_") && !page.contains("\nevenkeel_path_share"), "{page}");
}

/// Sends this many requests from eight clients; each must be served.
fn send(fleet: &Fleet, requests: usize) {
    const CLIENTS: usize = 8;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..requests / CLIENTS {
                    let reply = fleet.post("none", CHAT, &chat(json!({"max_tokens": 1})));
                    assert_eq!(reply.status, 200, "{reply:?}");
                }
            });
        }
    });
}

fn path_statuses(status: &Value) -> &[Value] {
    status["nodes"][0]["paths"].as_array().unwrap()
}

/// Returns the value of a series; its name includes the labels.
fn metric(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// A path to a server: a TCP proxy that delivers requests after a round trip and counts them.
///
/// It uses threads because their timers are more precise than those of the asynchronous runtime.
struct DelayProxy {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl DelayProxy {
    fn start(server: SocketAddr, rtt: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let stopped = Arc::new(AtomicBool::new(false));
        let counter = requests.clone();
        let is_stopped = stopped.clone();
        thread::spawn(move || {
            let mut connections = Vec::new();
            for client in listener.incoming().map_while(Result::ok) {
                if is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let upstream = TcpStream::connect(server).unwrap();
                client.set_nodelay(true).unwrap();
                upstream.set_nodelay(true).unwrap();
                connections.push(client.try_clone().unwrap());
                forward(
                    client.try_clone().unwrap(),
                    upstream.try_clone().unwrap(),
                    rtt,
                    Some(counter.clone()),
                );
                forward(upstream, client, Duration::ZERO, None);
            }
            connections.iter().for_each(|connection| _ = connection.shutdown(Shutdown::Both));
        });
        Self { address, requests, stopped }
    }

    /// Closes the listener and all connections.
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the listener up. It may already be closed.
        let _ = TcpStream::connect(self.address);
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Copies one direction of a connection, each part after the delay, and counts the `POST` requests in it.
fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration, requests: Option<Arc<AtomicUsize>>) {
    let (parts, delayed) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            // A request is sent in one piece, and the next one only after its response.
            if let Some(requests) = requests.as_ref().filter(|_| buffer.starts_with(b"POST ")) {
                requests.fetch_add(1, Ordering::Relaxed);
            }
            if parts.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, part) in delayed {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&part).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
