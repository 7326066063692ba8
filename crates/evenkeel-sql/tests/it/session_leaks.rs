//! Two tenants on one connection: nothing that one leaves in its session is visible to the other.
//!
//! Each test first shows that the state is there, for its own tenant or in the database, and that the other tenant got
//! the same connection.

use evenkeel_test_postgres::SharedDatabase;
use serde_json::{Value, json};

use crate::harness::{Client, Setup, SqlServer, tenant};
use crate::outside::{Outside, database_with};

/// Tenants `a` and `b` in front of a pool of one connection.
struct TwoTenants {
    database: SharedDatabase,
    _server: SqlServer,
    a: Client,
    b: Client,
}

impl TwoTenants {
    async fn start(sql: &str) -> Self {
        let database = database_with(sql).await;
        let tenants = vec![tenant("a"), tenant("b")];
        let setup = Setup { tenants, max_open_conns: 1, ..Setup::default() };
        let server = SqlServer::on_postgres(&database.url(), setup).await;
        let a = server.client_of("a");
        let b = server.client_of("b");
        Self { database, _server: server, a, b }
    }

    /// Runs a statement as `a` and checks that a probe shows `a` the state it left.
    async fn leave(&self, sql: &str, probe: &str, left: Value) {
        self.a.execute(sql, json!([])).await.ok();
        assert_eq!(value(&self.a, probe).await, left, "the state is there: {sql}");
    }

    /// Checks that a probe shows `b` a clean session on the connection that `a` used, and then `a` too.
    async fn assert_clean(&self, probe: &str, clean: Value) {
        let process = value(&self.a, "select pg_backend_pid()").await;
        assert_eq!(value(&self.b, probe).await, clean, "{probe} of the other tenant");
        assert_eq!(value(&self.b, "select pg_backend_pid()").await, process, "both had the same connection");
        assert_eq!(value(&self.a, probe).await, clean, "{probe} after another tenant had the connection");
    }
}

/// Returns the only value of a query.
async fn value(client: &Client, sql: &str) -> Value {
    client.query(sql, json!([])).await.ok()["rows"][0][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_does_not_leak() {
    let tenants = TwoTenants::start("").await;
    let role = format!("leak_{}", tenants.database.name());
    tenants.database.sql(&format!("create role {role}")).await;
    let user = "select current_user::text";
    tenants.leave(&format!("set role {role}"), user, json!(role)).await;
    tenants.assert_clean(user, json!("postgres")).await;
    let session_user = "select session_user::text";
    tenants.leave(&format!("set session authorization {role}"), session_user, json!(role)).await;
    tenants.assert_clean(session_user, json!("postgres")).await;
    tenants.database.sql(&format!("drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_path_does_not_leak() {
    let tenants = TwoTenants::start(
        "create schema evil; create table evil.t as select 'evil' as v; create table t as select 'good' as v",
    )
    .await;
    tenants.leave("set search_path = evil, public", "select v from t", json!("evil")).await;
    tenants.assert_clean("select v from t", json!("good")).await;
    tenants.leave("set search_path = evil", "show search_path", json!("evil")).await;
    tenants.assert_clean("show search_path", json!("\"$user\", public")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_do_not_leak() {
    let tenants = TwoTenants::start("").await;
    let secret = "select coalesce(current_setting('app.secret', true), '')";
    tenants.leave("set app.secret = 'of a'", secret, json!("of a")).await;
    tenants.assert_clean(secret, json!("")).await;
    tenants.leave("set statement_timeout = '1h'", "show statement_timeout", json!("1h")).await;
    tenants.assert_clean("show statement_timeout", json!("0")).await;
    tenants.leave("set timezone = 'Asia/Tokyo'", "show timezone", json!("Asia/Tokyo")).await;
    tenants.assert_clean("show timezone", json!("UTC")).await;
    let name = "select current_setting('application_name')";
    tenants.leave("set application_name = 'a'", name, json!("a")).await;
    tenants.assert_clean(name, json!("evenkeel")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_table_does_not_leak() {
    let tenants = TwoTenants::start("create table t as select 'good' as v").await;
    tenants.leave("create temporary table t as select 'of a' as v", "select v from t", json!("of a")).await;
    tenants.assert_clean("select v from t", json!("good")).await;
    let temporary = "select count(*)::int4 from pg_class where relpersistence = 't'";
    assert_eq!(tenants.database.sql(temporary).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advisory_lock_does_not_outlive_its_tenant() {
    let tenants = TwoTenants::start("").await;
    let locks = "select count(*)::int4 from pg_locks where locktype = 'advisory' \
                 and database = (select oid from pg_database where datname = current_database())";
    tenants.leave("select pg_advisory_lock(42)", locks, json!(1)).await;
    assert_eq!(tenants.database.sql(locks).await, "1", "as others see it");
    tenants.assert_clean(locks, json!(0)).await;
    assert_eq!(tenants.database.sql("select pg_try_advisory_lock(42)").await, "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listen_does_not_leak_even_if_a_block_hides_it() {
    let tenants = TwoTenants::start("").await;
    assert_eq!(tenants.a.execute("listen x", json!([])).await.error(), (400, "0A000".to_owned()));
    let channels = "select count(*)::int4 from pg_listening_channels()";
    tenants.assert_clean(channels, json!(0)).await;
    tenants.leave("do $$ begin execute 'listen x'; end $$", channels, json!(1)).await;
    tenants.assert_clean(channels, json!(0)).await;
    tenants.leave("do $$ begin execute 'listen x'; end $$", channels, json!(1)).await;
    tenants.database.sql("notify x, 'for nobody'").await;
    assert_eq!(value(&tenants.b, "select 7").await, json!(7), "a notification disturbs nobody");
    assert_eq!(value(&tenants.b, channels).await, json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_with_hold_does_not_leak() {
    let tenants = TwoTenants::start("").await;
    let cursors = "select count(*)::int4 from pg_cursors where name = 'held'";
    let declare = "declare held cursor with hold for select 'of a' from generate_series(1, 3)";
    tenants.leave(declare, cursors, json!(1)).await;
    tenants.assert_clean(cursors, json!(0)).await;
    tenants.a.execute(declare, json!([])).await.ok();
    assert_eq!(tenants.b.execute("fetch held", json!([])).await.error(), (400, "34000".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_do_not_leak() {
    let tenants = TwoTenants::start("").await;
    let mine = "select count(*)::int4 from pg_prepared_statements where name = 'mine'";
    tenants.leave("prepare mine as select 'of a'", mine, json!(1)).await;
    tenants.assert_clean(mine, json!(0)).await;
    // The gateway prepares statements too, and their text is the tenant's SQL.
    let texts =
        "select count(*)::int4 from pg_prepared_statements where statement like 'select ''text of a%'";
    tenants.leave("select 'text of a'", texts, json!(1)).await;
    tenants.assert_clean(texts, json!(0)).await;
    tenants.a.execute("prepare mine as select 'of a'", json!([])).await.ok();
    assert_eq!(tenants.b.execute("execute mine", json!([])).await.error(), (400, "26000".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_value_of_a_sequence_does_not_leak() {
    let tenants = TwoTenants::start("create sequence s start 77").await;
    tenants.leave("select nextval('s')", "select currval('s')::int4", json!(77)).await;
    for sql in ["select currval('s')", "select lastval()"] {
        assert_eq!(tenants.b.query(sql, json!([])).await.error(), (400, "55000".to_owned()));
        assert_eq!(tenants.a.query(sql, json!([])).await.error(), (400, "55000".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_sessions_do_not_leak_and_queries_stay_read_only() {
    let tenants = TwoTenants::start("create table t (id int)").await;
    let insert = "insert into t values (1)";
    for sql in [
        "set default_transaction_read_only = on",
        "set session characteristics as transaction read only",
        "set default_transaction_isolation = 'serializable'",
    ] {
        tenants.a.execute(sql, json!([])).await.ok();
        tenants.b.execute(insert, json!([])).await.ok();
        assert_eq!(value(&tenants.b, "show default_transaction_isolation").await, json!("read committed"));
    }
    assert_eq!(tenants.database.sql("select count(*) from t").await, "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_cannot_make_its_own_queries_writable() {
    let tenants = TwoTenants::start("create table t (id int); create sequence s").await;
    let insert = "insert into t values (1)";
    for sql in [
        "set default_transaction_read_only = off",
        "select set_config('default_transaction_read_only', 'off', false)",
        "set session characteristics as transaction read write",
        "reset all",
        "discard all",
    ] {
        for path in ["/execute", "/query"] {
            // Some of these are errors themselves.
            tenants.a.post(path, json!({"sql": sql})).await;
            let refused = tenants.a.query(insert, json!([])).await;
            assert_eq!(refused.error(), (400, "25006".to_owned()), "after {sql} by {path}");
        }
    }
    let refused = tenants
        .a
        .query("do $$ begin set transaction read write; insert into t values (1); end $$", json!([]));
    assert_eq!(refused.await.error(), (400, "25001".to_owned()));
    let refused =
        tenants.a.query("select set_config('transaction_read_only', 'off', true), nextval('s')", json!([]));
    assert_eq!(refused.await.error(), (400, "25001".to_owned()));
    assert_eq!(tenants.database.sql("select count(*) from t").await, "0");
    tenants.a.execute(insert, json!([])).await.ok();
}
