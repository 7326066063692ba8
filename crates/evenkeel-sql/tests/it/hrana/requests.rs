//! Each type of request, in every version of the protocol.

use serde_json::{Value, json};

use super::{batch, close, code, execute, rows, start, start_with_table};
use crate::harness::Setup;

fn statement(sql: &str, args: Value, named_args: Value) -> Value {
    json!({"type": "execute", "stmt": {"sql": sql, "args": args, "named_args": named_args}})
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_type_come_back_as_they_were_sent() {
    let started = start(Setup::default()).await;
    let values = json!([
        {"type": "null"},
        {"type": "integer", "value": "-9223372036854775808"},
        {"type": "float", "value": 0.1},
        {"type": "text", "value": "it's \"é\""},
        {"type": "blob", "base64": "AP8="},
    ]);
    let sql = "select ? as n, ? as i, ? as f, ? as t, ? as b";
    let body = started.pipeline(None, json!([statement(sql, values.clone(), json!([])), close()])).await;
    assert_eq!(rows(&body, 0), &json!([values]));
    let result = &body["results"][0]["response"]["result"];
    assert_eq!(result["cols"][1], json!({"name": "i", "decltype": null}));
    assert_eq!((&result["affected_row_count"], &result["last_insert_rowid"]), (&json!(0), &json!(null)));
    assert_eq!((&body["baton"], &body["base_url"]), (&json!(null), &json!(null)));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_bound_by_position_and_by_name() {
    let started = start(Setup::default()).await;
    let integer = |value: &str| json!({"type": "integer", "value": value});
    let named = |name: &str, value: &str| json!({"name": name, "value": integer(value)});
    let sql = "select :a, @b, $c, :a";
    for names in [[":a", "@b", "$c"], ["a", "b", "c"]] {
        let arguments = json!([named(names[0], "1"), named(names[1], "2"), named(names[2], "3")]);
        let body = started.pipeline(None, json!([statement(sql, json!([]), arguments)])).await;
        assert_eq!(rows(&body, 0), &json!([[integer("1"), integer("2"), integer("3"), integer("1")]]));
    }
    // A name wins over a position, and a number is a position.
    let both = statement(
        "select ?2, :a",
        json!([integer("1"), integer("2"), integer("3")]),
        json!([named("a", "9")]),
    );
    let body = started.pipeline(None, json!([both])).await;
    assert_eq!(rows(&body, 0), &json!([[integer("2"), integer("9")]]));
    for (request, message) in [
        (statement(sql, json!([]), json!([named("a", "1")])), "parameter 2 (@b) is missing"),
        (
            statement("select :a", json!([]), json!([named("a", "1"), named("z", "1")])),
            "parameter 2 has the name \"z\"",
        ),
        (
            statement("select ?", json!([integer("1"), integer("2")]), json!([])),
            "parameter 2 is one too many",
        ),
        (statement("select ?", json!([{"type": "integer", "value": "x"}]), json!([])), "64-bit integer"),
        (statement("select ?", json!([{"type": "blob", "base64": "!"}]), json!([])), "base64"),
    ] {
        let body = started.pipeline(None, json!([request])).await;
        assert_eq!(code(&body, 0), "ARGS_INVALID", "{body}");
        assert!(body["results"][0]["error"]["message"].as_str().unwrap().contains(message), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_counted_and_unwanted_rows_left_out() {
    let started = start_with_table(Setup::default()).await;
    let unwanted = json!({"type": "execute", "stmt": {"sql": "select * from t", "want_rows": false}});
    let body = started
        .pipeline(
            None,
            json!([
                execute("insert into t (v) values ('a'), ('b')"),
                execute("update t set v = 'c' returning id"),
                execute("select last_insert_rowid(), changes()"),
                unwanted,
                execute("select id, v from t"),
            ]),
        )
        .await;
    let counts = |index: usize| {
        let result = &body["results"][index]["response"]["result"];
        (result["affected_row_count"].clone(), result["last_insert_rowid"].clone())
    };
    assert_eq!(counts(0), (json!(2), json!("2")));
    assert_eq!(counts(1), (json!(2), json!(null)));
    // Statements after a write run on its connection.
    assert_eq!(
        rows(&body, 2),
        &json!([[{"type": "integer", "value": "2"}, {"type": "integer", "value": "2"}]])
    );
    assert_eq!((rows(&body, 3), counts(3)), (&json!([]), (json!(0), json!(null))));
    let columns = json!([{"name": "id", "decltype": "INTEGER"}, {"name": "v", "decltype": "TEXT"}]);
    assert_eq!(body["results"][4]["response"]["result"]["cols"], columns);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_executed_and_errors_have_codes() {
    let started = start_with_table(Setup::default()).await;
    let requests = json!([
        execute("insert into t values (1, 'a')"),
        execute("insert into t values (1, 'b')"),
        execute("select * from nowhere"),
        execute("selec"),
        execute("attach ':memory:' as x"),
        execute("pragma user_version = 3"),
        execute("savepoint a"),
        execute("commit"),
        execute("select 1; select 2"),
        execute(" "),
        json!({"type": "execute", "stmt": {"sql_id": 7}}),
        execute("select count(*) from t"),
        close(),
        execute("select 1"),
    ]);
    let body = started.pipeline(None, requests).await;
    let codes: Vec<&str> = (1..=10).map(|index| code(&body, index)).collect();
    let expected = [
        "SQLITE_CONSTRAINT",
        "SQLITE_ERROR",
        "SQLITE_ERROR",
        "SQLITE_AUTH",
        "SQLITE_AUTH",
        "SQLITE_ERROR",
        "SQLITE_ERROR",
        "SQLITE_ERROR",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
    ];
    assert_eq!(codes, expected);
    assert_eq!(body["results"][1]["error"]["message"], "UNIQUE constraint failed: t.id");
    assert!(body["results"][6]["error"]["message"].as_str().unwrap().contains("begin it with BEGIN"));
    assert_eq!(rows(&body, 11), &json!([[{"type": "integer", "value": "1"}]]));
    assert_eq!(body["results"][12], json!({"type": "ok", "response": {"type": "close"}}));
    assert!(body["results"][13]["error"]["message"].as_str().unwrap().contains("closed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_batch_depend_on_conditions() {
    let started = start_with_table(Setup::default()).await;
    let step = |sql: &str, condition: Value| json!({"stmt": {"sql": sql}, "condition": condition});
    let steps = json!([
        step("insert into t values (1, 'a')", json!(null)),
        step("insert into t values (1, 'b')", json!({"type": "ok", "step": 0})),
        step("insert into t values (2, 'b')", json!({"type": "ok", "step": 1})),
        step("insert into t values (3, 'c')", json!({"type": "error", "step": 1})),
        step("insert into t values (4, 'd')", json!({"type": "not", "cond": {"type": "is_autocommit"}})),
        step(
            "insert into t values (5, 'e')",
            json!({"type": "and", "conds": [{"type": "is_autocommit"}, {"type": "not", "cond": {"type": "ok", "step": 4}}]}),
        ),
    ]);
    let requests =
        json!([{"type": "batch", "batch": {"steps": steps}}, execute("select group_concat(id) from t")]);
    let body = started.pipeline(None, requests).await;
    let result = &body["results"][0]["response"]["result"];
    let outcomes: Vec<_> = (0..6)
        .map(|step| (!result["step_results"][step].is_null(), result["step_errors"][step]["code"].clone()))
        .collect();
    let ok = (true, json!(null));
    let skipped = (false, json!(null));
    let failed = (false, json!("SQLITE_CONSTRAINT"));
    assert_eq!(outcomes, [ok.clone(), failed, skipped.clone(), ok.clone(), skipped, ok]);
    assert_eq!(rows(&body, 1)[0][0]["value"], "1,3,5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_runs_until_an_error() {
    let started = start_with_table(Setup::default()).await;
    let sequence = |sql: &str| json!({"type": "sequence", "sql": sql});
    let script = "-- a migration\n\
        create table log (v text);\n\
        create trigger copy after insert on t begin insert into log values (new.v || ';'); end;\n\
        BEGIN; insert into t (v) values ('a;b'); COMMIT; select 1;";
    let body = started.pipeline(None, json!([sequence(script), execute("select v from log"), close()])).await;
    assert_eq!(body["results"][0], json!({"type": "ok", "response": {"type": "sequence"}}));
    assert_eq!(rows(&body, 1)[0][0]["value"], "a;b;");
    let failing =
        sequence("insert into t values (7, 'x'); select * from nowhere; insert into t values (8, 'y')");
    let body = started.pipeline(None, json!([failing, execute("select max(id) from t")])).await;
    assert_eq!((code(&body, 0), &rows(&body, 1)[0][0]["value"]), ("SQLITE_ERROR", &json!("7")));
    let body = started.pipeline(None, json!([sequence("; -- nothing")])).await;
    assert_eq!(body["results"][0]["type"], "ok", "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_described_without_running() {
    let started = start_with_table(Setup::default()).await;
    let describe = |sql: &str| json!({"type": "describe", "sql": sql});
    let requests = json!([
        describe("insert into t (v) values (?), (:a) returning id, v || '!' as w"),
        describe("explain select * from t"),
        describe("select * from nowhere"),
        execute("select count(*) from t"),
    ]);
    let body = started.pipeline(None, requests).await;
    let expected = json!({
        "params": [{"name": null}, {"name": ":a"}],
        "cols": [{"name": "id", "decltype": "INTEGER"}, {"name": "w", "decltype": null}],
        "is_explain": false,
        "is_readonly": false,
    });
    assert_eq!(body["results"][0]["response"], json!({"type": "describe", "result": expected}));
    let explain = &body["results"][1]["response"]["result"];
    assert_eq!((&explain["is_explain"], &explain["is_readonly"]), (&json!(true), &json!(true)));
    assert_eq!(code(&body, 2), "SQLITE_ERROR");
    assert_eq!(rows(&body, 3)[0][0]["value"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn version_1_runs_one_request_on_a_stream_of_its_own() {
    let started = start_with_table(Setup::default()).await;
    let client = &started.client;
    let body =
        client.post("/v1/execute", json!({"stmt": {"sql": "insert into t values (1, 'a')"}})).await.ok();
    assert_eq!(
        (&body["result"]["affected_row_count"], &body["result"]["last_insert_rowid"]),
        (&json!(1), &json!("1"))
    );
    let body = client.post("/v1/batch", json!({"batch": batch(&["select v from t", "selec"])})).await.ok();
    assert_eq!(body["result"]["step_results"][0]["rows"][0][0]["value"], "a");
    assert_eq!(body["result"]["step_errors"][1]["code"], "SQLITE_ERROR");
    let failed = client.post("/v1/execute", json!({"stmt": {"sql": "insert into t values (1, 'a')"}})).await;
    assert_eq!(failed.error(), (400, "SQLITE_CONSTRAINT".to_owned()));
    // A transaction does not outlive the request.
    client.post("/v1/batch", json!({"batch": batch(&["BEGIN", "insert into t values (2, 'b')"])})).await.ok();
    assert_eq!(started.value("select count(*) from t").await, "1");
    assert_eq!(started.server.stats().await["runningTx"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_request_gets_a_clear_error() {
    let started = start(Setup::default()).await;
    for (path, body, part) in [
        ("/v2/pipeline", "{", "invalid JSON body"),
        ("/v2/pipeline", "[]", "invalid JSON body"),
        ("/v2/pipeline", r#"{"requests": [{"type": "dance"}]}"#, "unknown variant `dance`"),
        ("/v3/cursor", r#"{"batch": {"steps": [{}]}}"#, "missing field `stmt`"),
        ("/v1/execute", r#"{"stmt": {"sql": "x", "args": 1}}"#, "invalid type"),
        ("/v1/batch", "{}", "missing field `batch`"),
    ] {
        let response = started.client.send("POST", path, body).await;
        assert_eq!(response.error(), (400, "INVALID_REQUEST".to_owned()), "{path} {body}");
        assert!(response.json()["message"].as_str().unwrap().contains(part), "{path} {body}: {response:?}");
    }
    let method = started.client.send("GET", "/v2/pipeline", "").await;
    assert_eq!((method.status, method.headers["allow"].as_str()), (405, "POST"));
    assert_eq!(started.client.send("POST", "/V2/pipeline", "{}").await.status, 404);
}
