//! A contender's processes: started, looked at through `/proc`, ended.
//!
//! Bound: at most 64 processes a contender; one that does not end within five seconds of being asked is killed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROCESSES_MAX: usize = 64;
const END_WAIT_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A program that runs until this is dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program; what it says goes to a file.
    pub fn start(command: &mut Command, log: &Path) -> io::Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: command.spawn()? })
    }

    /// Names it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Adds up how long all threads of it and its children have run, in user and in system mode.
    pub fn cpu(&self) -> io::Result<Duration> {
        let mut ns = 0;
        for pid in family(self.child.id())? {
            // What `stat` has as ticks of 10 ms, the scheduler has in nanoseconds.
            for text in of_tasks(pid, "schedstat")? {
                ns += first_number(&text).ok_or_else(|| io::Error::other("schedstat has no number"))?;
            }
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Adds up the memory of it and its children that is in memory, in bytes; pages they share count for each.
    pub fn rss(&self) -> io::Result<u64> {
        let mut kib = 0;
        for pid in family(self.child.id())? {
            let Some(status) = unless_gone(fs::read_to_string(format!("/proc/{pid}/status")))? else {
                continue;
            };
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            kib += line.and_then(first_number).ok_or_else(|| io::Error::other("a process without VmRSS"))?;
        }
        Ok(kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // One that is gone already cannot be told to go.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if END_WAIT_MAX < asked.elapsed() {
                drop(self.child.kill());
                drop(self.child.wait());
                return;
            }
            sleep(LOOK_EVERY);
        }
    }
}

fn family(first: u32) -> io::Result<Vec<u32>> {
    let mut all = vec![first];
    let mut at = 0;
    while at < all.len() && all.len() < PROCESSES_MAX {
        for children in of_tasks(all[at], "children")? {
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    Ok(all)
}

/// Reads a file of every thread of a process; threads and processes that ended meanwhile have none.
fn of_tasks(pid: u32, file: &str) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    let Some(tasks) = unless_gone(fs::read_dir(format!("/proc/{pid}/task")))? else { return Ok(texts) };
    for task in tasks {
        texts.extend(unless_gone(fs::read_to_string(task?.path().join(file)))?);
    }
    Ok(texts)
}

fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    const NO_SUCH_PROCESS: i32 = 3;
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(NO_SUCH_PROCESS) => Ok(None),
        Err(error) => Err(error),
    }
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn what_children_do_counts() {
        let log = std::env::temp_dir().join(format!("bench-process-{}", std::process::id()));
        let script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; exec sleep 1000'";
        let started =
            Process::start(Command::new("sh").args(["-c", &format!("{script}; true")]), &log).unwrap();
        while !fs::read_to_string(&log).unwrap().contains("done") {
            black_box(());
        }
        assert_eq!(family(started.child.id()).unwrap().len(), 2);
        assert!(Duration::from_millis(5) < started.cpu().unwrap());
        assert!(500_000 < started.rss().unwrap());
        fs::remove_file(log).unwrap();
        // Its child outlives a shell that was told to end; this one is told, too.
        let child = family(started.child.id()).unwrap()[1];
        kill_process(Pid::from_raw(child as i32).unwrap(), Signal::TERM).unwrap();
    }
}
