//! Transactions over several requests, and their batons.

use std::time::Duration;

use evenkeel_server::tenant::TenantSettings;
use evenkeel_sql::SqlLimits;
use serde_json::{Value, json};

use super::{HranaServer, baton, close, code, execute, rows, start_with_table};
use crate::harness::{Setup, eventually, tenant};

/// A statement that does not end by itself.
const ENDLESS: &str =
    "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";

fn with_limits(change: impl FnOnce(&mut SqlLimits)) -> Setup {
    let mut limits = SqlLimits::default();
    change(&mut limits);
    Setup { limits, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_spans_requests_and_each_has_a_new_baton() {
    let started = start_with_table(Setup::default()).await;
    let autocommit = json!({"type": "get_autocommit"});
    let first = started.pipeline(None, json!([autocommit, execute("BEGIN"), autocommit])).await;
    let states = [0, 2].map(|index| first["results"][index]["response"]["is_autocommit"].clone());
    assert_eq!(states, [json!(true), json!(false)]);
    let second =
        started.pipeline(Some(&baton(&first)), json!([execute("insert into t values (1, 'a')")])).await;
    assert_ne!(baton(&first), baton(&second));
    assert_eq!(started.value("select count(*) from t").await, "0", "not committed yet");
    let describe = json!({"type": "describe", "sql": "select id from t"});
    let third = started
        .pipeline(
            Some(&baton(&second)),
            json!([execute("select count(*) from t"), describe, execute("COMMIT"), autocommit]),
        )
        .await;
    assert_eq!(rows(&third, 0)[0][0]["value"], "1");
    assert_eq!(third["results"][3]["response"]["is_autocommit"], true);
    assert_eq!(third["baton"], json!(null), "without a transaction the stream ends with the request");
    assert_eq!(started.value("select count(*) from t").await, "1");
    assert_eq!(started.server.stats().await["runningTx"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_rolled_back_by_rollback_and_by_close() {
    let started = start_with_table(Setup::default()).await;
    for end in [execute("ROLLBACK"), close()] {
        let baton = started.begin().await;
        let insert = execute("insert into t values (1, 'a')");
        let body = started.pipeline(Some(&baton), json!([insert, end])).await;
        assert_eq!((&body["results"][1]["type"], &body["baton"]), (&json!("ok"), &json!(null)), "{body}");
        assert_eq!(started.value("select count(*) from t").await, "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_transaction_keeps_its_snapshot_and_cannot_write() {
    let started = start_with_table(Setup::default()).await;
    let begun = started.pipeline(None, json!([execute("BEGIN TRANSACTION READONLY")])).await;
    // It does not hold the writer.
    started.pipeline(None, json!([execute("insert into t values (1, 'a')"), close()])).await;
    let requests = json!([
        execute("select count(*) from t"),
        execute("insert into t values (2, 'b')"),
        execute("COMMIT")
    ]);
    let body = started.pipeline(Some(&baton(&begun)), requests).await;
    assert_eq!(rows(&body, 0)[0][0]["value"], "0");
    assert_eq!((code(&body, 1), &body["results"][2]["type"]), ("SQLITE_READONLY", &json!("ok")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_sent_twice_is_executed_once() {
    let started = start_with_table(Setup::default()).await;
    let first = started.begin().await;
    let insert = json!([execute("insert into t (v) values ('a')")]);
    let second = baton(&started.pipeline(Some(&first), insert.clone()).await);
    let repeated = started.send(Some(&first), insert).await;
    assert_eq!(repeated.error(), (409, "BATON_REUSED".to_owned()));
    let body =
        started.pipeline(Some(&second), json!([execute("COMMIT"), execute("select count(*) from t")])).await;
    assert_eq!(rows(&body, 1)[0][0]["value"], "1");
    let ended = started.send(Some(&second), json!([execute("select 1")])).await;
    assert_eq!(ended.error(), (410, "STREAM_EXPIRED".to_owned()));
    assert!(ended.body.contains("it was committed"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_baton_that_was_not_issued_to_the_tenant_is_rejected() {
    let started = start_with_table(Setup { tenants: Vec::new(), ..Setup::default() }).await;
    let HranaServer { server, .. } = &started;
    server.reload(vec![tenant("a"), tenant("b")]);
    let send = async |tenant: &str, baton: &str| {
        let body = json!({"baton": baton, "requests": [execute("select 1")]});
        server.client_of(tenant).post("/v3/pipeline", body).await
    };
    let begin = json!({"requests": [execute("BEGIN")]});
    let baton = baton(&server.client_of("a").post("/v3/pipeline", begin).await.ok());
    assert_eq!(send("b", &baton).await.error(), (403, "BATON_FOREIGN".to_owned()));
    let (id, _) = baton.rsplit_once('.').unwrap();
    for invalid in ["", "x", "x.0", id, &format!("{id}.x"), &format!("{}.0", &id[1..])] {
        assert_eq!(send("a", invalid).await.error(), (400, "BATON_INVALID".to_owned()), "{invalid}");
    }
    assert_eq!(send("a", &format!("{id}.99")).await.error(), (409, "BATON_REUSED".to_owned()));
    assert_eq!(send("a", &baton).await.status, 200, "the transaction is still open");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_transaction_is_rolled_back() {
    let started = start_with_table(with_limits(|limits| {
        limits.transaction_idle_max = Duration::from_millis(100);
    }))
    .await;
    let begun =
        started.pipeline(None, json!([execute("BEGIN"), execute("insert into t values (1, 'a')")])).await;
    eventually("the transaction ends", async || started.server.stats().await["runningTx"] == 0).await;
    let late = started.send(Some(&baton(&begun)), json!([execute("COMMIT")])).await;
    assert_eq!(late.error(), (410, "STREAM_EXPIRED".to_owned()));
    assert!(late.body.contains("idle for too long"), "{late:?}");
    assert_eq!(started.value("select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_in_the_middle_rolls_back() {
    let started = start_with_table(Setup::default()).await;
    let first = started.begin().await;
    let requests =
        json!({"baton": first, "requests": [execute("insert into t values (1, 'a')"), execute(ENDLESS)]});
    let socket = started.client.open("POST", "/v3/pipeline", &requests.to_string()).await;
    eventually("the statement runs", async || started.server.stats().await["runningSql"] == 1).await;
    drop(socket);
    eventually("the transaction ends", async || started.server.stats().await["runningTx"] == 0).await;
    started.pipeline(None, json!([execute("insert into t values (2, 'b')"), close()])).await;
    assert_eq!(started.value("select group_concat(id) from t").await, "2");
    let late = started.send(Some(&first), json!([execute("COMMIT")])).await;
    assert!(late.body.contains("its client disconnected"), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_served_whatever_the_limits_say() {
    let limited = TenantSettings { rpm: Some(2), ..tenant("a") };
    let started = start_with_table(Setup::default()).await;
    let HranaServer { server, .. } = &started;
    server.reload(vec![limited]);
    let client = server.client_of("a");
    let send = async |baton: Option<&str>, requests: Value| {
        client.post("/v2/pipeline", json!({"baton": baton, "requests": requests})).await
    };
    let mut next = baton(&send(None, json!([execute("BEGIN")])).await.ok());
    for id in 0..5 {
        let insert = execute(&format!("insert into t values ({id}, 'a')"));
        next = baton(&send(Some(&next), json!([insert])).await.ok());
    }
    send(None, json!([execute("select 1")])).await.ok();
    let limited = send(None, json!([execute("select 1")])).await;
    assert_eq!(limited.error(), (429, "RATE_LIMIT_EXCEEDED".to_owned()));
    assert!(limited.headers.contains_key("retry-after"), "{limited:?}");
    // The statement after the end of the transaction is an ordinary one.
    let body = send(Some(&next), json!([execute("COMMIT"), execute("select 1")])).await.ok();
    assert_eq!((&body["results"][0]["type"], code(&body, 1)), (&json!("ok"), "RATE_LIMIT_EXCEEDED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_finishes_transactions() {
    let started = start_with_table(Setup::default()).await;
    let begun = started.begin().await;
    let api = started.server.api.clone();
    let drain = tokio::spawn(async move { api.drain(Duration::from_secs(60)).await });
    eventually("the server drains", async || started.server.api.is_draining()).await;
    let rejected = started.send(None, json!([execute("select 1")])).await;
    assert_eq!(rejected.error(), (503, "SHUTTING_DOWN".to_owned()));
    let requests = json!([execute("insert into t values (1, 'a')"), execute("COMMIT"), execute("select 1")]);
    let body = started.pipeline(Some(&begun), requests).await;
    assert_eq!((&body["results"][1]["type"], code(&body, 2)), (&json!("ok"), "SHUTTING_DOWN"));
    drain.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_sqlite_rolled_back_runs_nothing_until_it_is_ended() {
    let started = start_with_table(Setup::default()).await;
    let requests = json!([
        execute("BEGIN"),
        execute("insert into t values (1, 'a')"),
        execute("insert or rollback into t values (1, 'b')"),
        execute("insert into t values (2, 'c')"),
        execute("ROLLBACK"),
        execute("select count(*) from t"),
    ]);
    let body = started.pipeline(None, requests).await;
    assert_eq!([2, 3].map(|index| code(&body, index)), ["SQLITE_CONSTRAINT", "SQLITE_ABORT"]);
    assert_eq!((&body["results"][4]["type"], &rows(&body, 5)[0][0]["value"]), (&json!("ok"), &json!("0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_on_its_own_after_a_transaction_reached_its_time_limit() {
    let started = start_with_table(with_limits(|limits| {
        limits.transaction_time_max = Duration::from_millis(200);
    }))
    .await;
    let insert = execute("insert into t values (1, 'a')");
    let body =
        started.pipeline(None, json!([execute("BEGIN"), execute(ENDLESS), insert, execute("COMMIT")])).await;
    assert_eq!([1, 2, 3].map(|index| code(&body, index)), ["STREAM_EXPIRED"; 3], "{body}");
    assert!(body["results"][2]["error"]["message"].as_str().unwrap().contains("open for too long"), "{body}");
    assert_eq!(body["baton"], json!(null));
    assert_eq!(started.value("select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_texts_last_as_long_as_their_stream() {
    let started = start_with_table(Setup::default()).await;
    let store = |id: i32, sql: &str| json!({"type": "store_sql", "sql_id": id, "sql": sql});
    let stored = |id: i32| json!({"type": "execute", "stmt": {"sql_id": id}});
    let select = "select 7";
    let body = started.pipeline(None, json!([store(1, select), stored(1), store(1, select)])).await;
    assert_eq!((&rows(&body, 1)[0][0]["value"], code(&body, 2)), (&json!("7"), "INVALID_REQUEST"));
    let body = started.pipeline(None, json!([stored(1)])).await;
    assert!(
        body["results"][0]["error"]["message"].as_str().unwrap().contains("no SQL text with id 1"),
        "{body}"
    );
    // A transaction keeps them between requests.
    let first = started.pipeline(None, json!([execute("BEGIN"), store(1, select), store(2, select)])).await;
    let close_sql = json!({"type": "close_sql", "sql_id": 1});
    let sequence = json!({"type": "sequence", "sql_id": 2});
    let second =
        started.pipeline(Some(&baton(&first)), json!([stored(1), close_sql, stored(1), sequence])).await;
    assert_eq!((&rows(&second, 0)[0][0]["value"], code(&second, 2)), (&json!("7"), "INVALID_REQUEST"));
    assert_eq!(second["results"][3]["type"], "ok");
    let third = started.pipeline(Some(&baton(&second)), json!([stored(2), close()])).await;
    assert_eq!(rows(&third, 0)[0][0]["value"], "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_keys_can_be_ignored_for_a_transaction_only() {
    let started = start_with_table(Setup::default()).await;
    let child = "create table c (t integer references t (id) on delete cascade)";
    let setup = json!([
        execute(child),
        execute("insert into t values (1, 'a')"),
        execute("insert into c values (1)")
    ]);
    started.pipeline(None, setup).await;
    let orphan = execute("insert into c values (9)");
    let off = execute("PRAGMA foreign_keys=off");
    let on = execute("PRAGMA foreign_keys=on");
    // Rebuilding a table must not delete the rows that refer to it.
    let rebuild = json!([
        off,
        execute("BEGIN"),
        execute("create table t2 (id integer primary key, v text)"),
        execute("insert into t2 select * from t"),
        execute("drop table t"),
        execute("alter table t2 rename to t"),
        execute("COMMIT"),
        on,
        orphan,
        execute("select count(*) from c"),
    ]);
    let body = started.pipeline(None, rebuild).await;
    for index in 0..8 {
        assert_eq!(body["results"][index]["type"], "ok", "{body}");
    }
    assert_eq!((code(&body, 8), &rows(&body, 9)[0][0]["value"]), ("SQLITE_CONSTRAINT", &json!("1")));
    // Statements of their own heed the pragma too, and it ends with the request.
    let body = started.pipeline(None, json!([off, orphan, execute("delete from c where t = 9")])).await;
    assert_eq!(body["results"][1]["type"], "ok", "{body}");
    let body = started.pipeline(None, json!([orphan])).await;
    assert_eq!(code(&body, 0), "SQLITE_CONSTRAINT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_a_transaction_that_sqlite_rolled_back_is_an_error() {
    let started = start_with_table(Setup::default()).await;
    for commit in ["COMMIT", "/* app */ commit", "-- app\nend"] {
        let requests = json!([
            execute("BEGIN"),
            execute("insert into t values (1, 'a')"),
            execute("insert or rollback into t values (1, 'b')"),
            execute(commit),
        ]);
        let body = started.pipeline(None, requests).await;
        assert_eq!(code(&body, 3), "SQLITE_ABORT", "{commit}");
        assert_eq!(started.value("select count(*) from t").await, "0");
    }
}
