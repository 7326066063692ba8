//! Authentication methods and unix sockets.

use std::sync::Arc;

use evenkeel_postgres::{ConnectConfig, ConnectError, PgError, Pool, PoolConfig};
use evenkeel_test_postgres::TestServer;

use crate::fixture::{ALICE, Fixture, session, value};

fn pool(url: &str) -> Arc<Pool> {
    Pool::new(PoolConfig::new(ConnectConfig::parse(url).unwrap()))
}

async fn user(url: &str) -> Result<String, PgError> {
    let mut connection = pool(url).get(&session(ALICE)).await?;
    Ok(value(&mut connection, "SELECT current_user").await)
}

#[tokio::test]
async fn scram_accepts_the_right_password_only() {
    let fixture = Fixture::new();
    assert_eq!(user(&fixture.database.url()).await.unwrap(), "postgres");
    let error = user(&fixture.database.url_as("postgres", "hunter2")).await.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Auth { .. })), "{error:?}");
    assert_eq!(error.sqlstate(), "28000");
    assert!(error.to_string().contains("password authentication failed"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let url = fixture.database.url().replace(":secret@", "@");
    let error = user(&url).await.unwrap_err();
    assert!(error.to_string().contains("the URL has none"), "{error}");
}

#[tokio::test]
async fn an_unknown_database_is_rejected_with_the_servers_error() {
    let fixture = Fixture::new();
    let url = fixture.database.url().replace(fixture.database.name(), "no_such_database");
    let error = user(&url).await.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Rejected(_))), "{error:?}");
    assert_eq!(error.sqlstate(), "3D000");
}

#[tokio::test]
async fn md5_and_clear_text_passwords_are_accepted_on_loopback_and_unix_sockets_connect() {
    let server = TestServer::options()
        .hba("host all old 127.0.0.1/32 md5")
        .hba("host all plain 127.0.0.1/32 password")
        .hba("local all all scram-sha-256")
        .start()
        .unwrap();
    server
        .psql(
            "postgres",
            "SET password_encryption = 'md5'; CREATE ROLE old LOGIN PASSWORD 'pw'; \
             SET password_encryption = 'scram-sha-256'; CREATE ROLE plain LOGIN PASSWORD 'pw'",
        )
        .unwrap();
    assert_eq!(user(&server.url_as("postgres", "old", "pw")).await.unwrap(), "old");
    assert_eq!(user(&server.url_as("postgres", "plain", "pw")).await.unwrap(), "plain");
    for name in ["old", "plain"] {
        let error = user(&server.url_as("postgres", name, "wrong")).await.unwrap_err();
        assert!(matches!(error, PgError::Connect(ConnectError::Auth { .. })), "{error:?}");
    }
    let directory = server.socket_directory().display().to_string();
    let socket = format!("postgres://plain:pw@:{}/postgres?host={directory}", server.port());
    let mut connection = pool(&socket).get(&session(ALICE)).await.unwrap();
    assert_eq!(value(&mut connection, "SELECT inet_client_addr() IS NULL").await, "t");
    let missing = format!("postgres://plain:pw@:{}/postgres?host={directory}/missing", server.port());
    let error = user(&missing).await.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn a_host_without_an_address_is_not_resolved() {
    let error = user("postgres://u:p@no-such-host.invalid/d").await.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Resolve { .. })), "{error:?}");
}
