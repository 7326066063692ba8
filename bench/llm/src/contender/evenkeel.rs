//! `evenkeel serve` in three configurations.

use std::fs;
use std::io;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, target};
use crate::chat::MODEL;
use crate::load::Target;
use bench_support::Process;

const TENANTS: usize = 4;
/// Slots per node; with two nodes, half of the 16 connections are served at a time.
const SLOTS_FEW: usize = 4;
const SLOTS_MANY: usize = 256;

pub(super) fn open(setup: &Setup) -> io::Result<StartedProcess> {
    start(setup, SLOTS_MANY, &[])
}

pub(super) fn tenants(setup: &Setup) -> io::Result<StartedProcess> {
    start(setup, SLOTS_MANY, &keys(setup)?)
}

pub(super) fn queued(setup: &Setup) -> io::Result<StartedProcess> {
    start(setup, SLOTS_FEW, &keys(setup)?)
}

struct Key {
    key: String,
    hash: String,
}

fn keys(setup: &Setup) -> io::Result<Vec<Key>> {
    (0..TENANTS).map(|_| create_key(setup)).collect()
}

fn create_key(setup: &Setup) -> io::Result<Key> {
    let output = Command::new(&setup.evenkeel).args(["tenant", "key"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(key), Some(hash)) => Ok(Key { key: key.to_owned(), hash: hash.to_owned() }),
        _ => Err(io::Error::other("`evenkeel tenant key` printed no key")),
    }
}

fn start(setup: &Setup, slots: usize, keys: &[Key]) -> io::Result<StartedProcess> {
    if !setup.evenkeel.is_file() {
        let message = format!(
            "{} is missing; build it with `cargo build --release -p evenkeel`",
            setup.evenkeel.display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let address = free_port()?;
    let file = setup.directory.join("evenkeel.toml");
    let mut config = format!("[server]\nlisten = '{address}'\n");
    for (index, node) in setup.nodes.iter().enumerate() {
        config += &format!(
            "\n[[llm.nodes]]\nname = 'n{index}'\nurl = 'http://{node}'\nmodels = ['{MODEL}']\nmax_concurrency = {slots}\n"
        );
    }
    for (index, Key { hash, .. }) in keys.iter().enumerate() {
        // The limits are never reached, but checking them costs time.
        config += &format!(
            "\n[[tenants]]\nname = 't{index}'\nweight = {}\nrpm = 1000000000\ntpm = 1000000000000\nconcurrency_max = 1000\n\
             key_hashes = ['{hash}']\n",
            index + 1
        );
    }
    fs::write(&file, config)?;
    let mut command = Command::new(&setup.evenkeel);
    command.arg("serve").arg("--config").arg(&file).arg("--data-dir").arg(setup.directory.join("data"));
    let process = Process::start(command.current_dir(&setup.directory), &log(&setup.directory))?;
    let open = target(vec![address]);
    let keys = if keys.is_empty() { open.keys } else { keys.iter().map(|key| key.key.clone()).collect() };
    Ok(StartedProcess { target: Target { addresses: open.addresses, keys }, process: Some(process) })
}
