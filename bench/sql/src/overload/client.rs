//! Clients that know one address: every query is sent when it arrives, whether or not earlier ones have ended, and
//! redirects are followed.
//!
//! A latency begins with the arrival in the trace, so a generator that is late makes it longer, not shorter. Timers have
//! a resolution of a millisecond.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bench_support::{HttpConnection, RunError};
use memchr::memmem;
use serde_json::Value;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until};

use super::REDUCTION;
use super::deployment::{ENTRY_NODE, SLOW_NODES};
use super::trace::{Trace, TracedQuery};
use crate::http_load::{self, HttpResponse, JSON};

/// Redirects of one query.
const REDIRECTS_MAX: u32 = 4;

pub(super) struct OverloadTurn {
    pub(super) outcomes: Vec<QueryOutcome>,
    /// Time in which the queries arrived.
    pub(super) window: Duration,
}

pub(super) struct QueryOutcome {
    pub(super) latency: Duration,
    /// End of the query, from the start of the turn.
    pub(super) ended: Duration,
    pub(super) redirects: u32,
    pub(super) served_by: ServedBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedBy {
    /// The node whose address the clients know, or the first behind a proxy.
    Entry,
    Other,
    /// The query was refused.
    Nobody,
}

/// Sends the queries of a trace and waits for all their responses.
pub(super) async fn run(entry: SocketAddr, trace: &Trace) -> Result<OverloadTurn, RunError> {
    let local = LocalSet::new();
    let turn = async {
        let connections = Rc::new(IdleConnections::default());
        let start = Instant::now();
        let send = |query: &TracedQuery| spawn_local(send(connections.clone(), entry, start, *query));
        let tasks: Vec<_> = trace.queries.iter().map(send).collect();
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            outcomes.push(task.await.map_err(io::Error::other)??);
        }
        Ok(OverloadTurn { outcomes, window: trace.window })
    };
    local.run_until(turn).await
}

async fn send(
    connections: Rc<IdleConnections>,
    entry: SocketAddr,
    start: Instant,
    query: TracedQuery,
) -> Result<QueryOutcome, RunError> {
    let arrival = start + query.arrival;
    sleep_until(arrival).await;
    let body = body(query.service);
    let mut url = RequestUrl { address: entry, path: "/query".to_owned() };
    let mut redirects = 0;
    let served_by = loop {
        let response = connections.send(&url, &body).await?;
        match response.status {
            200 if memmem::find(&response.body, ENTRY_NODE.as_bytes()).is_some() => break ServedBy::Entry,
            200 => break ServedBy::Other,
            307 if redirects < REDIRECTS_MAX => {
                url = redirect_of(&response.body)?;
                redirects += 1;
            }
            307 | 429 | 503 => break ServedBy::Nobody,
            status => {
                return Err(RunError(format!(
                    "status {status}: {}",
                    String::from_utf8_lossy(&response.body)
                )));
            }
        }
    };
    Ok(QueryOutcome { latency: arrival.elapsed(), ended: start.elapsed(), redirects, served_by })
}

/// Builds a query that holds its connection for the service time and returns the name of its node.
fn body(service: Duration) -> String {
    let node = "current_setting('application_name')";
    format!(
        r#"{{"sql":"select {node}, pg_sleep($1::float8 * case when {node} like '{SLOW_NODES}%' then {REDUCTION} else 1 end)","params":[{}]}}"#,
        service.as_secs_f64()
    )
}

struct RequestUrl {
    address: SocketAddr,
    path: String,
}

/// Reads the URL from the body of a redirect, which is also in its `Location`.
fn redirect_of(body: &[u8]) -> Result<RequestUrl, RunError> {
    let invalid = || RunError(format!("not a redirect: {}", String::from_utf8_lossy(body)));
    let json: Value = serde_json::from_slice(body).map_err(|_| invalid())?;
    let url = json["redirect"]["url"].as_str().and_then(|url| url.strip_prefix("http://"));
    let (address, path) = url.and_then(|rest| rest.split_once('/')).ok_or_else(invalid)?;
    let address = address.parse().map_err(|_| invalid())?;
    Ok(RequestUrl { address, path: format!("/{path}") })
}

/// Kept-alive connections that no query uses.
#[derive(Default)]
struct IdleConnections {
    by_address: RefCell<HashMap<SocketAddr, Vec<HttpConnection>>>,
}

impl IdleConnections {
    async fn send(&self, url: &RequestUrl, body: &str) -> Result<HttpResponse, RunError> {
        let idle = self.by_address.borrow_mut().get_mut(&url.address).and_then(Vec::pop);
        let mut connection = match idle {
            Some(connection) => connection,
            None => HttpConnection::connect(url.address).await?,
        };
        connection.write(&http_load::request(url.address, &url.path, None, JSON, body)).await?;
        let response = http_load::receive(&mut connection).await?;
        self.by_address.borrow_mut().entry(url.address).or_default().push(connection);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_to_the_url_in_its_body() {
        let body = br#"{"redirect":{"node":"b","url":"http://127.0.0.1:81/query?ticket=x"}}"#;
        let url = redirect_of(body).unwrap();
        assert_eq!((url.address.port(), &*url.path), (81, "/query?ticket=x"));
        assert!(redirect_of(b"{}").is_err());
    }

    #[test]
    fn a_query_is_valid_json_with_its_service_time() {
        let json: Value = serde_json::from_str(&body(Duration::from_millis(20))).unwrap();
        assert_eq!(json["params"][0], 0.02);
    }
}
