//! Counts a server's fsync calls with `strace` while it confirms messages, to verify that all contenders are equally
//! durable.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::contender::Server;
use crate::load::{LoadResult, connect, create, fill, send, take};

const CALLS: &str = "trace=fsync,fdatasync,sync_file_range,syncfs";
const SPAN: Duration = Duration::from_millis(500);
const ATTACH_WAIT_MAX: Duration = Duration::from_secs(10);
/// Number of messages that the consumer receives.
const CONSUMED: f64 = 160.0;

/// Fsync calls per message, in batches of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FsyncCounts {
    pub(crate) one_producer: f64,
    /// 16 producers.
    pub(crate) many_producers: f64,
    /// One consumer that receives and acknowledges.
    pub(crate) one_consumer: f64,
}

/// Traces a server under three short loads.
pub(crate) async fn count(server: &Server, directory: &Path) -> io::Result<FsyncCounts> {
    LocalSet::new().run_until(count_all(server, &directory.join("strace"))).await
}

async fn count_all(server: &Server, out: &Path) -> io::Result<FsyncCounts> {
    create(server, "syncs").await?;
    let one_producer = per_message(server, out, send(connect(server, "syncs", 1).await?, 1, SPAN)).await?;
    let many_producers = per_message(server, out, send(connect(server, "syncs", 16).await?, 1, SPAN)).await?;
    create(server, "taken").await?;
    let count = fill(server, "taken", CONSUMED).await?;
    let one_consumer = per_message(server, out, take(connect(server, "taken", 1).await?, 1, count)).await?;
    Ok(FsyncCounts { one_producer, many_producers, one_consumer })
}

async fn per_message(
    server: &Server,
    out: &Path,
    load: impl Future<Output = io::Result<LoadResult>>,
) -> io::Result<f64> {
    let strace = Strace::attach(server.process.id(), out).await?;
    let result = load.await?;
    Ok(strace.detach(out)? as f64 / result.messages as f64)
}

struct Strace(Child);

impl Strace {
    async fn attach(pid: u32, out: &Path) -> io::Result<Self> {
        let messages = out.with_extension("stderr");
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-e", CALLS, "-p", &pid.to_string(), "-o"]).arg(out);
        let child = command.stdin(Stdio::null()).stderr(fs::File::create(&messages)?).spawn()?;
        let mut strace = Self(child);
        let started = Instant::now();
        while !fs::read_to_string(&messages)?.contains("attached") {
            if strace.0.try_wait()?.is_some() || started.elapsed() > ATTACH_WAIT_MAX {
                return Err(io::Error::other("strace could not attach"));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(strace)
    }

    /// Stops tracing and returns the number of calls.
    fn detach(mut self, out: &Path) -> io::Result<u64> {
        self.interrupt();
        self.0.wait()?;
        Ok(sum_calls(&fs::read_to_string(out)?))
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // strace may have exited already.
        let _ = pid.map(|pid| kill_process(pid, Signal::INT));
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.interrupt();
            drop(self.0.wait());
        }
    }
}

/// Sums the `calls` column of an strace summary, without the total.
fn sum_calls(summary: &str) -> u64 {
    let calls_of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.last().filter(|name| name.contains("sync"))?;
        words.get(3).filter(|calls| *calls != name)?.parse::<u64>().ok()
    };
    summary.lines().filter_map(calls_of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_added_up_without_the_total() {
        let summary = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.100000         100      1000         1 fdatasync
 10.00    0.010000         100        20           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.110000         100      1020         1 total
";
        assert_eq!(sum_calls(summary), 1020);
        assert_eq!(sum_calls(""), 0);
    }
}
