//! One turn: one contender running one case once.

use std::io;
use std::time::Duration;

use bench_support::{TurnSample, latency_percentiles};

use crate::case::{RESULT_ROWS, SqlCase};

/// Time between the first queries of a turn and its measured window.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);

/// Reads the CPU time of the process in the middle.
pub(crate) type CpuReader<'a> = &'a dyn Fn() -> io::Result<Duration>;

/// Results of a turn's measured window.
#[derive(Debug, PartialEq)]
pub(crate) struct MeasuredTurn {
    /// One per query that ended in the window.
    pub(crate) latencies_ns: Vec<u64>,
    pub(crate) wall: Duration,
    /// CPU time of the process in the middle.
    pub(crate) cpu: Duration,
    /// Bytes that the client received for one query.
    pub(crate) bytes_per_query: f64,
}

/// Presence of a process between client and database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Middle {
    None,
    Process,
}

impl MeasuredTurn {
    /// Computes the metrics of a case; an empty sample if no query ended in the window.
    pub(crate) fn sample(self, case: SqlCase, middle: Middle) -> TurnSample {
        let queries = self.latencies_ns.len() as f64;
        if self.latencies_ns.is_empty() {
            return TurnSample::new();
        }
        let rate = queries / self.wall.as_secs_f64();
        let wall_us = self.wall.as_secs_f64() * 1e6 / queries;
        let cpu_us = self.cpu.as_secs_f64() * 1e6 / queries;
        let rows = RESULT_ROWS as f64;
        let mut sample = vec![("wall_us", wall_us)];
        match case {
            SqlCase::Lookup { .. } => sample.push(("rate", rate)),
            SqlCase::Rows => {
                sample.extend([("row_rate", rate * rows), ("mb_rate", rate * self.bytes_per_query / 1e6)]);
            }
        }
        match (middle, case) {
            (Middle::None, _) => {}
            (Middle::Process, SqlCase::Lookup { .. }) => sample.push(("cpu_us", cpu_us)),
            (Middle::Process, SqlCase::Rows) => {
                let cpu_ns_per_byte = cpu_us * 1e3 / self.bytes_per_query;
                sample.extend([("cpu_us_per_row", cpu_us / rows), ("cpu_ns_per_byte", cpu_ns_per_byte)]);
            }
        }
        sample.extend(latency_percentiles(self.latencies_ns));
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_support::get;

    #[test]
    fn cpu_time_is_divided_by_the_queries_of_the_window() {
        let sample = turn(1_000).sample(SqlCase::Lookup { connections: 1 }, Middle::Process);
        assert_eq!(get(&sample, "rate"), Some(500.0));
        assert_eq!(get(&sample, "cpu_us"), Some(50.0));
        assert_eq!(get(&sample, "p50_us"), Some(70.0));
    }

    #[test]
    fn results_with_many_rows_are_measured_per_row_and_byte() {
        let sample = turn(1_000).sample(SqlCase::Rows, Middle::Process);
        assert_eq!(get(&sample, "row_rate"), Some(2_500_000.0));
        assert_eq!(get(&sample, "mb_rate"), Some(250.0));
        assert_eq!(get(&sample, "cpu_us_per_row"), Some(0.01));
        assert_eq!(get(&sample, "cpu_ns_per_byte"), Some(0.1));
    }

    #[test]
    fn a_turn_without_a_process_in_the_middle_has_no_cpu_time() {
        let sample = turn(1_000).sample(SqlCase::Lookup { connections: 1 }, Middle::None);
        assert_eq!(get(&sample, "cpu_us"), None);
    }

    #[test]
    fn a_turn_without_queries_has_no_metrics() {
        assert_eq!(turn(0).sample(SqlCase::Rows, Middle::Process), []);
    }

    fn turn(queries: usize) -> MeasuredTurn {
        MeasuredTurn {
            latencies_ns: vec![70_000; queries],
            wall: Duration::from_secs(2),
            cpu: Duration::from_millis(50),
            bytes_per_query: 500_000.0,
        }
    }
}
