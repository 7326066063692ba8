//! Counts, from outside, how often Evenkeel resets a connection because it passes to another tenant.

use std::io;
use std::time::Duration;

use bench_support::RunError;

use crate::case::SqlCase;
use crate::contender::RunningMiddle;
use crate::database::BenchDatabase;

/// Short, because every statement is logged.
const WINDOW: Duration = Duration::from_millis(200);
/// Text of the query in PostgreSQL's log.
const QUERY: &str = "select abalance from";
/// Commands of a reset in PostgreSQL's log; a reset has each of them once at most.
const RESET_COMMANDS: &[&str] = &["DISCARD ALL", "RESET ALL"];

/// Returns the number of resets per query in a case.
pub(crate) async fn count(
    database: &BenchDatabase,
    running: &RunningMiddle,
    case: SqlCase,
) -> Result<f64, RunError> {
    let length_before = database.log().len();
    set_log_statement(database, "all")?;
    let turn = running.run(case, WINDOW).await;
    set_log_statement(database, "none")?;
    turn?;
    let log = database.log();
    resets_per_query(&log[length_before.min(log.len())..])
        .ok_or_else(|| RunError("PostgreSQL logged no query".to_owned()))
}

fn set_log_statement(database: &BenchDatabase, value: &str) -> io::Result<()> {
    database.psql(&format!("ALTER SYSTEM SET log_statement = '{value}'; SELECT pg_reload_conf()")).map(drop)
}

fn resets_per_query(log: &str) -> Option<f64> {
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let resets = RESET_COMMANDS.iter().map(|command| count(command)).max().unwrap_or(0);
    let queries = count(QUERY);
    (0 < queries).then(|| resets as f64 / queries as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_counted_per_query() {
        let reset = "LOG:  execute <unnamed>: DISCARD ALL\n";
        let query = "LOG:  execute s1: select abalance from pgbench_accounts where aid = $1\n";
        assert_eq!(resets_per_query(&format!("{reset}{query}{query}")), Some(0.5));
        assert_eq!(resets_per_query(reset), None);
    }
}
