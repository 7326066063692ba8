//! Servers that are old, send invalid messages or do not answer.

use evenkeel_postgres::{ConnectError, DiscardReason, PgError, Release, Statement};

use crate::fake_server::{FakeClient, listen};
use crate::fixture::{ALICE, Rows, execute, failure, session, value};

#[tokio::test]
async fn a_server_that_does_not_know_the_check_interval_is_asked_without_it() {
    let (listener, pool) = listen().await;
    let serving = async {
        let (mut old, startup) = FakeClient::accept(&listener).await;
        assert!(startup.contains("client_connection_check_interval\x001s\0"));
        let error = b"SFATAL\0VFATAL\0C42704\0Munbekannt: \"client_connection_check_interval\"\0\0";
        old.send(b'E', error).await;
        for _ in 0..2 {
            let (mut client, startup) = FakeClient::accept(&listener).await;
            assert!(!startup.contains("client_connection_check_interval"));
            client.send(b'R', &0_u32.to_be_bytes()).await;
            client.send(b'Z', b"I").await;
        }
    };
    let session = session(ALICE);
    let getting = async {
        let first = pool.get(&session).await.unwrap();
        let second = pool.get(&session).await.unwrap();
        (first, second)
    };
    tokio::join!(serving, getting);
    assert_eq!(pool.counts().connections_opened, 2);
}

/// Sends an invalid reply to the first statement.
async fn reply_with(reply: &'static [u8]) -> PgError {
    let (listener, pool) = listen().await;
    let serving = async {
        let mut client = FakeClient::accept_ready(&listener).await;
        client.receive_until(b'S').await;
        client.send_raw(reply).await;
        client.closed().await;
    };
    let session = session(ALICE);
    let running = async {
        let mut connection = pool.get(&session).await.unwrap();
        let error = failure(&mut connection, "SELECT 1").await;
        drop(connection);
        error
    };
    let ((), error) = tokio::join!(serving, running);
    assert_eq!(pool.gauges().open, 0);
    assert_eq!(pool.counts().discarded(DiscardReason::Protocol), 1);
    error
}

#[tokio::test]
async fn invalid_replies_are_protocol_errors_that_close_the_connection() {
    let replies: [&[u8]; 7] = [
        b"Z\0\0\x03\xe9",               // longer than message_bytes_max
        b"D\0\0\0\x03",                 // shorter than its own length
        b"?\0\0\0\x04",                 // unknown type
        b"T\0\0\0\x06\0\x01",           // truncated column
        b"D\0\0\0\x0a\0\x01\0\0\0\x09", // truncated row
        b"Z\0\0\0\x05?",                // unknown status
        b"E\0\0\0\x05C",                // truncated error
    ];
    for reply in replies {
        let error = reply_with(reply).await;
        assert!(matches!(error, PgError::Protocol { .. }), "{reply:?}: {error:?}");
        assert_eq!(error.sqlstate(), "08P01");
        assert!(error.is_node_fault());
    }
}

#[tokio::test]
async fn bytes_on_an_idle_connection_are_not_read_as_the_next_reply() {
    let (listener, pool) = listen().await;
    let serving = async {
        let mut client = FakeClient::accept_ready(&listener).await;
        client.send(b'Z', b"I").await;
        client
    };
    let session = session(ALICE);
    let getting = async { drop(pool.get(&session).await.unwrap()) };
    let (client, ()) = tokio::join!(serving, getting);
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let serving = async { FakeClient::accept_ready(&listener).await };
    let getting = async { pool.get(&session).await.unwrap() };
    let (_client, _connection) = tokio::join!(serving, getting);
    assert_eq!(pool.counts().discarded(DiscardReason::Stale), 1);
    client.closed().await;
}

#[tokio::test]
async fn a_login_that_skips_the_servers_proof_is_refused() {
    let (listener, pool) = listen().await;
    let serving = async {
        let (mut client, _) = FakeClient::accept(&listener).await;
        client.send(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0").await;
        assert_eq!(client.receive().await, b'p');
        client.send(b'R', &0_u32.to_be_bytes()).await;
        client.closed().await;
    };
    let session = session(ALICE);
    let ((), result) = tokio::join!(serving, pool.get(&session));
    let error = result.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Protocol { .. })), "{error:?}");
}

#[tokio::test]
async fn unknown_authentication_methods_are_refused() {
    for (body, expected) in
        [(&b"\0\0\0\x07"[..], "method 7"), (&b"\0\0\0\x0aSCRAM-SHA-512\0\0"[..], "no SASL mechanism")]
    {
        let (listener, pool) = listen().await;
        let serving = async {
            let (mut client, _) = FakeClient::accept(&listener).await;
            client.send(b'R', body).await;
            client.closed().await;
        };
        let session = session(ALICE);
        let ((), result) = tokio::join!(serving, pool.get(&session));
        let error = result.unwrap_err();
        assert!(matches!(error, PgError::Connect(ConnectError::Auth { .. })), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_cancel_request_that_the_server_refuses_discards_the_connection() {
    let (listener, pool) = listen().await;
    let serving = async {
        let mut client = FakeClient::accept_ready(&listener).await;
        client.receive_until(b'S').await;
        // No more connections are accepted.
        drop(listener);
        client.closed().await;
    };
    let session = session(ALICE);
    let (sender, released) = tokio::sync::oneshot::channel();
    let running = async {
        let mut connection = pool.get(&session).await.unwrap();
        connection.on_release(move |release| sender.send(release).unwrap());
        let statement = Statement::new("SELECT 1", &[]);
        let mut rows = Rows::default();
        let waiting =
            tokio::time::timeout(std::time::Duration::from_millis(20), connection.run(&statement, &mut rows));
        waiting.await.unwrap_err();
        drop(connection);
        released.await.unwrap()
    };
    let ((), release) = tokio::join!(serving, running);
    assert_eq!(release, Release::Discarded);
    assert_eq!(pool.counts().discarded(DiscardReason::StillRunning), 1);
    assert_eq!(pool.counts().processes_terminated, 0);
    assert_eq!(pool.gauges().open, 0);
}

#[tokio::test]
async fn a_cancel_request_that_is_not_answered_in_time_discards_the_connection() {
    let (listener, pool) = listen().await;
    let session = session(ALICE);
    let (mut connection, mut client) =
        tokio::join!(async { pool.get(&session).await.unwrap() }, FakeClient::accept_ready(&listener));
    let (sender, released) = tokio::sync::oneshot::channel();
    connection.on_release(move |release| sender.send(release).unwrap());
    let statement = Statement::new("SELECT 1", &[]);
    let mut rows = Rows::default();
    tokio::select! {
        result = connection.run(&statement, &mut rows) => panic!("{result:?}"),
        () = client.receive_until(b'S') => {}
    }
    drop(connection);
    let cancelling = listener.accept().await.unwrap();
    // The clock of the time limit advances as soon as nothing else happens.
    tokio::time::pause();
    assert_eq!(released.await, Ok(Release::Discarded));
    assert_eq!(pool.counts().discarded(DiscardReason::StillRunning), 1);
    assert_eq!(pool.gauges().open, 0);
    drop(cancelling);
    client.closed().await;
}

#[tokio::test]
async fn a_server_that_closes_during_login_is_unreachable() {
    let (listener, pool) = listen().await;
    let session = session(ALICE);
    let serving = async {
        let (mut client, _) = FakeClient::accept(&listener).await;
        client.send_raw(b"").await;
    };
    let ((), result) = tokio::join!(serving, pool.get(&session));
    let error = result.unwrap_err();
    assert!(matches!(error, PgError::Connect(ConnectError::Unreachable { .. })), "{error:?}");
    assert_eq!(pool.gauges().open, 0);
}

#[tokio::test]
async fn a_reply_in_small_pieces_is_put_together() {
    let (listener, pool) = listen().await;
    let serving = async {
        let mut client = FakeClient::accept_ready(&listener).await;
        client.receive_until(b'S').await;
        let reply = [
            &b"1\0\0\0\x04t\0\0\0\x06\0\0T\0\0\0\x1a\0\x01n\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0"[..],
            b"2\0\0\0\x04D\0\0\0\x0b\0\x01\0\0\0\x01\x37C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I",
        ]
        .concat();
        for byte in reply {
            client.send_raw(&[byte]).await;
            tokio::task::yield_now().await;
        }
        client
    };
    let session = session(ALICE);
    let running = async {
        let mut connection = pool.get(&session).await.unwrap();
        value(&mut connection, "SELECT 7").await
    };
    let (mut client, value) = tokio::join!(serving, running);
    assert_eq!(value, "7");
    client.send_raw(&[]).await;
}

#[tokio::test]
async fn a_second_ready_for_query_is_not_taken_for_the_end_of_the_next_statement() {
    let (listener, pool) = listen().await;
    let serving = async {
        let mut client = FakeClient::accept_ready(&listener).await;
        client.receive_until(b'S').await;
        client.send_raw(b"1\0\0\0\x04t\0\0\0\x06\0\0n\0\0\0\x04").await;
        client.send_raw(b"2\0\0\0\x04C\0\0\0\x0aBEGIN\0Z\0\0\0\x05TZ\0\0\0\x05T").await;
        client.closed().await;
    };
    let session = session(ALICE);
    let running = async {
        let mut connection = pool.get(&session).await.unwrap();
        execute(&mut connection, "BEGIN").await;
        failure(&mut connection, "SELECT 1").await
    };
    let ((), error) = tokio::join!(serving, running);
    assert!(matches!(error, PgError::Protocol { .. }), "{error:?}");
}
