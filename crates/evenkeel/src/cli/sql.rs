//! `evenkeel sql`: runs one statement on a running server.
//!
//! Rows are printed as they arrive with `--json` and `--csv`; a table is printed once all its rows are known.
//!
//! Limits: a statement has at most [`STATEMENT_BYTES_MAX`] bytes, a table [`output::TABLE_BYTES_MAX`].

mod error;
mod keyword;
mod output;

use std::env;
use std::io::{self, Read};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use evenkeel_telemetry::Secret;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::CliError;
use super::client::{ConnectArgs, HttpClient};
use keyword::{Effect, effect_of};
use output::{Format, Progress, ResultPrinter};

const EXAMPLES: &str = "\
Examples:
  evenkeel sql \"create table notes (id integer primary key, text text)\"
  evenkeel sql \"insert into notes (text) values (?) returning id\" --param hello
  evenkeel sql --json \"select * from notes\"              one line of JSON per row, printed as it arrives
  evenkeel sql --csv \"select * from notes\" > notes.csv
  evenkeel sql --database orders - < report.sql
  EVENKEEL_API_KEY=ek-... evenkeel sql --url https://sql.example:7070 \"select 1\"
";

/// Environment variable with a tenant's API key; unlike a flag, it is not visible in `ps`.
const KEY_VARIABLE: &str = "EVENKEEL_API_KEY";
/// Longest statement that a server accepts.
const STATEMENT_BYTES_MAX: u64 = 1 << 20;
const ERROR_BYTES_MAX: usize = 1 << 20;
/// Time limit of a response without `--timeout-ms`: longer than the longest time limit of a statement by default.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3_660);
/// Time that a response may take beyond `--timeout-ms`.
const RESPONSE_EXTRA: Duration = Duration::from_secs(60);

/// Run a SQL statement on a running server
///
/// Statements that begin with SELECT, WITH, VALUES, EXPLAIN, SHOW or TABLE may only read; `--write` lets them write.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SqlArgs {
    /// The statement; `-` reads it from standard input
    statement: String,
    /// Name of the datasource [default: the first in the server's configuration]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Parameter, as JSON; a value that is not JSON is a string; repeatable, in the order of the placeholders ($1 in
    /// PostgreSQL, ? in SQLite)
    #[arg(long = "param", value_name = "VALUE", allow_hyphen_values = true)]
    params: Vec<String>,
    /// Let the statement write, whatever its first word is
    #[arg(long)]
    write: bool,
    /// Time limit of the statement, in milliseconds [default: that of the server]
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// Print lines of JSON: an object with the columns, an array per row, and an object with a summary
    #[arg(long)]
    json: bool,
    /// Print CSV: a line with the names of the columns, and a line per row
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// API key of a tenant [default: EVENKEEL_API_KEY, which is not visible in `ps`]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn run(args: &SqlArgs) -> Result<(), CliError> {
    let statement = read_statement(&args.statement)?;
    let effect = if args.write { Effect::Write } else { effect_of(&statement) };
    let key = args.api_key.clone().or_else(|| env::var(KEY_VARIABLE).ok());
    let timeout = args.timeout_ms.map(|millis| Duration::from_millis(millis).saturating_add(RESPONSE_EXTRA));
    let client = args.connect.http_client(key.map(Secret::new), timeout.unwrap_or(RESPONSE_TIMEOUT))?;
    let format = match (args.json, args.csv) {
        (_, true) => Format::Csv,
        (true, false) => Format::Lines,
        (false, false) => Format::Table,
    };
    let body = body(args, &statement);
    let call = SqlCall { statement, effect, body };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(call.run(&client, format))
}

fn read_statement(argument: &str) -> Result<String, CliError> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut statement = String::new();
    io::stdin().lock().take(STATEMENT_BYTES_MAX + 1).read_to_string(&mut statement)?;
    if STATEMENT_BYTES_MAX < statement.len() as u64 {
        return Err(format!("the statement is longer than {STATEMENT_BYTES_MAX} bytes").into());
    }
    Ok(statement)
}

/// Returns the body of a request. It is put together as text, because numbers keep their digits that way.
fn body(args: &SqlArgs, statement: &str) -> String {
    let params: Vec<_> = args.params.iter().map(|param| param_json(param)).collect();
    let mut body = format!("{{\"sql\":{},\"params\":[{}]", json!(statement), params.join(","));
    if let Some(database) = &args.database {
        body.push_str(&format!(",\"database\":{}", json!(database)));
    }
    if let Some(millis) = args.timeout_ms {
        body.push_str(&format!(",\"timeoutMs\":{millis}"));
    }
    body + "}"
}

/// Returns the JSON of a parameter, with its digits as given.
fn param_json(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!(text).to_string(),
    }
}

/// A statement to send.
struct SqlCall {
    statement: String,
    effect: Effect,
    /// JSON body of the request.
    body: String,
}

impl SqlCall {
    async fn run(&self, client: &HttpClient, format: Format) -> Result<(), CliError> {
        let path = match self.effect {
            Effect::Read => "/query",
            Effect::Write => "/execute",
        };
        let request = Request::builder().method(Method::POST).uri(path);
        let request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, format.media_type());
        // A node without room forwards the statement to a peer, instead of redirecting this client.
        let request = request.header("x-evenkeel-redirect", "forward");
        let response = client.send(request.body(Bytes::from(self.body.clone()))?).await?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let collected = Limited::new(body, ERROR_BYTES_MAX).collect().await;
            let bytes = collected.map_err(|error| client.with_authority(&error))?.to_bytes();
            let json = serde_json::from_slice(&bytes).unwrap_or_default();
            return Err(error::describe(status, &json, self).into());
        }
        let mut printer = ResultPrinter::new(format, self.effect);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| client.with_authority(&error))?;
            let Ok(chunk) = frame.into_data() else { continue };
            if printer.add(&chunk)? == Progress::Enough {
                break;
            }
        }
        match printer.finish()? {
            None => Ok(()),
            Some(error) => Err(error::describe(status, &error, self).into()),
        }
    }
}
