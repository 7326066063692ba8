//! Nothing of one owner's session is visible to another. The pool has one connection, which passes from ALICE to BOB.

use evenkeel_postgres::{DiscardReason, PgError, Session, TransactionStatus};

use crate::fixture::{ALICE, BOB, Fixture, execute, failure, query, session, value};

/// Lets ALICE run statements, and returns what BOB then reads on the same connection.
async fn after(alice: &[&str], bob: &str) -> String {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    let process = value(&mut connection, "SELECT pg_backend_pid()").await;
    for sql in alice {
        execute(&mut connection, sql).await;
    }
    let mine = value(&mut connection, bob).await;
    drop(connection);
    let mut connection = fixture.get(BOB).await;
    let theirs = value(&mut connection, bob).await;
    assert_ne!(mine, theirs, "the statements have no effect on ALICE either");
    assert_eq!(value(&mut connection, "SELECT pg_backend_pid()").await, process);
    assert_eq!(fixture.pool.counts().resets, 1);
    theirs
}

#[tokio::test]
async fn search_path_is_reset() {
    assert_eq!(after(&["SET search_path = secret"], "SHOW search_path").await, "\"$user\", public");
}

#[tokio::test]
async fn other_settings_are_reset() {
    assert_eq!(after(&["SET statement_timeout = '7min'"], "SHOW statement_timeout").await, "0");
    let custom = "SELECT coalesce(nullif(current_setting('app.secret', true), ''), 'unset')";
    assert_eq!(after(&["SET app.secret = 'x'"], custom).await, "unset");
    assert_eq!(after(&["SET TimeZone = 'Asia/Tokyo'"], "SHOW TimeZone").await, "UTC");
}

#[tokio::test]
async fn temporary_tables_are_dropped() {
    let tables = "SELECT count(*) FROM pg_class WHERE relpersistence = 't'";
    assert_eq!(after(&["CREATE TEMP TABLE secret (n int)"], tables).await, "0");
}

#[tokio::test]
async fn advisory_locks_are_released() {
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(after(&["SELECT pg_advisory_lock(42)"], locks).await, "0");
}

#[tokio::test]
async fn listening_ends() {
    let channels = "SELECT count(*) FROM pg_listening_channels()";
    assert_eq!(after(&["DO $$ BEGIN EXECUTE 'LISTEN secret'; END $$"], channels).await, "0");
}

#[tokio::test]
async fn cursors_are_closed() {
    let cursors = "SELECT count(*) FROM pg_cursors WHERE name <> ''";
    assert_eq!(after(&["DECLARE secret CURSOR WITH HOLD FOR SELECT 1"], cursors).await, "0");
}

#[tokio::test]
async fn prepared_statements_of_sql_are_dropped() {
    let prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name = 'secret'";
    assert_eq!(after(&["PREPARE secret AS SELECT 1"], prepared).await, "0");
}

#[tokio::test]
async fn our_prepared_statements_do_not_show_the_sql_of_another_owner() {
    // The statement that reads the view is prepared itself.
    let others =
        "SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared_statements%'";
    let alice = ["SELECT 'secret'", "SELECT 'password'"];
    let theirs = after(&alice, others).await;
    assert_eq!(theirs, "0");
}

#[tokio::test]
async fn sequence_values_are_forgotten() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE SEQUENCE s");
    let mut connection = fixture.get(ALICE).await;
    execute(&mut connection, "SELECT nextval('s')").await;
    assert_eq!(value(&mut connection, "SELECT currval('s')").await, "1");
    drop(connection);
    let mut connection = fixture.get(BOB).await;
    assert_eq!(failure(&mut connection, "SELECT currval('s')").await.sqlstate(), "55000");
    assert_eq!(failure(&mut connection, "SELECT lastval()").await.sqlstate(), "55000");
}

#[tokio::test]
async fn roles_and_settings_apply_to_their_session_only() {
    let fixture = Fixture::with_one_connection();
    let role = format!("we\"ird 'role' {}", fixture.database.name());
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    fixture.psql(&format!("CREATE ROLE {quoted}"));
    let settings =
        vec![("app.tenant".to_owned(), "o'brie\"n\\".to_owned()), ("work_mem".to_owned(), "7MB".to_owned())];
    let alice = Session { role: Some(role.clone()), settings, ..session(ALICE) };
    let sql = "SELECT current_user, current_setting('app.tenant', true), current_setting('work_mem')";

    let mut connection = fixture.pool.get(&alice).await.unwrap();
    assert_eq!(query(&mut connection, sql).await.unwrap(), [[role.as_str(), "o'brie\"n\\", "7MB"]]);
    drop(connection);
    let mut connection = fixture.get(BOB).await;
    assert_eq!(query(&mut connection, sql).await.unwrap(), [["postgres", "", "4MB"]]);
    drop(connection);
    let mut connection = fixture.pool.get(&alice).await.unwrap();
    assert_eq!(query(&mut connection, sql).await.unwrap(), [[role.as_str(), "o'brie\"n\\", "7MB"]]);
    execute(&mut connection, "RESET ROLE").await;
    execute(&mut connection, "SET SESSION AUTHORIZATION DEFAULT").await;
    drop(connection);
    let mut connection = fixture.get(BOB).await;
    assert_eq!(value(&mut connection, "SELECT session_user || current_user").await, "postgrespostgres");
    drop(connection);
    fixture.psql(&format!("DROP ROLE {quoted}"));
    assert_eq!(fixture.pool.counts().connections_opened, 1);
}

#[tokio::test]
async fn a_statement_that_fails_does_not_undo_the_reset_and_the_setup_before_it() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    execute(&mut connection, "SET search_path = secret").await;
    drop(connection);
    let settings = vec![("app.tenant".to_owned(), "bob".to_owned())];
    let mut connection = fixture.pool.get(&Session { settings, ..session(BOB) }).await.unwrap();
    assert_eq!(failure(&mut connection, "SELECT 1/0").await.sqlstate(), "22012");
    assert_eq!(value(&mut connection, "SHOW search_path").await, "\"$user\", public");
    assert_eq!(value(&mut connection, "SHOW app.tenant").await, "bob");
    assert_eq!(fixture.pool.counts().resets, 1);
}

#[tokio::test]
async fn commands_that_need_no_transaction_can_follow_a_reset_and_setup() {
    let fixture = Fixture::with_one_connection();
    let settings = vec![("app.tenant".to_owned(), "x".to_owned())];
    for owner in [ALICE, BOB, ALICE] {
        let with_settings = Session { settings: settings.clone(), ..session(owner) };
        let mut connection = fixture.pool.get(&with_settings).await.unwrap();
        execute(&mut connection, "VACUUM").await;
        drop(connection);
        let mut connection = fixture.get(owner + 10).await;
        execute(&mut connection, "VACUUM").await;
        drop(connection);
        let mut connection = fixture.pool.get(&with_settings).await.unwrap();
        connection.simple("BEGIN").await.unwrap();
        assert_eq!(connection.transaction_status(), TransactionStatus::InTransaction);
        connection.simple("ROLLBACK").await.unwrap();
        assert_eq!(value(&mut connection, "SHOW app.tenant").await, "x");
    }
}

#[tokio::test]
async fn a_statement_does_not_run_if_the_reset_before_it_fails() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let mut connection = fixture.get(ALICE).await;
    // Dropping a thousand tables takes longer than the time limit, which DISCARD ALL runs under.
    execute(
        &mut connection,
        "DO $$ BEGIN FOR i IN 1..1000 LOOP EXECUTE format('CREATE TEMP TABLE x%s (n int)', i); END LOOP; END $$",
    )
    .await;
    execute(&mut connection, "SET statement_timeout = 1").await;
    drop(connection);
    let mut connection = fixture.get(BOB).await;
    let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
    assert!(matches!(error, PgError::Session(_)), "{error:?}");
    assert_eq!(error.sqlstate(), "57014");
    drop(connection);
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "0");
    assert_eq!(fixture.pool.counts().discarded(DiscardReason::Session), 1);
    let mut connection = fixture.get(BOB).await;
    assert_eq!(value(&mut connection, "SHOW statement_timeout").await, "0");
}

#[tokio::test]
async fn a_statement_does_not_run_without_its_role() {
    let fixture = Fixture::with_one_connection();
    fixture.psql("CREATE TABLE t (n int)");
    let missing = Session { role: Some("no_such_role".to_owned()), ..session(ALICE) };
    let mut connection = fixture.pool.get(&missing).await.unwrap();
    let error = failure(&mut connection, "INSERT INTO t VALUES (1)").await;
    assert!(matches!(error, PgError::Session(_)), "{error:?}");
    assert_eq!(error.sqlstate(), "22023");
    assert!(matches!(failure(&mut connection, "SELECT 1").await, PgError::ConnectionLost { .. }));
    drop(connection);
    assert_eq!(fixture.psql("SELECT count(*) FROM t"), "0");
    assert_eq!(fixture.pool.gauges().open, 0);
}

#[tokio::test]
async fn a_session_with_too_many_settings_is_rejected() {
    let fixture = Fixture::new();
    let setting = |index: usize| (format!("app.s{index}"), "x".to_owned());
    let with = |count: usize| Session { settings: (0..count).map(setting).collect(), ..session(ALICE) };
    let mut connection = fixture.pool.get(&with(256)).await.unwrap();
    assert_eq!(value(&mut connection, "SHOW app.s255").await, "x");
    let error = fixture.pool.get(&with(257)).await.unwrap_err();
    assert_eq!(error.sqlstate(), "54000");
}

#[tokio::test]
async fn the_same_owner_keeps_its_session() {
    let fixture = Fixture::with_one_connection();
    let mut connection = fixture.get(ALICE).await;
    execute(&mut connection, "CREATE TEMP TABLE mine (n int)").await;
    drop(connection);
    let mut connection = fixture.get(ALICE).await;
    assert_eq!(value(&mut connection, "SELECT count(*) FROM mine").await, "0");
    assert_eq!(fixture.pool.counts().resets, 0);
}

#[tokio::test]
async fn a_client_that_resets_its_session_gets_its_role_and_settings_back() {
    let fixture = Fixture::with_one_connection();
    let settings = vec![("app.tenant".to_owned(), "alice".to_owned())];
    let role = Some("pg_read_all_data".to_owned());
    let mut connection = fixture.pool.get(&Session { role, settings, ..session(ALICE) }).await.unwrap();
    let sql = "SELECT current_user, current_setting('app.tenant')";
    for change in ["SELECT 1", "RESET ALL", "DISCARD ALL", "RESET ROLE", "SET app.tenant = 'bob'"] {
        execute(&mut connection, change).await;
        assert_eq!(query(&mut connection, sql).await.unwrap(), [["pg_read_all_data", "alice"]], "{change}");
    }
}
