//! `/v3/cursor`: entries, back-pressure, and transactions.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{HranaServer, batch, baton, execute, start, start_with_table};
use crate::harness::{Setup, eventually};
use evenkeel_sql::SqlLimits;

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
    let mut head = vec![0; 1_000];
    socket.read_exact(&mut head).await.unwrap();
    let head = String::from_utf8(head).unwrap();
    let (_, body) = head.split_once("\r\n\r\n").unwrap();
    let first: Value = serde_json::from_str(body.lines().next().unwrap()).unwrap();
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
