//! Counts how often a server flushes, by `strace`, while it confirms messages: equal durability is seen, not believed.

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
/// How many messages are taken.
const TAKEN: f64 = 160.0;

/// Flushes per message, batches of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FsyncCounts {
    /// With one producer.
    pub(crate) alone: f64,
    /// With 16 producers.
    pub(crate) among: f64,
    /// With one consumer that receives and acknowledges.
    pub(crate) taken: f64,
}

/// Watches a server for a moment.
pub(crate) async fn count(server: &Server, folder: &Path) -> io::Result<FsyncCounts> {
    LocalSet::new().run_until(count_all(server, &folder.join("strace"))).await
}

async fn count_all(server: &Server, out: &Path) -> io::Result<FsyncCounts> {
    create(server, "syncs").await?;
    let alone = per_message(server, out, send(connect(server, "syncs", 1).await?, 1, SPAN)).await?;
    let among = per_message(server, out, send(connect(server, "syncs", 16).await?, 1, SPAN)).await?;
    create(server, "taken").await?;
    let count = fill(server, "taken", TAKEN).await?;
    let taken = per_message(server, out, take(connect(server, "taken", 1).await?, 1, count)).await?;
    Ok(FsyncCounts { alone, among, taken })
}

async fn per_message(
    server: &Server,
    out: &Path,
    load: impl Future<Output = io::Result<LoadResult>>,
) -> io::Result<f64> {
    let watcher = Strace::attach(server.process.id(), out).await?;
    let done = load.await?;
    Ok(watcher.detach(out)? as f64 / done.messages as f64)
}

struct Strace(Child);

impl Strace {
    async fn attach(pid: u32, out: &Path) -> io::Result<Self> {
        let said = out.with_extension("said");
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-e", CALLS, "-p", &pid.to_string(), "-o"]).arg(out);
        let child = command.stdin(Stdio::null()).stderr(fs::File::create(&said)?).spawn()?;
        let mut watcher = Self(child);
        let begun = Instant::now();
        while !fs::read_to_string(&said)?.contains("attached") {
            if watcher.0.try_wait()?.is_some() || ATTACH_WAIT_MAX < begun.elapsed() {
                return Err(io::Error::other("strace could not attach"));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(watcher)
    }

    /// Ends watching; adds up the calls.
    fn detach(mut self, out: &Path) -> io::Result<u64> {
        self.interrupt();
        self.0.wait()?;
        Ok(calls(&fs::read_to_string(out)?))
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // One that is gone already cannot be told to go.
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

/// Reads the calls of a summary: the fourth column, but for the total.
fn calls(summary: &str) -> u64 {
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.last().filter(|name| name.contains("sync"))?;
        words.get(3).filter(|calls| *calls != name)?.parse::<u64>().ok()
    };
    summary.lines().filter_map(of_line).sum()
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
        assert_eq!(calls(summary), 1020);
        assert_eq!(calls(""), 0);
    }
}
