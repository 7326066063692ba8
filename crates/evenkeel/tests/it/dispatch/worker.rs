//! A worker that jobs are posted to: an HTTP/1.1 server in the test process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) line: String,
    /// Header lines; names are in lower case, as hyper sends them.
    headers: Vec<String>,
    pub(super) body: String,
}

impl Posted {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|header| header.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(super) struct Response {
    pub(super) status: u16,
    /// Header lines, each with its line end.
    pub(super) headers: &'static str,
    pub(super) body: String,
}

/// Returns a response without additional headers.
pub(super) fn respond(status: u16, body: &str) -> Response {
    Response { status, headers: "", body: body.to_owned() }
}

/// A worker; dropping it closes its sockets.
pub(super) struct Worker {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    posted: Mutex<Vec<Posted>>,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Worker {
    pub(super) fn start(handle: impl Fn(&Posted) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let handle = Arc::new(handle);
        let shared = state.clone();
        let accepting = thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                shared.sockets.lock().unwrap().push(socket.try_clone().unwrap());
                let state = shared.clone();
                let handle = handle.clone();
                thread::spawn(move || serve(socket, &state, &*handle));
            }
        });
        Self { address, state, accepting: Some(accepting) }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns all requests in order of arrival.
    pub(super) fn posted(&self) -> Vec<Posted> {
        self.state.posted.lock().unwrap().clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // Wakes the accept loop. Ignores errors, because the test may be panicking already.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
        for socket in self.state.sockets.lock().unwrap().drain(..) {
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

/// Serves a connection until either side closes it.
fn serve(mut socket: TcpStream, state: &State, handle: &dyn Fn(&Posted) -> Response) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    while let Some(posted) = read(&mut reader) {
        state.posted.lock().unwrap().push(posted.clone());
        let Response { status, headers, body } = handle(&posted);
        let length = body.len();
        let head = format!("HTTP/1.1 {status} Status\r\n{headers}content-length: {length}\r\n\r\n");
        if socket.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).is_err() {
            return;
        }
    }
}

/// Reads a request; `None` at the end of the connection.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Posted> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let line = lines.remove(0);
    let mut posted = Posted { line, headers: lines, body: String::new() };
    let length: usize = posted.header("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    posted.body = String::from_utf8(body).unwrap();
    Some(posted)
}
