//! Which connections are kept, which are used again, and which are closed.

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
async fn a_connection_is_used_again_once_its_answer_was_read() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let mut peer = first_exchange(&upstream, &stub).await;
    let origin = stub.origin();
    let (request, second) = join!(peer.answer("two"), read(&upstream, &origin));
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
async fn a_connection_in_use_is_active_and_given_back_with_the_last_byte() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst").await;
        peer
    };
    let (mut peer, response) = join!(serving, ask(&upstream, &origin));
    let mut body = response.unwrap().into_body();
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"first"[..]));
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (1, 0));
    peer.say("other").await;
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"other"[..]));
    assert!(body.is_end_stream());
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 1));
}

#[tokio::test]
async fn an_answer_without_a_body_gives_its_connection_back_at_once() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.say("HTTP/1.1 204 No Content\r\n\r\n").await;
        peer
    };
    let (_peer, response) = join!(serving, ask(&upstream, &origin));
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
async fn a_request_dropped_before_its_answer_closes_its_connection() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let mut asking = Box::pin(ask(&upstream, &origin));
    let mut peer = tokio::select! {
        peer = stub.accept() => peer,
        answer = &mut asking => panic!("answered by nobody: {answer:?}"),
    };
    tokio::select! {
        _ = peer.request() => {}
        answer = &mut asking => panic!("answered by nobody: {answer:?}"),
    }
    assert_eq!(upstream.stats().active_connections, 1);
    drop(asking);
    peer.closed().await;
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn no_more_than_max_idle_per_host_are_kept() {
    let stub = Stub::start().await;
    let upstream = upstream(ConnectionPoolConfig { max_idle_per_host: 2, ..defaults() });
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(stream(&upstream, &stub).await);
    }
    assert_eq!(upstream.stats().active_connections, 3);
    let mut peers = Vec::new();
    for (mut peer, mut body) in streams {
        peer.say("0\r\n\r\n").await;
        assert!(body.frame().await.is_none());
        peers.push(peer);
    }
    assert_eq!((upstream.stats().active_connections, upstream.stats().idle_connections), (0, 2));
    peers.pop().unwrap().closed().await;
}

#[tokio::test]
async fn the_connection_used_last_is_used_first() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let (mut older, mut first) = stream(&upstream, &stub).await;
    let (mut newer, mut second) = stream(&upstream, &stub).await;
    for (peer, body) in [(&mut older, &mut first), (&mut newer, &mut second)] {
        peer.say("0\r\n\r\n").await;
        assert!(body.frame().await.is_none());
    }
    let origin = stub.origin();
    let (_, answer) = join!(newer.answer("newer"), read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("newer"));
}

#[tokio::test]
async fn paths_of_one_host_share_its_connections() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let mut peer = first_exchange(&upstream, &stub).await;
    let origin = Origin::parse(&format!("{}/team/a", stub.url())).unwrap();
    let (request, answer) = join!(peer.answer("two"), read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("two"));
    assert!(request.starts_with("POST /team/a/v1/chat/completions HTTP/1.1\r\n"), "{request}");
    assert_eq!(upstream.stats().connections_reused, 1);
}

#[tokio::test]
async fn a_connection_that_its_node_closes_after_the_answer_is_not_kept() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.say("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\none").await;
        peer
    };
    let (peer, answer) = join!(serving, read(&upstream, &origin));
    assert_eq!(answer.as_deref(), Ok("one"));
    assert_eq!(upstream.stats().idle_connections, 0);
    peer.closed().await;
}

#[tokio::test]
async fn an_idle_connection_that_its_node_closes_is_noticed_without_anybody_asking() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    drop(first_exchange(&upstream, &stub).await);
    while upstream.stats().idle_connections != 0 {
        yield_now().await;
    }
    assert_eq!(upstream.stats().active_connections, 0);
}

#[tokio::test]
async fn what_a_node_says_without_being_asked_answers_nobody() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.say(&format!("{}{}", stub::whole("mine"), stub::whole("smuggled"))).await;
        let mut other = stub.accept().await;
        other.answer("yours").await;
        other
    };
    let reading = async { (read(&upstream, &origin).await, read(&upstream, &origin).await) };
    let (_peer, answers) = join!(serving, reading);
    assert_eq!(answers, (Ok("mine".to_owned()), Ok("yours".to_owned())));
}

#[tokio::test]
async fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = tokio::spawn(async move {
        let mut peers = JoinSet::new();
        loop {
            let mut peer = stub.accept().await;
            peers.spawn(async move { while peer.try_answer("answer").await {} });
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
async fn requests_on_many_threads_all_end() {
    let stub = Stub::start().await;
    let upstream = upstream(defaults());
    let origin = stub.origin();
    let serving = tokio::spawn(async move {
        let mut peers = JoinSet::new();
        loop {
            let mut peer = stub.accept().await;
            peers.spawn(async move {
                while peer.next_request().await.is_some() {
                    peer.try_say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                    for part in ["4\r\none \r\n", "4\r\ntwo \r", "\n5\r\nthree\r\n", "0\r\n\r\n"] {
                        peer.try_say(part).await;
                        yield_now().await;
                    }
                }
            });
        }
    });
    let mut asking = JoinSet::new();
    for _ in 0..16 {
        let upstream = upstream.clone();
        let origin = origin.clone();
        asking.spawn(async move {
            for _ in 0..50 {
                assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("one two three"));
            }
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    let stats = upstream.stats();
    assert_eq!(stats.active_connections, 0);
    assert_eq!(stats.connections_created + stats.connections_reused, 16 * 50);
    serving.abort();
}

/// Polls a future, lets others run, and tells whether it is done.
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
        assert!(!poll(), "nothing was said");
        peer.say("4\r\nmore\r\n").await;
        while wake_ups.0.load(Ordering::Relaxed) < nth {
            yield_now().await;
        }
        assert!(poll(), "woken for nothing");
        yield_now().await;
        assert_eq!(wake_ups.0.load(Ordering::Relaxed), nth);
    }
}
