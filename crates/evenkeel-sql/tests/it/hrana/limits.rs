//! Limits of requests, results, texts and time.

use std::time::Duration;

use evenkeel_sql::SqlLimits;
use serde_json::{Value, json};

use super::{close, code, execute, rows, start, start_with_table};
use crate::harness::{Setup, eventually, tenant};

fn with_limits(limits: SqlLimits) -> Setup {
    Setup { limits, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_and_results_are_limited() {
    let limits = SqlLimits { statements_max: 2, result_bytes_max: 10_000, ..SqlLimits::default() };
    let started = start_with_table(with_limits(limits)).await;
    let select = execute("select 1");
    let body =
        started.pipeline(None, json!([execute("BEGIN"), select, select, execute("COMMIT"), close()])).await;
    assert_eq!(body["results"].as_array().map(Vec::len), Some(5));
    let many = started.send(None, json!([select, select, select])).await;
    assert_eq!(many.error(), (400, "INVALID_REQUEST".to_owned()));
    let large =
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000000) select i from n";
    let body = started.pipeline(None, json!([execute(large), select])).await;
    assert_eq!((code(&body, 0), &body["results"][1]["type"]), ("RESPONSE_TOO_LARGE", &json!("ok")), "{body}");
    let returned = format!("insert into t (v) {} returning v", large.replace("1000000", "1000"));
    let body = started.pipeline(None, json!([execute(&returned), execute("select count(*) from t")])).await;
    assert!(body["results"][0]["error"]["message"].as_str().unwrap().contains("was executed"), "{body}");
    assert_eq!(rows(&body, 1)[0][0]["value"], "1000");
    // All results of a request count together.
    let half = execute("select printf('%.6000c', 'x')");
    let body = started.pipeline(None, json!([half, half])).await;
    assert_eq!((&body["results"][0]["type"], code(&body, 1)), (&json!("ok"), "RESPONSE_TOO_LARGE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_count_as_results() {
    let limits = SqlLimits { result_bytes_max: 10_000, ..SqlLimits::default() };
    let started = start(with_limits(limits)).await;
    let wrong = format!("select {}", "x".repeat(3_000));
    let steps = vec![json!({"stmt": {"sql": wrong}}); 40];
    let in_batch = json!([{"type": "batch", "batch": {"steps": steps}}]);
    for requests in [in_batch, json!(vec![execute(&wrong); 40])] {
        let response = started.send(None, requests).await;
        assert_eq!(response.body.matches("no such column: xxx").count(), 3, "the first errors are whole");
        assert_eq!(response.body.matches("SQLITE_ERROR").count(), 40, "every error has its code");
        assert!(response.body.len() < 20_000, "{} bytes", response.body.len());
    }
    // Nothing is left for a result after the errors.
    let mut steps = steps;
    steps.push(json!({"stmt": {"sql": "select printf('%.2000c', 'y')"}}));
    let response = started.send(None, json!([{"type": "batch", "batch": {"steps": steps}}])).await;
    assert!(response.body.contains("RESPONSE_TOO_LARGE"), "{response:?}");
    let cursor = json!({"batch": {"steps": steps}});
    let response = started.client.post("/v3/cursor", cursor).await;
    assert_eq!(response.body.matches("SQLITE_ERROR").count(), 40, "{response:?}");
    assert!(response.body.len() < 30_000, "{} bytes", response.body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_texts_are_limited() {
    let started = start(Setup::default()).await;
    let store = |id: usize| json!({"type": "store_sql", "sql_id": id, "sql": "select 1"});
    let requests: Vec<Value> = (0..101).map(store).collect();
    let body = started.pipeline(None, json!(requests)).await;
    assert_eq!((&body["results"][99]["type"], code(&body, 100)), (&json!("ok"), "INVALID_REQUEST"));
    let long = json!({"type": "store_sql", "sql_id": 1, "sql": "x".repeat(300_000)});
    let body = started.pipeline(None, json!([long])).await;
    assert!(body["results"][0]["error"]["message"].as_str().unwrap().contains("262144 bytes"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_cancelled_and_its_transaction_closed() {
    let limits = SqlLimits { timeout_default: Duration::from_millis(300), ..SqlLimits::default() };
    let started = start_with_table(with_limits(limits)).await;
    let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
    let requests =
        json!([execute("BEGIN"), execute("insert into t values (1, 'a')"), execute(endless), close()]);
    let body = started.pipeline(None, requests).await;
    assert_eq!((code(&body, 2), &body["baton"]), ("SQLITE_INTERRUPT", &json!(null)), "{body}");
    eventually("the transaction ends", async || started.server.stats().await["runningTx"] == 0).await;
    assert_eq!(started.value("select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_gets_no_connection_has_a_status() {
    let limits = SqlLimits {
        timeout_default: Duration::from_millis(300),
        transaction_contended_idle_max: Duration::from_secs(15),
        ..SqlLimits::default()
    };
    let started = start_with_table(with_limits(limits)).await;
    started.server.reload(vec![tenant("a"), tenant("b")]);
    let post = async |tenant: &str, requests: Value| {
        started.server.client_of(tenant).post("/v2/pipeline", json!({"requests": requests})).await
    };
    post("a", json!([execute("BEGIN")])).await.ok();
    let insert = execute("insert into t values (1, 'a')");
    let batch = json!({"type": "batch", "batch": {"steps": [{"stmt": {"sql": "BEGIN"}}]}});
    for requests in [json!([insert]), json!([batch, close()])] {
        let rejected = post("b", requests).await;
        assert_eq!(rejected.error(), (504, "WAIT_TIMEOUT".to_owned()), "the writer is in use");
    }
    let cursor = json!({"batch": {"steps": [{"stmt": {"sql": "delete from t"}}]}});
    let rejected = started.server.client_of("b").post("/v3/cursor", cursor).await;
    assert_eq!(rejected.error(), (504, "WAIT_TIMEOUT".to_owned()));
    // Reads do not wait for the writer, and an error after one is a result.
    let body = post("b", json!([execute("select 7"), insert])).await.ok();
    assert_eq!((&rows(&body, 0)[0][0]["value"], code(&body, 1)), (&json!("7"), "WAIT_TIMEOUT"));
}
