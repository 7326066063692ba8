//! The SQL API of `evenkeel serve` on a real PostgreSQL.

use serde_json::json;

use super::{begin, execute, execute_in, outcome, query};
use crate::server_process::ServerProcess;
use crate::test_dir::{CommandOutput, TestDir};
use evenkeel_sim_node::testing::read;
use evenkeel_test_postgres::{TestServer, shared};

fn datasource(url: &str) -> String {
    format!("[[sql.datasources]]\nname = 'pg'\nurl = '{url}'\n")
}

#[test]
fn nothing_of_an_open_transaction_survives_a_crash_of_the_gateway() {
    let database = shared().unwrap();
    let dir = TestDir::new("sql-pg-crash");
    dir.write("evenkeel.toml", &datasource(&database.url()));
    let server = ServerProcess::start(&dir, &[]);
    execute(&server, "create table t (n int)");
    execute(&server, "insert into t values (1)");
    let tx_id = begin(&server);
    assert_eq!(execute_in(&server, &tx_id, "insert into t values (2)").status, 200);
    server.signal("KILL");
    server.wait();
    let again = ServerProcess::start(&dir, &[]);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
                    AND datname = current_database()";
    while database.psql(sessions).unwrap().trim() != "0" {}
    assert_eq!(query(&again, "select n from t"), json!([[1]]));
    assert_eq!(again.post("/tx/commit", &json!({"txId": tx_id})).status, 410);
}

#[test]
fn a_superuser_is_reported_and_the_password_is_not() {
    let database = shared().unwrap();
    // Roles belong to the server, which other tests may share.
    let role = format!("clerk_{}", database.name());
    database.psql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'pass-of-clerk'")).unwrap();
    let dir = TestDir::new("sql-pg-superuser");
    let superuser = database.url();
    let clerk = database.url_as(&role, "pass-of-clerk").replace("postgres://", "postgresql://");
    let second = datasource(&clerk).replace("'pg'", "'clerk'");
    dir.write("evenkeel.toml", &format!("{}{second}", datasource(&superuser)));
    let server = ServerProcess::start(&dir, &[]);
    let warning = server.wait_log("is a superuser");
    assert_eq!(warning["datasource"], "pg");
    let reply = server.post("/query", &json!({"sql": "select current_user", "database": "clerk"}));
    assert_eq!(reply.json()["rows"], json!([[role]]));
    let shown = dir.run(&["check", "evenkeel.toml"]).ok();
    assert!(shown.contains(&format!("postgresql://{role}:[hidden]@127.0.0.1:")), "{shown}");
    for text in [shown, server.get("/api/config").body, server.get("/api/sql").body] {
        assert!(!text.contains("pass-of-clerk"), "{text}");
    }
    drop(server);
    database.psql(&format!("DROP ROLE {role}")).unwrap();
}

#[test]
fn a_server_that_is_down_at_the_start_is_used_once_it_is_up() {
    let mut postgres = TestServer::start().unwrap();
    let dir = TestDir::new("sql-pg-down");
    dir.write("evenkeel.toml", &datasource(&postgres.url("postgres")));
    postgres.stop().unwrap();
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.wait_log("PostgreSQL cannot be reached")["datasource"], "pg");
    let (status, error) = outcome(&server.post("/query", &json!({"sql": "select 1"})));
    assert_eq!((status, &error["code"]), (503, &json!("08001")), "{error}");
    postgres.restart().unwrap();
    while server.post("/query", &json!({"sql": "select 1"})).status != 200 {}
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn tenants_have_roles_and_session_settings() {
    let database = shared().unwrap();
    let role = format!("role_{}", database.name());
    let setup = format!(
        "CREATE ROLE {role}; CREATE TABLE t (owner text, n int); GRANT SELECT ON t TO {role}; \
         INSERT INTO t VALUES ('a', 1), ('b', 2); ALTER TABLE t ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY own ON t USING (owner = current_setting('app.tenant'))"
    );
    database.psql(&setup).unwrap();
    let dir = TestDir::new("sql-pg-tenants");
    let mut config = datasource(&database.url());
    let mut keys = Vec::new();
    for name in ["a", "b"] {
        let output = dir.run(&["tenant", "key"]).ok();
        let (key, hash) = output.trim().split_once('\n').unwrap();
        let sql = format!("role = '{role}'\nset = {{ 'app.tenant' = '{name}' }}\n");
        config.push_str(&format!("[[tenants]]\nname = '{name}'\nkey_hashes = ['{hash}']\n{sql}"));
        keys.push(key.to_owned());
    }
    dir.write("evenkeel.toml", &config);
    let server = ServerProcess::start(&dir, &[]);
    for (key, n) in [(0, 1), (1, 2), (0, 1)] {
        let authorization = format!("authorization: Bearer {}\r\n", keys[key]);
        let body = json!({"sql": "select current_user, n from t"});
        let reply = read(server.send("POST", "/query", &authorization, &body));
        assert_eq!(reply.json()["rows"], json!([[role, n]]), "{reply:?}");
    }
    drop(server);
    database.psql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).unwrap();
}

#[test]
fn the_command_prints_detail_and_hint() {
    let database = shared().unwrap();
    let dir = TestDir::new("sql-pg-cli");
    dir.write("evenkeel.toml", &datasource(&database.url()));
    let _server = ServerProcess::start(&dir, &[]);
    let run = |args: &[&str]| -> CommandOutput { dir.run(&[&["sql"], args].concat()) };
    run(&["create table t (id int primary key, amount numeric)"]).ok();
    let amount = "12345678901234567890.10";
    run(&["insert into t values ($1, $2)", "--param", "1", "--param", amount]).ok();
    assert_eq!(run(&["table t"]).ok(), format!("id  amount\n1   {amount}\n"));
    assert_eq!(
        run(&["insert into t values (1, 2)"]).failed(),
        "evenkeel: 23505: duplicate key value violates unique constraint \"t_pkey\"\n  detail: Key (id)=(1) already exists.\n"
    );
    let hint = run(&["select amont from t"]).failed();
    assert!(hint.contains("  hint: Perhaps you meant to reference the column \"t.amount\".\n"), "{hint}");
    assert!(hint.ends_with("  at line 1, column 8:\n    select amont from t\n           ^\n"), "{hint}");
}
