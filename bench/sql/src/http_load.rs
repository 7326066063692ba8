//! Load generator for servers that take SQL over HTTP: keep-alive connections that send the next query as soon as the response is complete.
//!
//! One thread drives all connections. A request is built once per connection and key; only the digits of its parameter
//! change. The first response of each connection and key is checked, later ones only for their status.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench_support::{Body, Head, HttpConnection, RunError, SplitMix64};
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::case::SqlCase;
use crate::database::ACCOUNTS;
use crate::query_api::{PARAM_WIDTH, QueryApi, QueryBody};
use crate::turn::{CpuReader, MeasuredTurn, WARM_UP};

/// Room for latencies, so that a connection rarely allocates during the window.
const LATENCIES_CAPACITY: usize = 16 * 1024;
/// Type of a result as one JSON object.
pub(crate) const JSON: &str = "application/json";

/// A gateway.
#[derive(Clone, Debug)]
pub(crate) struct HttpTarget {
    pub(crate) address: SocketAddr,
    /// API keys; every connection uses the next one for its next query. Without keys, requests carry none.
    pub(crate) keys: Vec<String>,
    pub(crate) api: QueryApi,
}

/// Part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadPhase {
    WarmUp,
    Window,
    Over,
}

/// Queries of one connection in the window.
struct ClientResult {
    latencies_ns: Vec<u64>,
    bytes: usize,
}

/// Runs a case.
pub(crate) async fn run(
    target: &HttpTarget,
    case: SqlCase,
    window: Duration,
    cpu: CpuReader<'_>,
) -> Result<MeasuredTurn, RunError> {
    let phase = Rc::new(Cell::new(LoadPhase::WarmUp));
    let local = LocalSet::new();
    let turn = async {
        let mut tasks = Vec::new();
        for index in 0..case.connections() {
            let client = SqlClient::open(target, case, index).await?;
            tasks.push(tokio::task::spawn_local(client.run(phase.clone())));
        }
        sleep(WARM_UP).await;
        let cpu_before = cpu()?;
        let start = Instant::now();
        phase.set(LoadPhase::Window);
        sleep(window).await;
        let cpu_after = cpu()?;
        let wall = start.elapsed();
        phase.set(LoadPhase::Over);
        let mut latencies_ns = Vec::new();
        let mut bytes = 0;
        for task in tasks {
            let mut result = task.await.map_err(io::Error::other)??;
            latencies_ns.append(&mut result.latencies_ns);
            bytes += result.bytes;
        }
        let bytes_per_query = bytes as f64 / latencies_ns.len() as f64;
        Ok(MeasuredTurn { latencies_ns, wall, cpu: cpu_after.saturating_sub(cpu_before), bytes_per_query })
    };
    local.run_until(turn).await
}

/// Fails unless the gateway answers the query of a case.
pub(crate) async fn check(target: &HttpTarget, case: SqlCase) -> Result<(), RunError> {
    SqlClient::open(target, case, 0).await.map(drop)
}

/// Sends one request with a body and returns the response's body, if its status is 200.
pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> Result<Vec<u8>, RunError> {
    let mut connection = HttpConnection::connect(address).await?;
    connection.write(&request(address, path, None, JSON, body)).await?;
    let mut received = Vec::new();
    read_response(&mut connection, |part| received.extend_from_slice(part)).await?;
    Ok(received)
}

/// A connection with its requests.
struct SqlClient {
    connection: HttpConnection,
    /// One per key.
    requests: Vec<Vec<u8>>,
    next_request: usize,
    api: QueryApi,
    /// Position of the parameter, counted from the end of a request; `None` if the query has no parameter.
    param_from_end: Option<usize>,
    random: SplitMix64,
}

impl SqlClient {
    /// Opens a connection and checks the response to each of its requests.
    async fn open(target: &HttpTarget, case: SqlCase, index: usize) -> Result<Self, RunError> {
        let QueryBody { text, param_from_end } = target.api.body(case);
        let new_request = |key| request(target.address, target.api.path(), key, target.api.accept(), &text);
        let requests = if target.keys.is_empty() {
            vec![new_request(None)]
        } else {
            target.keys.iter().map(|key| new_request(Some(key.as_str()))).collect()
        };
        let mut connection = HttpConnection::connect(target.address).await?;
        for request in &requests {
            connection.write(request).await?;
            let mut body = Vec::new();
            read_response(&mut connection, |part| body.extend_from_slice(part)).await?;
            check_result(&body, case, target.api)?;
        }
        Ok(Self {
            connection,
            // Neighbouring connections begin with different tenants.
            next_request: index % requests.len(),
            requests,
            api: target.api,
            param_from_end,
            random: SplitMix64::new(index as u64),
        })
    }

    async fn run(mut self, phase: Rc<Cell<LoadPhase>>) -> Result<ClientResult, RunError> {
        let mut result = ClientResult { latencies_ns: Vec::with_capacity(LATENCIES_CAPACITY), bytes: 0 };
        while phase.get() != LoadPhase::Over {
            let sent = Instant::now();
            let bytes = self.send().await?;
            if phase.get() == LoadPhase::Window {
                result.latencies_ns.push(sent.elapsed().as_nanos() as u64);
                result.bytes += bytes;
            }
        }
        Ok(result)
    }

    /// Sends a query and returns the length of the response's body.
    async fn send(&mut self) -> Result<usize, RunError> {
        let index = self.next_request;
        self.next_request = (index + 1) % self.requests.len();
        let request = &mut self.requests[index];
        if let Some(from_end) = self.param_from_end {
            let start = request.len() - from_end;
            let account = 1 + self.random.next_number() % u64::from(ACCOUNTS);
            self.api.write_param(account, &mut request[start..start + PARAM_WIDTH]);
        }
        self.connection.write(request).await?;
        let mut bytes = 0;
        read_response(&mut self.connection, |part| bytes += part.len()).await?;
        Ok(bytes)
    }
}

/// Builds a request with a body.
pub(crate) fn request(
    address: SocketAddr,
    path: &str,
    key: Option<&str>,
    accept: &str,
    body: &str,
) -> Vec<u8> {
    let authorization = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: {accept}\r\n\
         {authorization}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Reads a response with its body.
pub(crate) async fn receive(connection: &mut HttpConnection) -> Result<HttpResponse, RunError> {
    let head = read_head(connection).await?;
    collect(connection, head).await
}

/// Reads a response and passes on its body; fails unless its status is 200.
async fn read_response(
    connection: &mut HttpConnection,
    mut on_part: impl FnMut(&[u8]),
) -> Result<(), RunError> {
    let head = read_head(connection).await?;
    if status(&head) != Some(200) {
        let HttpResponse { status, body } = collect(connection, head).await?;
        return Err(RunError(format!("status {status}: {}", String::from_utf8_lossy(&body))));
    }
    let mut rest = head.body;
    while rest != Body::Done {
        on_part(connection.part(&mut rest).await?);
    }
    Ok(())
}

async fn read_head(connection: &mut HttpConnection) -> Result<Head, RunError> {
    connection.head().await?.ok_or_else(|| RunError("connection closed".to_owned()))
}

async fn collect(connection: &mut HttpConnection, head: Head) -> Result<HttpResponse, RunError> {
    let status = status(&head).ok_or_else(|| RunError("a response has no status".to_owned()))?;
    let mut rest = head.body;
    let mut body = Vec::new();
    while rest != Body::Done {
        body.extend_from_slice(connection.part(&mut rest).await?);
    }
    Ok(HttpResponse { status, body })
}

fn status(head: &Head) -> Option<u16> {
    std::str::from_utf8(head.line.get(9..12)?).ok()?.parse().ok()
}

fn check_result(body: &[u8], case: SqlCase, api: QueryApi) -> Result<(), RunError> {
    if api.is_expected(body, case) {
        return Ok(());
    }
    let start = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    Err(RunError(format!("unexpected result: {start}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_key_and_the_length_of_its_body() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let text = request(address, "/query", Some("k"), "application/x-ndjson", "{}");
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("POST /query HTTP/1.1\r\nhost: 127.0.0.1:80\r\n"), "{text}");
        assert!(text.contains("\r\naccept: application/x-ndjson\r\nauthorization: Bearer k\r\n"), "{text}");
        assert!(text.ends_with("\r\ncontent-length: 2\r\n\r\n{}"), "{text}");
    }
}
