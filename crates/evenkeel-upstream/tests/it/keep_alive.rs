//! Keep-alive: which connections are pooled, reused and closed.

use core::task::{Context, Poll};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use evenkeel_pipeline::PoolStats;
use evenkeel_upstream::Origin;
use http_body::Body;
use tokio::task::{JoinSet, yield_now};

use super::*;

#[tokio::test]
async fn a_connection_is_reused_after_its_response_was_read() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let mut peer = first_exchange(&upstream, &stub).await;
    let origin = stub.origin();
    let (request, second) = join!(peer.respond("two"), read(&upstream, &origin));
    assert_eq!(second.as_deref(), Ok("two"));
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
    assert!(request.ends_with("content-length: 2\r\n\r\n{}"), "{request}");
    let expected = PoolStats {
        active_connections: 0,
        idle_connections: 1,
        connections_created: 1,
        connections_reused: 1,
    };
    assert_eq!(upstream.stats(), expected);
}

#[tokio::test]
async fn a_connection_returns_to_the_pool_with_the_last_byte() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst").await;
        peer
    };
    let (mut peer, response) = join!(serving, send(&upstream, &origin));
    let mut body = response.unwrap().into_body();
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"first"[..]));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (1, 0));
    peer.write("other").await;
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"other"[..]));
    assert!(body.is_end_stream());
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 1));
}

#[tokio::test]
async fn a_response_without_a_body_returns_its_connection_at_once() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write("HTTP/1.1 204 No Content\r\n\r\n").await;
        peer
    };
    let (_peer, response) = join!(serving, send(&upstream, &origin));
    let response = response.unwrap();
    assert_eq!(upstream.stats().idle_connections, 1);
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn a_body_dropped_midway_closes_its_connection() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (peer, body) = stream(&upstream, &stub).await;
    drop(body);
    peer.closed().await;
    assert_eq!(upstream.stats(), PoolStats { connections_created: 1, ..PoolStats::default() });
}

#[tokio::test]
async fn a_request_dropped_before_its_response_closes_its_connection() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut pending = Box::pin(send(&upstream, &origin));
    let mut peer = tokio::select! {
        peer = stub.accept() => peer,
        response = &mut pending => panic!("a response without a server: {response:?}"),
    };
    tokio::select! {
        _ = peer.request() => {}
        response = &mut pending => panic!("a response without a server: {response:?}"),
    }
    assert_eq!(upstream.stats().active_connections, 1);
    drop(pending);
    peer.closed().await;
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn at_most_max_idle_per_host_connections_are_idle() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { max_idle_per_host: 2, ..defaults() });
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(stream(&upstream, &stub).await);
    }
    assert_eq!(upstream.stats().active_connections, 3);
    let mut peers = Vec::new();
    for (mut peer, mut body) in streams {
        peer.write("0\r\n\r\n").await;
        assert!(body.frame().await.is_none());
        peers.push(peer);
    }
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 2));
    peers.pop().unwrap().closed().await;
}

#[tokio::test]
async fn the_most_recently_used_connection_is_reused_first() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (mut older, mut first) = stream(&upstream, &stub).await;
    let (mut newer, mut second) = stream(&upstream, &stub).await;
    for (peer, body) in [(&mut older, &mut first), (&mut newer, &mut second)] {
        peer.write("0\r\n\r\n").await;
        assert!(body.frame().await.is_none());
    }
    let origin = stub.origin();
    let (_, response) = join!(newer.respond("newer"), read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("newer"));
}

#[tokio::test]
async fn base_paths_of_one_origin_share_its_connections() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let mut peer = first_exchange(&upstream, &stub).await;
    let origin = Origin::parse(&format!("{}/team/a", stub.url())).unwrap();
    let (request, response) = join!(peer.respond("two"), read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("two"));
    assert!(request.starts_with("POST /team/a/v1/chat/completions HTTP/1.1\r\n"), "{request}");
    assert_eq!(upstream.stats().connections_reused, 1);
}

#[tokio::test]
async fn a_connection_marked_close_is_not_reused() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\none").await;
        peer
    };
    let (peer, response) = join!(serving, read(&upstream, &origin));
    assert_eq!(response.as_deref(), Ok("one"));
    assert_eq!(upstream.stats().idle_connections, 0);
    peer.closed().await;
}

#[tokio::test]
async fn the_idle_reaper_notices_a_closed_connection() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    drop(first_exchange(&upstream, &stub).await);
    while upstream.stats().idle_connections != 0 {
        yield_now().await;
    }
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn unsolicited_bytes_are_not_read_as_a_response() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write(&format!("{}{}", stub::ok_response("mine"), stub::ok_response("smuggled"))).await;
        let mut other = stub.accept().await;
        other.respond("yours").await;
        other
    };
    let reading = async { (read(&upstream, &origin).await, read(&upstream, &origin).await) };
    let (_peer, bodies) = join!(serving, reading);
    assert_eq!(bodies, (Ok("mine".to_owned()), Ok("yours".to_owned())));
}

#[tokio::test]
async fn requests_dropped_at_any_point_leak_no_connection() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = tokio::spawn(async move {
        let mut peers = JoinSet::new();
        loop {
            let mut peer = stub.accept().await;
            peers.spawn(async move { while peer.try_respond("body").await {} });
        }
    });
    for polls in 0..200 {
        let mut reading = pin!(read(&upstream, &origin));
        for _ in 0..polls % 20 {
            if poll_once(reading.as_mut()).await {
                break;
            }
        }
    }
    serving.abort();
    let _ = serving.await;
    assert_eq!(upstream.stats().active_connections, 0);
    while upstream.stats().idle_connections != 0 {
        yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_on_many_threads_all_complete() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = tokio::spawn(async move {
        let mut peers = JoinSet::new();
        loop {
            let mut peer = stub.accept().await;
            peers.spawn(async move {
                while peer.next_request().await.is_some() {
                    peer.try_write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                    for part in ["4\r\none \r\n", "4\r\ntwo \r", "\n5\r\nthree\r\n", "0\r\n\r\n"] {
                        peer.try_write(part).await;
                        yield_now().await;
                    }
                }
            });
        }
    });
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let upstream = upstream.clone();
        let origin = origin.clone();
        clients.spawn(async move {
            for _ in 0..50 {
                assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("one two three"));
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let stats = upstream.stats();
    assert_eq!(stats.active_connections, 0);
    assert_eq!(stats.connections_created + stats.connections_reused, 16 * 50);
    serving.abort();
}

/// Polls a future once, yields to other tasks, and reports whether it is done.
async fn poll_once<T>(mut future: core::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    let done = core::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
    if !done {
        yield_now().await;
    }
    done
}

#[derive(Default)]
struct WakeUps(AtomicUsize);

impl Wake for WakeUps {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_chunk_wakes_its_reader_once() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (mut peer, mut body) = stream(&upstream, &stub).await;
    let wake_ups = Arc::new(WakeUps::default());
    let waker = Waker::from(wake_ups.clone());
    let mut poll = || pin!(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_ready();
    for nth in 1..10 {
        assert!(!poll(), "ready without data");
        peer.write("4\r\nmore\r\n").await;
        while wake_ups.0.load(Ordering::Relaxed) < nth {
            yield_now().await;
        }
        assert!(poll(), "woken without data");
        yield_now().await;
        assert_eq!(wake_ups.0.load(Ordering::Relaxed), nth);
    }
}
