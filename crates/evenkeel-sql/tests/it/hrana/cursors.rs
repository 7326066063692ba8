//! `/v3/cursor`: entries, back-pressure, and transactions.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{HranaServer, batch, baton, close, code, execute, start, start_with_table};
use crate::harness::{Setup, eventually};
use evenkeel_sql::SqlLimits;
use std::time::Duration;
use tokio::net::TcpStream;

async fn cursor(started: &HranaServer, baton: Option<&str>, batch: Value) -> Vec<Value> {
    let response = started.client.post("/v3/cursor", json!({"baton": baton, "batch": batch})).await;
    assert_eq!(response.status, 200, "{response:?}");
    response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(count: u32) -> String {
    format!(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < {count}) select i from n"
    )
}

/// Reads the beginning of a response, and returns its first entry.
async fn first_entry(socket: &mut TcpStream) -> Value {
    let mut head = vec![0; 1_000];
    socket.read_exact(&mut head).await.unwrap();
    let head = String::from_utf8(head).unwrap();
    let (_, body) = head.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body.lines().next().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_describe_each_step() {
    let started = start_with_table(Setup::default()).await;
    let step = |sql: &str, condition: Value| json!({"stmt": {"sql": sql}, "condition": condition});
    let steps = json!([
        step("insert into t values (5, 'a')", json!(null)),
        step("insert into t values (5, 'b')", json!(null)),
        step("select 1", json!({"type": "ok", "step": 1})),
        step("select id, v from t", json!({"type": "error", "step": 1})),
    ]);
    let entries = cursor(&started, None, json!({"steps": steps})).await;
    let constraint = json!({"message": "UNIQUE constraint failed: t.id", "code": "SQLITE_CONSTRAINT"});
    let columns = json!([{"name": "id", "decltype": "INTEGER"}, {"name": "v", "decltype": "TEXT"}]);
    let expected = [
        json!({"baton": null, "base_url": null}),
        json!({"type": "step_begin", "step": 0, "cols": []}),
        json!({"type": "step_end", "affected_row_count": 1, "last_insert_rowid": "5"}),
        json!({"type": "step_error", "step": 1, "error": constraint}),
        json!({"type": "step_begin", "step": 3, "cols": columns}),
        json!({"type": "row", "row": [{"type": "integer", "value": "5"}, {"type": "text", "value": "a"}]}),
        json!({"type": "step_end", "affected_row_count": 0, "last_insert_rowid": null}),
    ];
    assert_eq!(entries, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_beyond_the_size_limit_is_streamed() {
    let limits = SqlLimits { result_bytes_max: 10_000, ..SqlLimits::default() };
    let started = start(Setup { limits, ..Setup::default() }).await;
    let entries = cursor(&started, None, batch(&[&numbers(100_000)])).await;
    assert_eq!(entries.len(), 100_003);
    assert_eq!(entries[100_001]["row"], json!([{"type": "integer", "value": "100000"}]));
    assert_eq!(entries[100_002]["type"], "step_end");
    // A query that begins a transaction is streamed once the baton is known.
    let entries = cursor(&started, None, batch(&["BEGIN", &numbers(1_000)])).await;
    assert_eq!((entries.len(), entries[0]["baton"].is_string()), (1_005, true));
    let entries = cursor(&started, entries[0]["baton"].as_str(), batch(&["COMMIT"])).await;
    assert_eq!(entries[0]["baton"], json!(null));
    // Entries before the end of a transaction are held back, up to the limit.
    let entries = cursor(&started, None, batch(&["BEGIN", &numbers(1_000), "COMMIT"])).await;
    assert_eq!(entries[3]["error"]["code"], "RESPONSE_TOO_LARGE", "{entries:?}");
    assert_eq!((&entries[0]["baton"], &entries[5]["type"]), (&json!(null), &json!("step_end")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_stops_the_reading_and_a_disconnect_ends_it() {
    let started = start(Setup::default()).await;
    let begun = started.begin().await;
    let endless = numbers(u32::MAX);
    let body = json!({"baton": begun, "batch": batch(&[&endless])}).to_string();
    let mut socket = started.client.open("POST", "/v3/cursor", &body).await;
    let first = first_entry(&mut socket).await;
    assert_eq!(started.server.stats().await["runningSql"], 1);
    drop(socket);
    eventually("the statement ends", async || started.server.stats().await["runningSql"] == 0).await;
    // The client has the baton, so the transaction goes on.
    let body = started.pipeline(Some(&baton(&first)), json!([execute("select 7"), execute("COMMIT")])).await;
    assert_eq!([0, 1].map(|index| body["results"][index]["type"].clone()), ["ok", "ok"], "{body}");
    assert_eq!(started.server.stats().await["runningTx"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_cursor_has_a_status() {
    let started = start(Setup::default()).await;
    let response = started.client.post("/v3/cursor", json!({"baton": "x", "batch": batch(&[])})).await;
    assert_eq!(response.error(), (400, "BATON_INVALID".to_owned()));
    let entries = cursor(&started, None, batch(&[])).await;
    assert_eq!(entries, [json!({"baton": null, "base_url": null})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_the_end_does_not_hold_the_writer() {
    let limits = SqlLimits { timeout_default: Duration::from_secs(10), ..SqlLimits::default() };
    let started = start_with_table(Setup { limits, ..Setup::default() }).await;
    // The large row is larger than the buffers of the socket; the next two chunks fill the channel, and the end has to wait.
    let large = "select printf('%.40000000c', 'x')";
    let statements = ["insert into t values (1, 'a')", large, "select 1", "select 2", "select 3"];
    let body = json!({"batch": batch(&statements)}).to_string();
    let mut socket = started.client.open("POST", "/v3/cursor", &body).await;
    first_entry(&mut socket).await;
    let body = started.pipeline(None, json!([execute("insert into t values (2, 'b')"), close()])).await;
    assert_eq!(body["results"][0]["type"], "ok", "{body}");
    drop(socket);
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_texts_are_there_for_the_next_request_while_the_cursor_is_read() {
    let started = start(Setup::default()).await;
    let store = json!({"type": "store_sql", "sql_id": 1, "sql": "/* nothing */"});
    let begun = started.pipeline(None, json!([execute("BEGIN"), store])).await;
    let body = json!({"baton": baton(&begun), "batch": batch(&[&numbers(u32::MAX)])}).to_string();
    let mut socket = started.client.open("POST", "/v3/cursor", &body).await;
    let first = first_entry(&mut socket).await;
    let stored = json!({"type": "sequence", "sql_id": 1});
    let next = started.pipeline(Some(&baton(&first)), json!([stored])).await;
    assert_eq!(next["results"][0]["type"], "ok", "{next}");
    drop(socket);
    // The end of the cursor does not bring back a text that was removed meanwhile.
    let close_sql = json!({"type": "close_sql", "sql_id": 1});
    let next = started.pipeline(Some(&baton(&next)), json!([close_sql])).await;
    eventually("the statement ends", async || started.server.stats().await["runningSql"] == 0).await;
    let last = started.pipeline(Some(&baton(&next)), json!([stored, close()])).await;
    assert_eq!(code(&last, 0), "INVALID_REQUEST");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_before_the_response_begins_rolls_back() {
    let limits = SqlLimits { transaction_idle_max: Duration::from_secs(600), ..SqlLimits::default() };
    let started = start_with_table(Setup { limits, ..Setup::default() }).await;
    // A statement without rows, so that the response does not begin.
    let endless = format!("insert into t (v) {}", numbers(u32::MAX));
    let body = json!({"batch": batch(&["BEGIN", &endless])}).to_string();
    let socket = started.client.open("POST", "/v3/cursor", &body).await;
    eventually("the statement runs", async || started.server.stats().await["runningSql"] == 1).await;
    drop(socket);
    eventually("the transaction ends", async || started.server.stats().await["runningTx"] == 0).await;
    assert_eq!(started.value("select count(*) from t").await, "0");
}
