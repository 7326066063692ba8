//! A server with a fixed reply per path, which a test may change.

use std::sync::Arc;

use evenkeel_upstream::Origin;
use parking_lot::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use crate::stub::{Peer, Stub};

/// Status of a page that is never sent.
const HANGS: u16 = 0;

/// Reply at a path.
#[derive(Clone)]
pub(crate) struct Page {
    path: String,
    status: u16,
    header: String,
    body: String,
}

/// Returns a page that is requested and never sent.
pub(crate) fn hanging_page(path: &str) -> Page {
    page(path, HANGS, "")
}

pub(crate) fn page(path: &str, status: u16, body: &str) -> Page {
    Page { path: path.to_owned(), status, header: String::new(), body: body.to_owned() }
}

impl Page {
    pub(crate) fn with(mut self, header: &str) -> Self {
        self.header = format!("{header}\r\n");
        self
    }
}

pub(crate) struct Pages {
    origin: Origin,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

struct State {
    pages: Vec<Page>,
    requests: Vec<String>,
}

impl Pages {
    pub(crate) async fn start(pages: Vec<Page>) -> Self {
        let stub = Stub::start().await;
        let origin = stub.origin();
        let state = Arc::new(Mutex::new(State { pages, requests: Vec::new() }));
        let shared = state.clone();
        let serving = tokio::spawn(async move {
            let mut peers = JoinSet::new();
            loop {
                peers.spawn(serve(stub.accept().await, shared.clone()));
            }
        });
        Self { origin, state, serving }
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin.clone()
    }

    pub(crate) fn replace(&self, pages: Vec<Page>) {
        self.state.lock().pages = pages;
    }

    /// Counts the requests for a path.
    pub(crate) fn request_count(&self, path: &str) -> usize {
        self.state.lock().requests.iter().filter(|request| path_of(request) == path).count()
    }

    pub(crate) fn last_request(&self) -> String {
        self.state.lock().requests.last().cloned().unwrap_or_default()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut peer: Peer, state: Arc<Mutex<State>>) {
    while let Some(request) = peer.next_request().await {
        let page = {
            let mut state = state.lock();
            let page = state.pages.iter().find(|page| page.path == path_of(&request)).cloned();
            state.requests.push(request);
            page.unwrap_or_else(page_not_found)
        };
        let Page { status, header, body, .. } = page;
        if status == HANGS {
            core::future::pending::<()>().await;
        }
        peer.try_write(&format!(
            "HTTP/1.1 {status} x\r\n{header}content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    }
}

fn page_not_found() -> Page {
    page("", 404, r#"{"error":{"message":"not found"}}"#)
}

fn path_of(request: &str) -> &str {
    request.split(' ').nth(1).unwrap_or_default()
}
