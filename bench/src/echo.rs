//! An HTTP/1.1 echo server on the runtime under test, and a client outside of it that times each answer.
//!
//! It shows whether actors leave the runtime's other guests alone. The parser knows what its own client sends: a head
//! of at most 1 KiB with a `content-length` of at most as much, then the body, over a connection that is kept.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::sample::NoSample;

const MESSAGE_MAX: usize = 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";
const REQUEST: &[u8] = b"POST /echo HTTP/1.1\r\nhost: bench\r\ncontent-length: 16\r\n\r\nsixteen letters!";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\nsixteen letters!";
/// Between an answer and the next question, so that the client takes little of the machine it shares.
const PAUSE: Duration = Duration::from_micros(200);
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// A server that nobody has asked yet.
pub(crate) struct EchoServer(SocketAddr);

/// A client that asks again and again.
pub(crate) struct Echo {
    enough: Arc<AtomicBool>,
    client: JoinHandle<io::Result<Vec<u64>>>,
}

impl EchoServer {
    /// Starts the server as tasks of `tokio`, on a port of the system's choice.
    pub(crate) fn on(tokio: &Handle) -> Result<Self, NoSample> {
        let _inside = tokio.enter();
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| failed("server", &error))?;
        let listening = Self(listener.local_addr().map_err(|error| failed("server", &error))?);
        listener.set_nonblocking(true).map_err(|error| failed("server", &error))?;
        let listener =
            tokio::net::TcpListener::from_std(listener).map_err(|error| failed("server", &error))?;
        tokio.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Ok(listening)
    }

    /// Starts the client as a thread, and returns once its first question was answered.
    pub(crate) fn ask(self) -> Result<Echo, NoSample> {
        let mut stream = connect(self.0).map_err(|error| failed("client", &error))?;
        ask(&mut stream).map_err(|error| failed("client", &error))?;
        let enough = Arc::new(AtomicBool::new(false));
        let heard = enough.clone();
        let client = thread::spawn(move || {
            let mut delays = Vec::new();
            loop {
                delays.push(ask(&mut stream)?.as_nanos() as u64);
                if heard.load(Ordering::Relaxed) {
                    return Ok(delays);
                }
                thread::sleep(PAUSE);
            }
        });
        Ok(Echo { enough, client })
    }
}

impl Echo {
    /// Ends the client and returns how long each answer, of at least one, took in nanoseconds.
    pub(crate) fn stop(self) -> Result<Vec<u64>, NoSample> {
        self.enough.store(true, Ordering::Relaxed);
        let asked =
            self.client.join().map_err(|_| NoSample::Failed("the echo client panicked".to_owned()))?;
        asked.map_err(|error| failed("client", &error))
    }
}

fn failed(side: &str, error: &io::Error) -> NoSample {
    NoSample::Failed(format!("echo {side}: {error}"))
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> io::Result<Duration> {
    let asked = Instant::now();
    stream.write_all(REQUEST)?;
    let mut answer = [0; RESPONSE.len()];
    stream.read_exact(&mut answer)?;
    if answer != RESPONSE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the echo is not what was sent"));
    }
    Ok(asked.elapsed())
}

/// Answers one connection until it closes or says something else than HTTP.
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
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let Some(head) = received.windows(HEAD_END.len()).position(|four| four == HEAD_END) else {
        return if received.len() <= MESSAGE_MAX { Ok(None) } else { Err(invalid("the head is too long")) };
    };
    let text = std::str::from_utf8(&received[..head]).map_err(|_| invalid("the head is no text"))?;
    let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = match lengths.next() {
        Some((_, length)) => length.trim().parse().ok().filter(|length| *length <= MESSAGE_MAX),
        None => Some(0),
    };
    let body = head + HEAD_END.len();
    let end = body + length.ok_or_else(|| invalid("the content-length is no length of ours"))?;
    Ok((end <= received.len()).then_some((body, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_once_its_last_byte_is_there() {
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
    fn what_is_too_long_or_no_length_ends_the_connection() {
        assert!(parse(&[b'x'; MESSAGE_MAX]).is_ok());
        assert!(parse(&[b'x'; MESSAGE_MAX + 1]).is_err());
        for length in ["1025", "-1", "many", ""] {
            let request = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
            assert!(parse(request.as_bytes()).is_err(), "{length}");
        }
    }

    #[test]
    fn the_client_hears_its_own_words() {
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
        let echo = EchoServer::on(tokio.handle()).unwrap().ask().unwrap();
        assert!(!echo.stop().unwrap().is_empty());
    }
}
