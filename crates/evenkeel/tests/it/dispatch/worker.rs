//! Somebody whom jobs are posted to: a server of HTTP/1.1 in this process, that answers as a test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) line: String,
    /// Its headers, in small letters.
    headers: Vec<String>,
    pub(super) body: String,
}

impl Posted {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|header| header.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// What comes back.
pub(super) struct Answered {
    pub(super) status: u16,
    /// Whole lines.
    pub(super) headers: &'static str,
    pub(super) body: String,
}

/// An answer without anything special.
pub(super) fn answer(status: u16, body: &str) -> Answered {
    Answered { status, headers: "", body: body.to_owned() }
}

/// A server; it ends with its sockets when it is dropped.
pub(super) struct Worker {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    ended: AtomicBool,
    posted: Mutex<Vec<Posted>>,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Worker {
    pub(super) fn start(answers: impl Fn(&Posted) -> Answered + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let answers = Arc::new(answers);
        let shared = state.clone();
        let accepting = thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                shared.sockets.lock().unwrap().push(socket.try_clone().unwrap());
                let state = shared.clone();
                let answers = answers.clone();
                thread::spawn(move || serve(socket, &state, &*answers));
            }
        });
        Self { address, state, accepting: Some(accepting) }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Everything that came, in the order it came.
    pub(super) fn posted(&self) -> Vec<Posted> {
        self.state.posted.lock().unwrap().clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        // Wakes who accepts; a test that fails already must not fail here.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
        for socket in self.state.sockets.lock().unwrap().drain(..) {
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

/// Answers until the other end, or this one, has had enough.
fn serve(mut socket: TcpStream, state: &State, answers: &dyn Fn(&Posted) -> Answered) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    while let Some(posted) = read(&mut reader) {
        state.posted.lock().unwrap().push(posted.clone());
        let Answered { status, headers, body } = answers(&posted);
        let length = body.len();
        let head = format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {length}\r\n\r\n");
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
