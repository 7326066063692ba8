//! The response that a connection (HTTP/1.1) or a stream (HTTP/2) is sending, and its read-ahead for a slow client.
//!
//! hyper takes a chunk of the body whenever the client can take it. While the client cannot, hyper leaves the body alone,
//! and the node that produces it would wait for the client. So the task that polls hyper reads ahead then, and only
//! then: a client that keeps up costs no copy, no task and no wake-up.
//!
//! Limits: stops reading ahead once 256 KiB are buffered; the last chunk may exceed this. The budget counts steps of
//! 64 KiB. Trailers are dropped. An HTTP/2 stream is
//! reset when its client takes less than 1 KiB/s for `write_wait_max` while data waits for it.

use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::time::Duration;
use evenkeel_telemetry::Counter;
use http_body::{Body as _, Frame, SizeHint};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{Body, BodyError};
use crate::body_budget::{BodyBudget, BodyPermit, BytesOwner};

const READ_AHEAD_MAX: usize = 256 * 1024;
/// Step in which read-ahead bytes are taken from the budget.
const READ_AHEAD_STEP: usize = 64 * 1024;
/// Maximum size of a chunk for HTTP/2: h2 buffers a whole chunk although the client's window is smaller.
const HTTP2_CHUNK_MAX: usize = 16 * 1024;
/// Minimum rate at which a client must read, in bytes per second.
const PROGRESS_MIN: f64 = 1024.0;

/// Permission to read a response ahead; an extension of the response.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    pub(crate) budget: Arc<BodyBudget>,
    pub(crate) owner: BytesOwner,
}

/// The response body of a connection or stream, shared by hyper and the task that polls hyper.
#[derive(Clone)]
pub(crate) struct ResponseStream(Arc<Mutex<ResponseStreamState>>);

struct ResponseStreamState {
    /// `None` without a response, and once all of it was read.
    body: Option<Body>,
    /// Chunks that were read ahead, or split off.
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    /// Ends the body once `ready` is empty.
    error: Option<BodyError>,
    client: ClientState,
    /// Bytes that hyper has taken from all bodies.
    taken: u64,
    chunk_max: usize,
    /// `None`: no read-ahead.
    permit: Option<BodyPermit>,
    permit_bytes: usize,
}

/// Readiness of the client, as hyper's last use of the body shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    /// hyper waits for the body, or there is none.
    Waiting,
    /// hyper has taken a chunk and not polled again: the client is slow, or the body has ended.
    TookChunk,
}

impl ResponseStream {
    pub(crate) fn http1() -> Self {
        Self::new(usize::MAX)
    }

    fn http2() -> Self {
        Self::new(HTTP2_CHUNK_MAX)
    }

    fn new(chunk_max: usize) -> Self {
        Self(Arc::new(Mutex::new(ResponseStreamState {
            body: None,
            ready: VecDeque::new(),
            ready_bytes: 0,
            error: None,
            client: ClientState::Waiting,
            taken: 0,
            chunk_max,
            permit: None,
            permit_bytes: 0,
        })))
    }

    /// Begins to send a body.
    pub(crate) fn begin(&self, body: Body, read_ahead: Option<ReadAhead>) {
        let mut state = self.0.lock();
        state.permit = read_ahead.map(|ReadAhead { budget, owner }| budget.begin_read_ahead(owner));
        state.body = Some(body);
    }

    /// Drops what is left of the body.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        let body = state.body.take();
        let permit = state.permit.take();
        state.ready.clear();
        state.ready_bytes = 0;
        state.permit_bytes = 0;
        state.error = None;
        state.client = ClientState::Waiting;
        drop(state);
        // Dropping a body may take other locks.
        drop(body);
        drop(permit);
    }

    pub(crate) fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.lock().poll_frame(cx)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let state = self.0.lock();
        // hyper asks before it takes the first chunk.
        state.body.as_ref().filter(|_| state.ready.is_empty()).map_or_else(SizeHint::default, Body::size_hint)
    }

    /// Reads ahead if the client is not ready for more; called after hyper was polled.
    ///
    /// Returns the number of bytes taken so far while data waits for the client, `None` while it keeps up.
    fn after_poll(&self, cx: &mut Context<'_>) -> Option<u64> {
        let mut state = self.0.lock();
        if state.client == ClientState::Waiting {
            return None;
        }
        state.read_ahead(cx);
        Some(state.taken)
    }
}

impl ResponseStreamState {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(chunk) = self.pop_ready() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                self.client = ClientState::Waiting;
                return Poll::Pending;
            };
            match frame {
                None => self.body = None,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => {
                    // Trailers are dropped.
                    if let Ok(chunk) = frame.into_data() {
                        return Poll::Ready(Some(Ok(Frame::data(self.take(chunk)))));
                    }
                }
            }
        }
    }

    fn pop_ready(&mut self) -> Option<Bytes> {
        let chunk = self.ready.pop_front()?;
        self.ready_bytes -= chunk.len();
        let chunk = self.take(chunk);
        if self.ready.is_empty() && self.permit_bytes > 0 {
            self.resize_permit(0);
        }
        Some(chunk)
    }

    /// Hands a chunk to hyper; bytes above the maximum stay at the front of the queue.
    fn take(&mut self, mut chunk: Bytes) -> Bytes {
        if self.chunk_max < chunk.len() {
            let rest = chunk.split_off(self.chunk_max);
            self.ready_bytes += rest.len();
            self.ready.push_front(rest);
        }
        self.client = ClientState::TookChunk;
        self.taken += chunk.len() as u64;
        chunk
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.error.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        while self.ready_bytes < READ_AHEAD_MAX && self.permit.is_some() {
            let Some(body) = &mut self.body else { return };
            if body.is_end_stream() {
                return;
            }
            if self.permit_bytes < self.ready_bytes + READ_AHEAD_STEP
                && !self.resize_permit(self.ready_bytes + READ_AHEAD_STEP)
            {
                return;
            }
            let Some(body) = &mut self.body else { return };
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(None) => self.body = None,
                Poll::Ready(Some(Err(error))) => {
                    self.error = Some(error);
                    self.body = None;
                }
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are dropped.
                    if let Ok(chunk) = frame.into_data() {
                        self.ready_bytes += chunk.len();
                        self.ready.push_back(chunk);
                    }
                }
            }
        }
    }

    /// Changes the bytes that read-ahead holds in the budget; reports whether they fit.
    fn resize_permit(&mut self, bytes: usize) -> bool {
        let Some(permit) = &mut self.permit else { return false };
        let fits = permit.resize(bytes as u64).is_ok();
        if fits {
            self.permit_bytes = bytes;
        }
        fits
    }
}

/// Progress of a client while data waits for it.
pub(crate) struct ClientProgress {
    taken: u64,
    wait_max: Duration,
    timer: Pin<Box<Sleep>>,
}

impl ClientProgress {
    pub(crate) fn new(wait_max: Duration) -> Self {
        Self { taken: 0, wait_max, timer: Box::pin(sleep(wait_max)) }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Resolves when the client took less than 1 KiB/s over `wait_max`.
    pub(crate) fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if (self.taken as f64) < PROGRESS_MIN * self.wait_max.as_secs_f64() {
                return Poll::Ready(());
            }
            self.taken = 0;
            self.timer.as_mut().reset(Instant::now() + self.wait_max);
        }
    }
}

/// Polls an HTTP/1.1 connection, and reads its response ahead while the client is not ready for more.
pub(crate) struct Http1Driver<F> {
    pub(crate) connection: F,
    pub(crate) sending: ResponseStream,
}

impl<F: Future + Unpin> Future for Http1Driver<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.connection).poll(cx);
        if polled.is_pending() {
            // A write that makes too little progress times out by itself.
            self.sending.after_poll(cx);
        }
        polled
    }
}

/// Spawns the streams of one HTTP/2 connection.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    /// The response of the stream that is spawned next.
    next: Arc<Mutex<Option<ResponseStream>>>,
    write_wait_max: Duration,
    slow_readers: Counter,
}

impl StreamExecutor {
    pub(crate) fn new(write_wait_max: Duration, slow_readers: Counter) -> Self {
        Self { next: Arc::default(), write_wait_max, slow_readers }
    }

    /// Creates the response slot of the next stream.
    ///
    /// hyper calls `execute` for a request before it calls the service for the next one.
    pub(crate) fn next_stream(&self) -> ResponseStream {
        let sending = ResponseStream::http2();
        *self.next.lock() = Some(sending.clone());
        sending
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let sending = self.next.lock().take().unwrap_or_else(ResponseStream::http2);
        tokio::spawn(StreamDriver {
            stream: Some(Box::pin(stream)),
            sending,
            taken: 0,
            progress: None,
            write_wait_max: self.write_wait_max,
            slow_readers: self.slow_readers.clone(),
        });
    }
}

/// Polls an HTTP/2 stream, reads its response ahead, and resets it if the client reads too slowly.
struct StreamDriver<F> {
    /// Dropping it resets the stream.
    stream: Option<Pin<Box<F>>>,
    sending: ResponseStream,
    taken: u64,
    progress: Option<ClientProgress>,
    write_wait_max: Duration,
    slow_readers: Counter,
}

impl<F: Future<Output = ()>> Future for StreamDriver<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(()) };
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let this = &mut *self;
        let Some(taken) = this.sending.after_poll(cx) else {
            this.progress = None;
            return Poll::Pending;
        };
        let wait_max = this.write_wait_max;
        let progress = this.progress.get_or_insert_with(|| ClientProgress::new(wait_max));
        progress.add(taken - mem::replace(&mut this.taken, taken));
        ready!(progress.poll_slow(cx));
        this.slow_readers.count();
        this.stream = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;
    use core::net::{IpAddr, Ipv4Addr};

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;
    use crate::api_key::KeyHash;
    use crate::body;
    use crate::metrics::BodyMetrics;
    use crate::tenant::{AdminKey, Caller};

    const CHUNK: usize = 8 * 1024;

    /// A body's producer, and the client that it is sent to over a connection with a tiny buffer.
    struct SlowClient {
        chunks: mpsc::Sender<Bytes>,
        socket: DuplexStream,
    }

    /// Body that hyper sends, with the read-ahead under test.
    struct SentBody(ResponseStream);

    impl http_body::Body for SentBody {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            self.0.poll_frame(cx)
        }
    }

    impl SlowClient {
        async fn start(budget_bytes: u64) -> Self {
            let budget = BodyBudget::new(budget_bytes, BodyMetrics::default());
            let (mut socket, served) = duplex(1024);
            let (chunks, received) = mpsc::channel(1);
            let received = Arc::new(Mutex::new(Some(received)));
            let sending = ResponseStream::http1();
            let current = sending.clone();
            let service = service_fn(move |_: Request<Incoming>| {
                let owner = BytesOwner::new(
                    &Caller::Admin(AdminKey { hash: KeyHash::of("ek-root") }),
                    IpAddr::V4(Ipv4Addr::LOCALHOST),
                );
                let body = body::channel(received.lock().take().unwrap());
                current.begin(body, Some(ReadAhead { budget: budget.clone(), owner }));
                let body = SentBody(current.clone());
                async move { Ok::<_, Infallible>(Response::new(body)) }
            });
            let mut server = http1::Builder::new();
            let server = server.max_buf_size(CHUNK).serve_connection(TokioIo::new(served), service);
            tokio::spawn(Http1Driver { connection: server, sending });
            socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            Self { chunks, socket }
        }

        /// Returns how many chunks are taken although the client reads nothing, of at most `count`.
        async fn chunks_taken(&self, count: usize) -> usize {
            let chunk = Bytes::from_static(&[b'x'; CHUNK]);
            for sent in 0..count {
                let full = tokio::time::timeout(Duration::from_secs(1), self.chunks.send(chunk.clone()));
                if full.await.is_err() {
                    return sent;
                }
            }
            count
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_read_ahead_while_the_client_does_not_read_and_arrives_complete() {
        let mut client = SlowClient::start(1 << 20).await;
        let few = READ_AHEAD_MAX / CHUNK - 2;
        assert_eq!(client.chunks_taken(few).await, few);
        // The sender of a node that has ended is gone; its body ends with it.
        drop(client.chunks);
        let mut response = Vec::new();
        let mut part = [0; 4096];
        while !response.ends_with(b"0\r\n\r\n") {
            let read = client.socket.read(&mut part).await.unwrap();
            response.extend_from_slice(&part[..read]);
        }
        assert_eq!(response.iter().filter(|byte| **byte == b'x').count(), few * CHUNK);
    }

    #[tokio::test(start_paused = true)]
    async fn read_ahead_is_limited_per_response_and_by_the_budget() {
        let room = READ_AHEAD_MAX / CHUNK;
        let taken = SlowClient::start(1 << 20).await.chunks_taken(10 * room).await;
        assert!((room..room + 8).contains(&taken), "{taken} chunks of {CHUNK} bytes");
        let taken = SlowClient::start(1024).await.chunks_taken(10 * room).await;
        assert!(taken < 8, "{taken} chunks of {CHUNK} bytes without a budget");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_less_than_a_kib_per_second_is_slow() {
        let mut progress = ClientProgress::new(Duration::from_secs(10));
        let mut is_slow_after = async |bytes| {
            progress.add(bytes);
            tokio::time::advance(Duration::from_secs(10)).await;
            core::future::poll_fn(|cx| Poll::Ready(progress.poll_slow(cx).is_ready())).await
        };
        assert!(!is_slow_after(10 * 1024).await);
        assert!(!is_slow_after(11 * 1024).await);
        assert!(is_slow_after(10 * 1024 - 1).await);
    }

    #[test]
    fn trailers_are_dropped() {
        let sending = ResponseStream::http1();
        let trailers = async { Some(Ok(http::HeaderMap::new())) };
        sending.begin(body::full("text").with_trailers(trailers).boxed_unsync(), None);
        let mut cx = Context::from_waker(core::task::Waker::noop());
        let mut next = || sending.poll_frame(&mut cx);
        assert!(matches!(next(), Poll::Ready(Some(Ok(frame))) if frame.is_data()));
        assert!(matches!(next(), Poll::Ready(None)));
    }

    #[test]
    fn a_chunk_for_http2_is_split() {
        let sending = ResponseStream::http2();
        sending.begin(body::full(vec![7; HTTP2_CHUNK_MAX + 1]), None);
        let mut cx = Context::from_waker(core::task::Waker::noop());
        let mut sizes = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = sending.poll_frame(&mut cx) {
            sizes.push(frame.into_data().unwrap().len());
        }
        assert_eq!(sizes, [HTTP2_CHUNK_MAX, 1]);
        assert!(sending.is_end_stream());
    }
}
