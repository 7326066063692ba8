//! A contender's processes: start, CPU time and memory from `/proc`, stop.
//!
//! Limits: at most 64 processes per contender are counted. A process that has not exited five seconds after SIGTERM is
//! killed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROCESSES_MAX: usize = 64;
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running program, stopped on drop.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program; standard output and standard error go to `log`.
    pub fn start(command: &mut Command, log: &Path) -> io::Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: command.spawn()? })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reports whether the process is still running.
    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.exit_status()?.is_none())
    }

    /// Returns the exit status, or `None` while the process is running.
    pub fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends a signal to the process, which must not have exited.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("invalid process ID"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns the CPU time (user and system) of all threads of the process and its descendants.
    pub fn cpu(&self) -> io::Result<Duration> {
        process_tree_cpu(self.child.id())
    }

    /// Returns the resident memory of the process and its descendants in bytes; shared pages count once per process.
    pub fn rss(&self) -> io::Result<u64> {
        let mut kib = 0;
        for pid in process_tree(self.child.id())? {
            let Some(status) = unless_exited(fs::read_to_string(format!("/proc/{pid}/status")))? else {
                continue;
            };
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            kib +=
                line.and_then(first_number).ok_or_else(|| io::Error::other("process status has no VmRSS"))?;
        }
        Ok(kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.send(Signal::TERM);
        let signalled = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if signalled.elapsed() > STOP_WAIT_MAX {
                drop(self.child.kill());
                drop(self.child.wait());
                return;
            }
            sleep(POLL_INTERVAL);
        }
    }
}

/// Returns the CPU time (user and system) of all threads of a process and its descendants.
pub fn process_tree_cpu(root: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for pid in process_tree(root)? {
        for text in read_task_files(pid, "schedstat")? {
            total += parse_schedstat(&text)?;
        }
    }
    Ok(total)
}

/// Returns the CPU time of a thread of this process.
pub fn thread_cpu(id: u32) -> io::Result<Duration> {
    parse_schedstat(&fs::read_to_string(format!("/proc/self/task/{id}/schedstat"))?)
}

/// Returns the first number, which counts nanoseconds; `stat` only counts ticks of 10 ms.
fn parse_schedstat(text: &str) -> io::Result<Duration> {
    let ns = first_number(text).ok_or_else(|| io::Error::other("schedstat contains no number"))?;
    Ok(Duration::from_nanos(ns))
}

/// Returns the process and its descendants.
fn process_tree(root: u32) -> io::Result<Vec<u32>> {
    let mut all = vec![root];
    let mut index = 0;
    while index < all.len() && all.len() < PROCESSES_MAX {
        for children in read_task_files(all[index], "children")? {
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        index += 1;
    }
    Ok(all)
}

/// Reads a file of every thread of a process; skips threads and processes that have exited.
fn read_task_files(pid: u32, file: &str) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    let Some(tasks) = unless_exited(fs::read_dir(format!("/proc/{pid}/task")))? else { return Ok(texts) };
    for task in tasks {
        texts.extend(unless_exited(fs::read_to_string(task?.path().join(file)))?);
    }
    Ok(texts)
}

fn unless_exited<T>(read: io::Result<T>) -> io::Result<Option<T>> {
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
    fn the_work_of_child_processes_counts() {
        let log = std::env::temp_dir().join(format!("bench-process-{}", std::process::id()));
        let script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; exec sleep 1000'";
        let started =
            Process::start(Command::new("sh").args(["-c", &format!("{script}; true")]), &log).unwrap();
        while !fs::read_to_string(&log).unwrap().contains("done") {
            black_box(());
        }
        assert_eq!(process_tree(started.child.id()).unwrap().len(), 2);
        assert!(started.cpu().unwrap() > Duration::from_millis(5));
        assert!(started.rss().unwrap() > 500_000);
        fs::remove_file(log).unwrap();
        // The child would outlive its shell, so it is signalled as well.
        let child = process_tree(started.child.id()).unwrap()[1];
        kill_process(Pid::from_raw(child as i32).unwrap(), Signal::TERM).unwrap();
    }
}
