//! A network namespace with a name of its own.
//!
//! Names have the form `ek-SIDE-PID-NUMBER`, where PID is the process that created the namespace, so that
//! [`remove_leftovers`] recognises namespaces of processes that were killed.

use crate::emulator::MTU;
use crate::ip;
use crate::unavailable::Unavailable;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tun_rs::{DeviceBuilder, SyncDevice};

const PREFIX: &str = "ek-";
/// Directory in which `ip` keeps named namespaces.
const DIRECTORY: &str = "/run/netns";

/// One side of a [`Network`](crate::Network).
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: Arc<File>,
}

impl Namespace {
    pub(crate) fn create(side: &str, number: u64) -> Result<Self, Unavailable> {
        let name = format!("{PREFIX}{side}-{}-{number}", std::process::id());
        ip::run(&["netns", "add", &name])?;
        match File::open(Path::new(DIRECTORY).join(&name)) {
            Ok(file) => Ok(Self { name, file: Arc::new(file) }),
            Err(source) => {
                remove(&name);
                Err(Unavailable::SetupFailed { step: format!("open namespace {name}"), source })
            }
        }
    }

    /// Returns the name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Brings the loopback interface up, accepts packets of any path, and turns IPv6 off, whose packets would count.
    pub(crate) fn prepare(&self) -> Result<(), Unavailable> {
        ip::batch(&self.name, "link set lo up\n")?;
        self.run(|| {
            for name in ["all", "default"] {
                fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0")?;
                match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
                    // The kernel has no IPv6.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => result?,
                }
            }
            Ok(())
        })
        .map_err(|source| Unavailable::SetupFailed { step: format!("set sysctls of {}", self.name), source })
    }

    /// Creates a TUN device, without an address.
    pub(crate) fn create_device(&self, name: &str) -> Result<SyncDevice, Unavailable> {
        let create = || {
            let builder = DeviceBuilder::new().name(name).mtu(MTU).enable(false);
            let device = builder.build_sync()?;
            device.set_nonblocking(true)?;
            Ok(device)
        };
        self.run(create).map_err(|source| Unavailable::SetupFailed {
            step: format!("create interface {name} in {}", self.name),
            source,
        })
    }

    /// Runs `work` on a new thread in this namespace and returns its result.
    ///
    /// Sockets that it opens, threads that it starts and processes that it spawns belong to the namespace. A panic in
    /// `work` is passed on.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.file);
                work()
            });
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts a thread in this namespace.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = Arc::clone(&self.file);
        thread::spawn(move || {
            enter(&file);
            work()
        })
    }

    /// Creates a command that runs a program in this namespace.
    ///
    /// `ip` replaces itself with the program, so the process ID of the child is that of the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("a process that created a namespace may enter it");
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes namespaces whose creator has exited.
pub(crate) fn remove_leftovers() {
    for name in names().unwrap_or_default() {
        if creator(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name);
        }
    }
}

fn names() -> io::Result<Vec<String>> {
    let entries = fs::read_dir(DIRECTORY)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// Returns the process that created a namespace; `None` if this crate did not create it.
fn creator(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-').skip(1);
    let pid = parts.next()?.parse().ok()?;
    parts.next()?.parse::<u64>().ok()?;
    Some(pid)
}

/// Kills the processes in a namespace, which a failed test may leave behind, and removes its name.
fn remove(name: &str) {
    // Nothing is left to do if a step fails: the next network tries again.
    let pids = ip::run(&["netns", "pids", name]).unwrap_or_default();
    for pid in pids.lines().filter_map(|pid| Pid::from_raw(pid.trim().parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = ip::run(&["netns", "delete", name]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_crate_have_a_creator() {
        assert_eq!(creator("ek-edge-4711-0"), Some(4711));
        for name in ["edge", "ek-edge", "ek-edge-x-0", "ek-edge-1", "ek-edge-1-x", "other-edge-1-0"] {
            assert_eq!(creator(name), None, "{name}");
        }
    }
}
