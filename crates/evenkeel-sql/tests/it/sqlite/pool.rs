//! Connections: their number, their order, and the end of the datasource.

use evenkeel_sql::datasource::sqlite::{OpenError, SqliteDatasource, SqliteOptions};
use evenkeel_sql::datasource::{AccessMode, Datasource, EngineKind};
use evenkeel_sql::error::DatabaseError;

use super::harness::{ALICE, BOB, ENDLESS, TestDatabase, Value, lease, poll_once};

#[tokio::test]
async fn there_is_one_writer_at_a_time() {
    let database = TestDatabase::new();
    let writer = database.writer(ALICE).await;
    let mut second = Box::pin(database.connect(BOB, AccessMode::ReadWrite));
    let mut third = Box::pin(database.connect(ALICE, AccessMode::ReadWrite));
    assert!(poll_once(second.as_mut()).is_pending());
    assert!(poll_once(third.as_mut()).is_pending());
    assert_eq!(database.datasource.gauges().waiting, 2);
    let mut reader = database.reader(ALICE).await;
    assert_eq!(reader.value("SELECT 1").await, Value::Integer(1));
    writer.release().await;
    let second = second.await.unwrap();
    assert!(poll_once(third.as_mut()).is_pending(), "the waiters come in turn");
    assert_eq!(database.datasource.gauges().waiting, 1);
    drop(third);
    assert_eq!(database.datasource.gauges().waiting, 0);
    second.release().await;
    database.writer(ALICE).await.run("CREATE TABLE t (a)").await.unwrap();
}

#[tokio::test]
async fn readers_are_opened_when_they_are_needed_up_to_the_limit() {
    let database = TestDatabase::with(|options| options.readers_max = 2);
    let gauges = || {
        let gauges = database.datasource.gauges();
        (gauges.open, gauges.idle, gauges.in_use, gauges.waiting)
    };
    assert_eq!(gauges(), (1, 1, 0, 0));
    let first = database.reader(ALICE).await;
    assert_eq!(gauges(), (2, 1, 1, 0));
    let second = database.reader(ALICE).await;
    assert_eq!(gauges(), (3, 1, 2, 0));
    let mut third = Box::pin(database.connect(ALICE, AccessMode::ReadOnly));
    assert!(poll_once(third.as_mut()).is_pending());
    assert_eq!(gauges(), (3, 1, 2, 1));
    first.release().await;
    let third = third.await.unwrap();
    assert_eq!(gauges(), (3, 1, 2, 0));
    second.release().await;
    third.release().await;
    assert_eq!(gauges(), (3, 3, 0, 0));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn threads_are_named_after_their_connections() {
    let database = TestDatabase::new();
    let _first = database.reader(ALICE).await;
    let _second = database.reader(ALICE).await;
    // A thread names itself before its first job.
    database.setup(&["SELECT 1"]).await;
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    for expected in ["sqlite-writer", "sqlite-reader-0", "sqlite-reader-1"] {
        // The kernel keeps 15 characters of a thread's name.
        let expected = &expected[..expected.len().min(15)];
        assert!(names.iter().any(|name| name == expected), "{expected}: {names:?}");
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_releases_its_lease() {
    let database = TestDatabase::new();
    let _writer = database.writer(ALICE).await;
    let (sender, mut released) = tokio::sync::oneshot::channel();
    let lease = lease(BOB, AccessMode::ReadWrite, move || {
        let _ = sender.send(());
    });
    let mut connecting = database.datasource.connect(lease);
    assert!(poll_once(connecting.as_mut()).is_pending());
    assert!(released.try_recv().is_err());
    drop(connecting);
    released.try_recv().unwrap();
}

#[tokio::test]
async fn a_caller_that_gives_up_while_a_reader_opens_releases_it() {
    let database = TestDatabase::with(|options| options.readers_max = 1);
    for _ in 0..50 {
        let (sender, released) = tokio::sync::oneshot::channel();
        let lease = lease(BOB, AccessMode::ReadOnly, move || {
            let _ = sender.send(());
        });
        let mut connecting = database.datasource.connect(lease);
        let _ = poll_once(connecting.as_mut());
        drop(connecting);
        released.await.unwrap();
        assert_eq!(database.datasource.gauges().in_use, 0);
    }
}

#[tokio::test]
async fn closing_ends_threads_and_empties_the_log() {
    let database = TestDatabase::new();
    let log = database.path.with_file_name("test.db-wal");
    database.setup(&["CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"]).await;
    drop(database.reader(ALICE).await);
    assert!(log.metadata().unwrap().len() > 0);
    database.datasource.close().await;
    assert!(!log.exists());
    assert_eq!(database.datasource.gauges().open, 0);
    let refused = database.connect(ALICE, AccessMode::ReadOnly).await;
    assert!(matches!(refused.err(), Some(DatabaseError::Unavailable { .. })));
    let reopened = SqliteDatasource::open(SqliteOptions::new(&database.path)).unwrap();
    assert_eq!(reopened.gauges().open, 1);
}

#[tokio::test]
async fn closing_waits_for_lent_connections_and_refuses_waiting_callers() {
    let database = TestDatabase::new();
    let writer = database.writer(ALICE).await;
    let mut reader = database.reader(ALICE).await;
    reader.start_and_drop(ENDLESS);
    let mut waiting = Box::pin(database.connect(BOB, AccessMode::ReadWrite));
    assert!(poll_once(waiting.as_mut()).is_pending());
    let mut closing = database.datasource.close();
    assert!(poll_once(closing.as_mut()).is_pending());
    assert!(matches!(waiting.await.err(), Some(DatabaseError::Unavailable { .. })));
    writer.release().await;
    assert!(poll_once(closing.as_mut()).is_pending());
    reader.release().await;
    closing.await;
    assert_eq!(database.datasource.gauges().open, 0);
}

#[tokio::test]
async fn two_handles_of_a_file_have_the_same_identity() {
    let database = TestDatabase::new();
    let other = TestDatabase::new();
    let again = SqliteDatasource::open(SqliteOptions::new(&database.path)).unwrap();
    let id = database.datasource.database_id().await.unwrap();
    assert!(id.starts_with("sqlite:"), "{id}");
    assert_eq!(id, again.database_id().await.unwrap());
    assert_ne!(id, other.datasource.database_id().await.unwrap());
    assert_eq!(database.datasource.engine(), EngineKind::Sqlite);
}

#[test]
fn paths_that_are_not_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| SqliteDatasource::open(SqliteOptions::new(path)).err();
    assert!(matches!(open(":memory:".as_ref()), Some(OpenError::NotAFile { .. })));
    assert!(matches!(open("".as_ref()), Some(OpenError::NotAFile { .. })));
    assert!(matches!(open(directory.path()), Some(OpenError::NotAFile { .. })));
    let absent = directory.path().join("absent/test.db");
    assert!(matches!(open(&absent), Some(OpenError::Directory { .. })));
    let text = directory.path().join("text.db");
    std::fs::write(&text, "this is a text and no database, ".repeat(100)).unwrap();
    assert!(matches!(open(&text), Some(OpenError::Sqlite { .. })));
}
