//! pgbench as the load generator for PostgreSQL and PgBouncer: one thread, like [`http_load`](crate::http_load).
//!
//! pgbench logs the end and the duration of every query, so that only those in the measured window are counted.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bench_support::{Process, RunError};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::case::{RESULT_ROWS, SqlCase};
use crate::database::{self, NAME};
use crate::turn::{CpuReader, MeasuredTurn, WARM_UP};

/// Time that pgbench may take to connect, and to exit.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Time after which pgbench ends by itself, if this process is killed.
const PGBENCH_SECONDS: &str = "700";
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A server for pgbench.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PgTarget {
    pub(crate) port: u16,
    pub(crate) protocol: QueryProtocol,
    /// Bytes of one result in [`SqlCase::Rows`].
    pub(crate) result_bytes: f64,
}

/// Protocol that pgbench uses for queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryProtocol {
    /// One message with the whole text.
    Simple,
    /// Parse, bind and execute for every query.
    Extended,
    /// Parse once per connection, then bind and execute.
    Prepared,
}

impl QueryProtocol {
    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// Runs a case; `directory` gets pgbench's files.
pub(crate) async fn run(
    target: &PgTarget,
    case: SqlCase,
    window: Duration,
    directory: &Path,
    cpu: CpuReader<'_>,
) -> Result<MeasuredTurn, RunError> {
    let prefix = directory.join("pgbench");
    let mut command = database::pgbench(target.port);
    command.args(["-n", "-j", "1", "-c", &case.connections().to_string(), "-T", PGBENCH_SECONDS]);
    command.args(["-M", target.protocol.name(), "-l", "--log-prefix"]).arg(&prefix);
    match case {
        SqlCase::Lookup { .. } => command.arg("-S"),
        SqlCase::Rows => {
            let script = directory.join("rows.sql");
            fs::write(&script, format!("SELECT * FROM pgbench_accounts LIMIT {RESULT_ROWS};\n"))?;
            command.arg("-f").arg(script)
        }
    };
    let output = directory.join("pgbench.out");
    let mut process = Process::start(command.arg(NAME), &output)?;
    let log = prefix.with_added_extension(process.id().to_string());
    wait_for_first_queries(&mut process, &log, &output).await?;
    sleep(WARM_UP).await;
    let cpu_before = cpu()?;
    let start = since_epoch();
    sleep(window).await;
    let cpu_after = cpu()?;
    let end = since_epoch();
    // The last queries end after the window.
    sleep(POLL_INTERVAL).await;
    stop(&mut process, &output).await?;
    let text = fs::read_to_string(&log)?;
    fs::remove_file(&log)?;
    let latencies_ns = latencies_between(&text, start, end)?;
    let cpu = cpu_after.saturating_sub(cpu_before);
    Ok(MeasuredTurn { latencies_ns, wall: end - start, cpu, bytes_per_query: target.result_bytes })
}

/// Waits until pgbench has written the first part of its log, which it does after about a hundred queries.
async fn wait_for_first_queries(process: &mut Process, log: &Path, output: &Path) -> Result<(), RunError> {
    let started = Instant::now();
    while fs::metadata(log).map_or(0, |metadata| metadata.len()) == 0 {
        if !process.is_running()? || WAIT_MAX < started.elapsed() {
            return Err(failure("pgbench did not start", output));
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Ends pgbench as if its time were over: it completes its queries and its log.
async fn stop(process: &mut Process, output: &Path) -> Result<(), RunError> {
    process.send(Signal::ALARM)?;
    let started = Instant::now();
    loop {
        match process.exit_status()? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => return Err(failure("pgbench failed", output)),
            None if WAIT_MAX < started.elapsed() => return Err(failure("pgbench did not exit", output)),
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

fn failure(problem: &str, output: &Path) -> RunError {
    let text = fs::read_to_string(output).unwrap_or_default();
    let last_line = text.trim_end().lines().next_back().unwrap_or("no output");
    RunError(format!("{problem}: {last_line}"))
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the latencies of the queries that ended between `start` and `end`.
///
/// Fails if pgbench was not running during the whole time, or if a query failed.
fn latencies_between(log: &str, start: Duration, end: Duration) -> Result<Vec<u64>, RunError> {
    let mut latencies_ns = Vec::new();
    let mut is_before = false;
    let mut is_after = false;
    for line in log.lines() {
        let (ended, latency) = parse_line(line).ok_or_else(|| {
            RunError(format!("a line of pgbench's log is not a successful query: {line:?}"))
        })?;
        if ended < start {
            is_before = true;
        } else if end < ended {
            is_after = true;
        } else {
            latencies_ns.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }
    if is_before && is_after {
        return Ok(latencies_ns);
    }
    Err(RunError("pgbench was not running during the whole window".to_owned()))
}

/// Parses a line: client, transaction, latency in µs, script, and the end in seconds and µs.
fn parse_line(line: &str) -> Option<(Duration, Duration)> {
    let mut fields = line.split(' ').skip(2);
    let latency_us = fields.next()?.parse().ok()?;
    let seconds = fields.nth(1)?.parse().ok()?;
    let micros = fields.next()?.parse().ok()?;
    let ended = Duration::from_secs(seconds) + Duration::from_micros(micros);
    Some((ended, Duration::from_micros(latency_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0 1 50 0 100 999999\n3 1 70 0 101 0\n0 2 60 0 102 500000\n1 1 90 0 103 1\n";

    #[test]
    fn only_queries_that_end_in_the_window_count() {
        assert_eq!(between(LOG, 101, 103).unwrap(), [70_000, 60_000]);
    }

    #[test]
    fn a_log_that_does_not_cover_the_window_is_an_error() {
        let error = "pgbench was not running during the whole window";
        assert_eq!(between(LOG, 100, 103).unwrap_err().0, error);
        assert_eq!(between(LOG, 101, 104).unwrap_err().0, error);
        assert_eq!(between("", 101, 103).unwrap_err().0, error);
    }

    #[test]
    fn a_failed_query_is_an_error() {
        let error = between("0 1 failed 0 101 0\n", 101, 103).unwrap_err().0;
        assert!(error.contains("not a successful query"), "{error}");
    }

    fn between(log: &str, start: u64, end: u64) -> Result<Vec<u64>, RunError> {
        latencies_between(log, Duration::from_secs(start), Duration::from_secs(end))
    }
}
