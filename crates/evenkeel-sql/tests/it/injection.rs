//! Hostile strings in every place where a client or an operator can put one: they stay data or get a clear error.
//!
//! Every test ends with the canary: a table that a spliced string would have changed.

use evenkeel_server::tenant::{TenantSettings, TenantSql};
use evenkeel_test_postgres::SharedDatabase;
use serde_json::json;

use crate::harness::{RawResponse, Setup, SqlServer, tenant};
use crate::outside::{Outside, database_with};

/// Strings that end a literal, begin a comment or another statement, or mean something to a layer on the way.
pub(crate) const HOSTILE: &[&str] = &[
    "'",
    "''",
    "\"",
    "\\",
    "\\'",
    "';",
    "'; drop table canary; --",
    "'); drop table canary; --",
    "\"; drop table canary; --",
    "1; drop table canary",
    "1 or 1=1",
    "' or '1'='1",
    "' union select v from canary --",
    "x' || (select v from canary) || '",
    "-- comment",
    "/* comment",
    "*/ delete from canary /*",
    "#",
    "$1",
    "$2",
    "$$",
    "$$; drop table canary; $$",
    "$tag$ drop table canary $tag$",
    ":name",
    "?",
    "%s%n%x%d",
    "%00",
    "{0}",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "$(touch /tmp/x)",
    "`id`",
    "\\x00",
    "\\000",
    "\\u0000",
    "E'\\047'",
    "U&'\\0027'",
    "\u{2019}; drop table canary; --",
    "\u{ff07} or 1=1",
    "\u{bf}\u{27}",
    "\u{202e}elbat pord",
    "\u{feff}",
    "e\u{301}",
    "\u{1f980}\u{200d}\u{1f980}",
    "\u{10ffff}",
    "\t",
    " ",
    "a\nb",
    "a\r\nx-injected: 1",
    "\u{1b}[2J",
    "NULL",
    "null",
    "undefined",
    "DEFAULT",
    "true",
    "[1]",
    "{\"type\":\"int4\",\"value\":1}",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "\\copy canary to '/tmp/x'",
    "set role postgres",
    "pg_sleep(600)",
];

/// Strings with a NUL character, which PostgreSQL cannot store.
const WITH_NUL: &[&str] = &["\0", "a\0b", "'\0; drop table canary"];

async fn start(tenants: Vec<TenantSettings>) -> (SharedDatabase, SqlServer) {
    let database = database_with(
        "create table canary (v text); insert into canary values ('alive'); create table t (id int, v text)",
    )
    .await;
    let server = SqlServer::on_postgres(&database.url(), Setup { tenants, ..Setup::default() }).await;
    (database, server)
}

async fn assert_canary_lives(database: &SharedDatabase) {
    assert!(40 <= HOSTILE.len());
    assert_eq!(database.sql("select string_agg(v, ',') from canary").await, "alive");
}

/// Checks that an error has a code and a message, and is the client's fault.
fn assert_clear(response: &RawResponse, hostile: &str) {
    assert_eq!(response.status / 100, 4, "{hostile:?}: {response:?}");
    let json = response.json();
    assert!(!json["code"].as_str().unwrap().is_empty(), "{hostile:?}: {response:?}");
    assert!(10 < json["message"].as_str().unwrap().len(), "{hostile:?}: {response:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn parameter_values_stay_data() {
    let (database, server) = start(Vec::new()).await;
    let client = server.client();
    let mut expected = Vec::new();
    for (id, hostile) in HOSTILE.iter().enumerate() {
        let echo = client.query("select $1, $2::text[]", json!([hostile, [hostile, hostile]])).await.ok();
        assert_eq!(echo["rows"], json!([[hostile, [hostile, hostile]]]));
        let typed = json!({"type": "text", "value": hostile});
        client.execute("insert into t values ($1, $2), ($1, $3)", json!([id, hostile, typed])).await.ok();
        let document = json!({"type": "jsonb", "value": {*hostile: hostile}});
        let inner = client.query("select ($1->>$2), $1 ? $2", json!([document, hostile])).await.ok();
        assert_eq!(inner["rows"], json!([[hostile, true]]), "{hostile:?}");
        let found = client.query("select count(*)::int4 from t where v = $1", json!([hostile])).await.ok();
        assert_eq!(found["rows"], json!([[2]]), "{hostile:?}");
        assert_clear(&client.query("select $1::uuid", json!([hostile])).await, hostile);
        assert_clear(
            &client.query("select $1::int4", json!([{"type": "int4", "value": [hostile]}])).await,
            hostile,
        );
        let hex: String = hostile.bytes().map(|byte| format!("{byte:02x}")).collect();
        expected.push(format!("{id} {hex},{id} {hex}"));
    }
    for hostile in WITH_NUL {
        assert_clear(&client.query("select $1", json!([hostile])).await, hostile);
        assert_clear(&client.query("select $1::text[]", json!([[hostile]])).await, hostile);
    }
    let stored =
        "select string_agg(id || ' ' || encode(convert_to(v, 'UTF8'), 'hex'), ',' order by id) from t";
    assert_eq!(database.sql(stored).await, expected.join(","));
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_stay_data() {
    let (database, server) = start(Vec::new()).await;
    let mut keys = 0_u32;
    for hostile in HOSTILE {
        // HTTP headers cannot carry control characters.
        if hostile.contains(|c: char| c.is_control() && c != '\t') {
            continue;
        }
        let client = server.client().with("idempotency-key", hostile);
        let insert = "insert into t values (1, $1) returning v";
        let first = client.execute(insert, json!([hostile])).await;
        let second = client.execute(insert, json!([hostile])).await;
        assert_eq!((first.status, &first.body), (second.status, &second.body), "{hostile:?}");
        if first.status == 200 {
            assert_eq!(first.json()["rows"], json!([[hostile]]));
            keys += 1;
        } else {
            assert_clear(&first, hostile);
        }
    }
    assert!(30 < keys, "{keys} keys were accepted");
    assert_eq!(database.value::<u32>("select count(*) from t").await, keys, "each ran exactly once");
    assert_eq!(database.value::<u32>("select count(distinct v) from t").await, keys);
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_databases_and_transactions_are_looked_up_and_never_run() {
    let (database, server) = start(Vec::new()).await;
    let client = server.client();
    for hostile in HOSTILE.iter().chain(WITH_NUL) {
        let unknown =
            client.post("/execute", json!({"sql": "delete from canary", "database": hostile})).await;
        assert_eq!(unknown.error(), (404, "unknown_database".to_owned()), "{hostile:?}");
        let unknown = client.post("/tx/begin", json!({"database": hostile})).await;
        assert_eq!(unknown.error(), (404, "unknown_database".to_owned()), "{hostile:?}");
        let invalid = client.post("/execute", json!({"sql": "delete from canary", "txId": hostile})).await;
        assert_eq!(invalid.error(), (400, "invalid_tx_id".to_owned()), "{hostile:?}");
        for path in ["/tx/commit", "/tx/rollback"] {
            let invalid = client.post(path, json!({"txId": hostile})).await;
            assert_eq!(invalid.error(), (400, "invalid_tx_id".to_owned()), "{hostile:?}");
        }
        let isolation = client.post("/tx/begin", json!({"isolation": hostile})).await;
        assert_eq!(isolation.error(), (400, "invalid_request".to_owned()), "{hostile:?}");
    }
    let stats = server.stats().await;
    assert_eq!((&stats["runningTx"], &stats["runningHttpSession"]), (&json!(0), &json!(0)));
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_types_are_looked_up_and_never_run() {
    let (database, server) = start(Vec::new()).await;
    let client = server.client();
    // As text these are also names of types, or of nothing.
    let more = [
        "text) from canary; --",
        "int4]; drop table canary",
        "\"text\"",
        "(text)",
        "text, text",
        "int4[",
        "[]",
    ];
    let tx_id = client.begin(json!({})).await;
    for hostile in HOSTILE.iter().chain(WITH_NUL).chain(&more) {
        let param = json!({"type": hostile, "value": "1"});
        let response = client.query("select $1::text", json!([param])).await;
        if *hostile == "\"text\"" {
            assert_eq!(response.ok()["rows"], json!([["1"]]));
        } else {
            assert_clear(&response, hostile);
        }
        let array = json!({"type": format!("{hostile}[]"), "value": ["1"]});
        let response = client.query("select $1::text", json!([array])).await;
        if *hostile == "\"text\"" {
            assert_eq!(response.ok()["rows"], json!([["{1}"]]));
        } else {
            assert_clear(&response, hostile);
        }
    }
    client.execute_in(&tx_id, "select 1").await.ok();
    client.post("/tx/commit", json!({"txId": tx_id})).await.ok();
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_tenants_settings_stay_data() {
    let strings: Vec<&str> = HOSTILE.iter().chain(WITH_NUL).copied().collect();
    let with_setting = |(index, hostile): (usize, &&str)| {
        let settings = vec![("app.tenant".to_owned(), (*hostile).to_owned())];
        TenantSettings { sql: TenantSql { settings, ..TenantSql::default() }, ..tenant(&format!("s{index}")) }
    };
    let (database, server) = start(strings.iter().enumerate().map(with_setting).collect()).await;
    for (index, hostile) in strings.iter().enumerate() {
        let client = server.client_of(&format!("s{index}"));
        let response = client.query("select current_setting('app.tenant')", json!([])).await;
        if hostile.contains('\0') {
            assert_clear(&response, hostile);
        } else {
            assert_eq!(response.ok()["rows"], json!([[hostile]]));
        }
    }
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_tenants_settings_and_roles_are_names_or_errors() {
    let strings: Vec<&str> = HOSTILE.iter().chain(WITH_NUL).copied().collect();
    let mut tenants = vec![tenant("plain")];
    for (index, hostile) in strings.iter().enumerate() {
        let settings = vec![((*hostile).to_owned(), "on".to_owned())];
        let name = format!("n{index}");
        tenants.push(TenantSettings { sql: TenantSql { settings, ..TenantSql::default() }, ..tenant(&name) });
        let role = TenantSql { role: Some((*hostile).to_owned()), ..TenantSql::default() };
        tenants.push(TenantSettings { sql: role, ..tenant(&format!("r{index}")) });
    }
    let (database, server) = start(tenants).await;
    for (index, hostile) in strings.iter().enumerate() {
        for kind in ["n", "r"] {
            let client = server.client_of(&format!("{kind}{index}"));
            let response = client.execute("delete from canary", json!([])).await;
            assert_clear(&response, hostile);
        }
        server.client_of("plain").query("select 1", json!([])).await.ok();
    }
    assert_canary_lives(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_may_have_a_hostile_name() {
    let database = database_with("create table canary (v text); insert into canary values ('alive')").await;
    let suffix = database.name().rsplit('_').next().unwrap().to_owned() + &std::process::id().to_string();
    let roles: Vec<String> = ["o'hara", "x\"; drop table canary; --", "$1", "a\\b é", "None "]
        .iter()
        .map(|name| format!("{name}{suffix}"))
        .collect();
    let mut tenants = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let quoted = role.replace('"', "\"\"");
        database.sql(&format!("create role \"{quoted}\"")).await;
        let sql = TenantSql { role: Some(role.clone()), ..TenantSql::default() };
        tenants.push(TenantSettings { sql, ..tenant(&format!("t{index}")) });
    }
    let server = SqlServer::on_postgres(&database.url(), Setup { tenants, ..Setup::default() }).await;
    for (index, role) in roles.iter().enumerate() {
        let client = server.client_of(&format!("t{index}"));
        let user = client.query("select current_user::text", json!([])).await.ok();
        assert_eq!(user["rows"], json!([[role]]));
        assert_eq!(client.execute("delete from canary", json!([])).await.error(), (400, "42501".to_owned()));
    }
    assert_canary_lives(&database).await;
    server.api.close().await;
    for role in &roles {
        database.sql(&format!("drop role \"{}\"", role.replace('"', "\"\""))).await;
    }
}
