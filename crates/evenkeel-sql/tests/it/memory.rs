//! Memory stays flat while a large result is streamed.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::harness::{Setup, SqlServer};
use crate::outside::{Outside, database_with};

/// Largest growth of this process, which is server and client at once.
const GROWTH_MAX: u64 = 64 << 20;
const MEBIBYTE: u64 = 1 << 20;

/// Returns the size of the result in MiB: less for every run, more on demand.
fn mebibytes() -> u64 {
    std::env::var("EVENKEEL_STREAM_MIB").ok().and_then(|size| size.parse().ok()).unwrap_or(1_024)
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_flat_while_a_gigabyte_is_streamed_also_to_a_slow_reader() {
    let database = database_with("").await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let client = server.client().with("accept", "application/x-ndjson");
    client.query("select 1", json!([])).await.body.lines().count();
    let rows = mebibytes() * 128;
    let body = json!({"sql": "select repeat('x', 8188), generate_series(1, $1::int4)", "params": [rows], "timeoutMs": 60_000});
    let before = resident();
    let mut stream = client.open("POST", "/query", &body.to_string()).await;
    let mut buffer = vec![0; 256 << 10];
    let mut peak = 0;
    let mut bytes = 0_u64;
    let mut last = Vec::new();
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        if read == 0 {
            break;
        }
        bytes += read as u64;
        last.extend_from_slice(&buffer[..read]);
        last.drain(..last.len().saturating_sub(300));
        peak = peak.max(resident());
        // The reader is slow for the first part: the database could send all of it meanwhile.
        if bytes < 16 * MEBIBYTE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let summary = String::from_utf8_lossy(&last);
    let summary: Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    assert_eq!(summary["rowCount"], rows);
    assert!(mebibytes() * MEBIBYTE <= bytes, "{bytes} bytes");
    let growth = peak.saturating_sub(before);
    println!(
        "{} MiB streamed, memory grew by {} KiB from {} KiB",
        bytes / MEBIBYTE,
        growth >> 10,
        before >> 10
    );
    assert!(growth < GROWTH_MAX, "memory grew by {growth} bytes from {before}");
    assert_eq!(database.backends().await.active, 0);
}
