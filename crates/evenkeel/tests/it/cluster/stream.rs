//! Large results that a node forwards.

use std::io::Read;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CONNS, FORWARD, Node, Setup, TestCluster, eventually, send};

const MEBIBYTE: usize = 1 << 20;
/// Size of the result.
const RESULT: usize = 192 * MEBIBYTE;
/// Largest growth of a node's memory; a fraction of the result.
const GROWTH_MAX: usize = 48 * MEBIBYTE;
const ROW: usize = 8_188;

/// Returns the resident memory of a node in bytes.
fn resident(node: &Node) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.server().pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}

#[test]
fn a_forwarded_stream_is_complete_and_is_not_stored_by_any_node() {
    let cluster = TestCluster::settled("stream", 2, &Setup::default());
    let full = cluster.occupy(0, CONNS);
    let rows = RESULT / ROW;
    let sql = format!("select repeat('x', {ROW}) /* stream */, generate_series(1, $1::int4)");
    let body = json!({"sql": sql, "params": [rows]});
    let before = [0, 1].map(|node| resident(&cluster.nodes[node]));
    let headers = format!("{FORWARD}accept: application/x-ndjson\r\n");
    let mut stream = send(cluster.nodes[0].address, "/query", &headers, &body);
    // The client does not read yet: PostgreSQL waits until it does.
    let blocked =
        "application_name = 'node-b' and query like '%/* stream */%' and wait_event = 'ClientWrite'";
    let blocked = super::activity("count(*)", blocked);
    eventually("PostgreSQL waits for the reader", || cluster.count(&blocked) == 1);
    let mut buffer = vec![0; 256 << 10];
    let mut received = 0;
    let mut last = Vec::new();
    let mut growth = [0, 0];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        received += read;
        last.extend_from_slice(&buffer[..read]);
        last.drain(..last.len().saturating_sub(300));
        for node in [0, 1] {
            growth[node] = growth[node].max(resident(&cluster.nodes[node]).saturating_sub(before[node]));
        }
        // The reader is slow for the first part.
        if received < 8 * MEBIBYTE {
            thread::sleep(Duration::from_millis(5));
        }
    }
    println!("{} MiB forwarded; memory of a and b grew by {growth:?} bytes", received / MEBIBYTE);
    let last = String::from_utf8(last).unwrap();
    let summary: Value =
        serde_json::from_str(last.lines().rfind(|line| line.starts_with('{')).unwrap()).unwrap();
    assert_eq!(summary["rowCount"], rows, "{last}");
    assert!(RESULT < received, "{received} bytes");
    assert!(growth.iter().all(|growth| *growth < GROWTH_MAX), "{growth:?}");
    drop(full);
}

#[test]
fn a_forwarded_stream_whose_node_is_killed_has_no_summary() {
    let mut cluster = TestCluster::settled("cut-stream", 2, &Setup::default());
    let full = cluster.occupy(0, CONNS);
    let body = json!({"sql": "select repeat('x', 8000) /* stream */, generate_series(1, 1000000)"});
    let headers = format!("{FORWARD}accept: application/x-ndjson\r\n");
    let mut stream = send(cluster.nodes[0].address, "/query", &headers, &body);
    let mut buffer = vec![0; 64 << 10];
    assert_ne!(stream.read(&mut buffer).unwrap(), 0);
    cluster.nodes[1].kill();
    let mut rest = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut rest);
    let end = String::from_utf8_lossy(&rest[rest.len().saturating_sub(300)..]).into_owned();
    assert!(!end.contains("rowCount") && !end.ends_with("0\r\n\r\n"), "the cut is visible: {end}");
    drop(full);
    eventually("the node is free", || cluster.active().is_empty());
    assert_eq!(cluster.nodes[0].who(""), "a");
}
