//! An HTTP/1.1 echo server on the runtime under test, and a client on its own thread that measures each response.
//!
//! It shows whether actors starve other tasks of the runtime. The parser only handles what the client sends: keep-alive
//! requests with a head and a `content-length` body of at most 1 KiB each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::sample::SampleError;

const MESSAGE_MAX: usize = 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";
const REQUEST: &[u8] = b"POST /echo HTTP/1.1\r\nhost: bench\r\ncontent-length: 16\r\n\r\nsixteen letters!";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\nsixteen letters!";
/// Pause between requests, so that the client takes little CPU time from the runtime.
const PAUSE: Duration = Duration::from_micros(200);
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(30);

/// A listening server without a client.
pub(crate) struct EchoServer(SocketAddr);

/// A client that sends requests until it is stopped.
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    client: JoinHandle<io::Result<Vec<u64>>>,
}

impl EchoServer {
    /// Starts the server as tasks of `tokio`, on any free port.
    pub(crate) fn start(tokio: &Handle) -> Result<Self, SampleError> {
        let _guard = tokio.enter();
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| failed("server", &error))?;
        let server = Self(listener.local_addr().map_err(|error| failed("server", &error))?);
        listener.set_nonblocking(true).map_err(|error| failed("server", &error))?;
        let listener =
            tokio::net::TcpListener::from_std(listener).map_err(|error| failed("server", &error))?;
        tokio.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Ok(server)
    }

    /// Starts the client thread; returns after the first response.
    pub(crate) fn start_client(self) -> Result<Echo, SampleError> {
        let mut stream = connect(self.0).map_err(|error| failed("client", &error))?;
        send_request(&mut stream).map_err(|error| failed("client", &error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = thread::spawn(move || {
            let mut latencies = Vec::new();
            loop {
                latencies.push(send_request(&mut stream)?.as_nanos() as u64);
                if stopped.load(Ordering::Relaxed) {
                    return Ok(latencies);
                }
                thread::sleep(PAUSE);
            }
        });
        Ok(Echo { stop, client })
    }
}

impl Echo {
    /// Stops the client and returns the latency of each response in nanoseconds, at least one.
    pub(crate) fn stop(self) -> Result<Vec<u64>, SampleError> {
        self.stop.store(true, Ordering::Relaxed);
        let result =
            self.client.join().map_err(|_| SampleError::Failed("the echo client panicked".to_owned()))?;
        result.map_err(|error| failed("client", &error))
    }
}

fn failed(side: &str, error: &io::Error) -> SampleError {
    SampleError::Failed(format!("echo {side}: {error}"))
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_WAIT_MAX))?;
    Ok(stream)
}

fn send_request(stream: &mut TcpStream) -> io::Result<Duration> {
    let sent = Instant::now();
    stream.write_all(REQUEST)?;
    let mut response = [0; RESPONSE.len()];
    stream.read_exact(&mut response)?;
    if response != RESPONSE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the response is not the request body"));
    }
    Ok(sent.elapsed())
}

/// Serves one connection until it closes or sends invalid HTTP.
async fn serve(mut stream: tokio::net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut received = Vec::with_capacity(2 * MESSAGE_MAX);
    loop {
        let Some((body, end)) = parse(&received)? else {
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let body = &received[body..end];
        let mut response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        response.extend_from_slice(body);
        stream.write_all(&response).await?;
        received.drain(..end);
    }
}

/// Finds where the body of the first request starts and ends; `None` while it is incomplete.
fn parse(received: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    let Some(head) = received.windows(HEAD_END.len()).position(|four| four == HEAD_END) else {
        return if received.len() <= MESSAGE_MAX { Ok(None) } else { Err(invalid("the head is too long")) };
    };
    let text = std::str::from_utf8(&received[..head]).map_err(|_| invalid("the head is not UTF-8"))?;
    let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = match lengths.next() {
        Some((_, length)) => length.trim().parse().ok().filter(|length| *length <= MESSAGE_MAX),
        None => Some(0),
    };
    let body = head + HEAD_END.len();
    let end = body + length.ok_or_else(|| invalid("invalid content-length"))?;
    Ok((end <= received.len()).then_some((body, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_parsed_once_it_is_complete() {
        for length in 0..REQUEST.len() {
            assert_eq!(parse(&REQUEST[..length]).unwrap(), None, "{length}");
        }
        let two = [REQUEST, REQUEST].concat();
        let (body, end) = parse(&two).unwrap().unwrap();
        assert_eq!(&two[body..end], b"sixteen letters!");
        assert_eq!(end, REQUEST.len());
        assert_eq!(parse(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap(), Some((27, 27)));
    }

    #[test]
    fn a_head_that_is_too_long_and_an_invalid_length_are_errors() {
        assert!(parse(&[b'x'; MESSAGE_MAX]).is_ok());
        assert!(parse(&[b'x'; MESSAGE_MAX + 1]).is_err());
        for length in ["1025", "-1", "many", ""] {
            let request = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
            assert!(parse(request.as_bytes()).is_err(), "{length}");
        }
    }

    #[test]
    fn the_client_receives_what_it_sent() {
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
        let echo = EchoServer::start(tokio.handle()).unwrap().start_client().unwrap();
        assert!(!echo.stop().unwrap().is_empty());
    }
}
