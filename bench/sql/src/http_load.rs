//! Load generator for Evenkeel: keep-alive connections that send the next query as soon as the response is complete.
//!
//! One thread drives all connections. A request is built once per connection and key; only the digits of its parameter
//! change. The first response of each connection and key is checked, later ones only for their status.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench_support::{Body, HttpConnection, RunError, SplitMix64};
use memchr::memmem;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::case::{RESULT_ROWS, SqlCase};
use crate::database::ACCOUNTS;
use crate::turn::{CpuReader, MeasuredTurn, WARM_UP};

/// Room for the digits of an account's number; the rest is spaces, so that the length of a request never changes.
const PARAM_WIDTH: usize = 10;
/// Room for latencies, so that a connection rarely allocates during the window.
const LATENCIES_CAPACITY: usize = 16 * 1024;

/// A gateway.
#[derive(Clone, Debug)]
pub(crate) struct HttpTarget {
    pub(crate) address: SocketAddr,
    /// API keys; every connection uses the next one for its next query. Without keys, requests carry none.
    pub(crate) keys: Vec<String>,
    pub(crate) lookup: LookupSql,
    pub(crate) form: ResultForm,
}

/// Dialect of the query by primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupSql {
    Postgres,
    Sqlite,
}

impl LookupSql {
    fn text(self) -> &'static str {
        match self {
            Self::Postgres => "select abalance from pgbench_accounts where aid = $1",
            Self::Sqlite => "select abalance from pgbench_accounts where aid = ?1",
        }
    }
}

/// Form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultForm {
    /// One JSON object.
    Object,
    /// A stream of JSON lines.
    Lines,
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
    connection.write(&request(address, path, None, ResultForm::Object, body)).await?;
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
    /// Position of the parameter, counted from the end of a request; `None` if the query has no parameter.
    param_from_end: Option<usize>,
    random: SplitMix64,
}

impl SqlClient {
    /// Opens a connection and checks the response to each of its requests.
    async fn open(target: &HttpTarget, case: SqlCase, index: usize) -> Result<Self, RunError> {
        let sql = match case {
            SqlCase::Lookup { .. } => target.lookup.text().to_owned(),
            SqlCase::Rows => format!("select * from pgbench_accounts limit {RESULT_ROWS}"),
        };
        let (params, param_from_end) = match case {
            SqlCase::Lookup { .. } => (format!("[{:PARAM_WIDTH$}]", 1), Some(PARAM_WIDTH + 2)),
            SqlCase::Rows => ("[]".to_owned(), None),
        };
        let body = format!(r#"{{"sql":"{sql}","params":{params}}}"#);
        let new_request = |key| request(target.address, "/query", key, target.form, &body);
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
            check_result(&body, case, target.form)?;
        }
        Ok(Self {
            connection,
            // Neighbouring connections begin with different tenants.
            next_request: index % requests.len(),
            requests,
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
            write_number(account, &mut request[start..start + PARAM_WIDTH]);
        }
        self.connection.write(request).await?;
        let mut bytes = 0;
        read_response(&mut self.connection, |part| bytes += part.len()).await?;
        Ok(bytes)
    }
}

fn request(address: SocketAddr, path: &str, key: Option<&str>, form: ResultForm, body: &str) -> Vec<u8> {
    let accept = match form {
        ResultForm::Object => "application/json",
        ResultForm::Lines => "application/x-ndjson",
    };
    let authorization = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: {accept}\r\n\
         {authorization}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Writes a number right-aligned, with leading spaces, which JSON ignores.
fn write_number(mut number: u64, field: &mut [u8]) {
    for byte in field.iter_mut().rev() {
        *byte = if number == 0 { b' ' } else { b'0' + (number % 10) as u8 };
        number /= 10;
    }
}

/// Reads a response and passes on its body; fails unless its status is 200.
async fn read_response(
    connection: &mut HttpConnection,
    mut on_part: impl FnMut(&[u8]),
) -> Result<(), RunError> {
    let head = connection.head().await?.ok_or_else(|| RunError("connection closed".to_owned()))?;
    let mut rest = head.body;
    if head.line.get(9..12) == Some(b"200") {
        while rest != Body::Done {
            on_part(connection.part(&mut rest).await?);
        }
        return Ok(());
    }
    let mut body = Vec::new();
    while rest != Body::Done {
        body.extend_from_slice(connection.part(&mut rest).await?);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(RunError(format!("{}: {}", text(&head.line), text(&body))))
}

/// Fails unless a body has the expected result: a balance of 0, or all rows.
fn check_result(body: &[u8], case: SqlCase, form: ResultForm) -> Result<(), RunError> {
    let is_expected = match (case, form) {
        (SqlCase::Lookup { .. }, ResultForm::Object) => memmem::find(body, b"[[0]]").is_some(),
        (SqlCase::Lookup { .. }, ResultForm::Lines) => memmem::find(body, b"[0]").is_some(),
        (SqlCase::Rows, _) => memmem::find(body, format!("\"rowCount\":{RESULT_ROWS}").as_bytes()).is_some(),
    };
    if is_expected {
        return Ok(());
    }
    let start = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    Err(RunError(format!("unexpected result: {start}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_fills_its_field() {
        let mut field = *b"0123456789";
        write_number(905, &mut field);
        assert_eq!(&field, b"       905");
        write_number(u64::from(ACCOUNTS), &mut field);
        assert_eq!(&field, b"   1000000");
    }

    #[test]
    fn a_request_has_the_key_and_the_length_of_its_body() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let text = request(address, "/query", Some("k"), ResultForm::Lines, "{}");
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("POST /query HTTP/1.1\r\nhost: 127.0.0.1:80\r\n"), "{text}");
        assert!(text.contains("\r\naccept: application/x-ndjson\r\nauthorization: Bearer k\r\n"), "{text}");
        assert!(text.ends_with("\r\ncontent-length: 2\r\n\r\n{}"), "{text}");
    }

    #[test]
    fn results_of_another_query_are_rejected() {
        let lookup = SqlCase::Lookup { connections: 1 };
        assert!(check_result(br#"{"rows":[[0]],"rowCount":1}"#, lookup, ResultForm::Object).is_ok());
        assert!(check_result(br#"{"rows":[],"rowCount":0}"#, lookup, ResultForm::Object).is_err());
        assert!(check_result(br#"{"rows":[],"rowCount":5000}"#, SqlCase::Rows, ResultForm::Object).is_ok());
        assert!(check_result(br#"{"rows":[],"rowCount":4999}"#, SqlCase::Rows, ResultForm::Lines).is_err());
    }
}
