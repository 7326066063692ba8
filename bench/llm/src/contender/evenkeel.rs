//! `evenkeel serve`, set up three ways.

use std::fs;
use std::io;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, target};
use crate::chat::MODEL;
use crate::load::Target;
use bench_support::Process;

const TENANTS: usize = 4;
/// For each of the two nodes: half of what 16 connections would take.
const SLOTS_FEW: usize = 4;
const SLOTS_MANY: usize = 256;

pub(super) fn open(place: &Setup) -> io::Result<StartedProcess> {
    start(place, SLOTS_MANY, &[])
}

pub(super) fn tenants(place: &Setup) -> io::Result<StartedProcess> {
    start(place, SLOTS_MANY, &keys(place)?)
}

pub(super) fn queued(place: &Setup) -> io::Result<StartedProcess> {
    start(place, SLOTS_FEW, &keys(place)?)
}

/// A tenant's key, and its hash.
struct Key {
    key: String,
    hash: String,
}

fn keys(place: &Setup) -> io::Result<Vec<Key>> {
    (0..TENANTS).map(|_| make_key(place)).collect()
}

fn make_key(place: &Setup) -> io::Result<Key> {
    let made = Command::new(&place.evenkeel).args(["tenant", "key"]).output()?;
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let mut lines = said.lines();
    match (lines.next(), lines.next()) {
        (Some(key), Some(hash)) => Ok(Key { key: key.to_owned(), hash: hash.to_owned() }),
        _ => Err(io::Error::other("`evenkeel tenant key` made no key")),
    }
}

fn start(place: &Setup, slots: usize, keys: &[Key]) -> io::Result<StartedProcess> {
    if !place.evenkeel.is_file() {
        let what = format!(
            "{} is missing; build it with `cargo build --release -p evenkeel`",
            place.evenkeel.display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let address = free_port()?;
    let file = place.folder.join("evenkeel.toml");
    let mut config = format!("[server]\nlisten = '{address}'\n");
    for (at, node) in place.nodes.iter().enumerate() {
        config += &format!(
            "\n[[llm.nodes]]\nname = 'n{at}'\nurl = 'http://{node}'\nmodels = ['{MODEL}']\nmax_concurrency = {slots}\n"
        );
    }
    for (at, Key { hash, .. }) in keys.iter().enumerate() {
        // Limits that are never reached are counted all the same.
        config += &format!(
            "\n[[tenants]]\nname = 't{at}'\nweight = {}\nrpm = 1000000000\ntpm = 1000000000000\nconcurrency_max = 1000\n\
             key_hashes = ['{hash}']\n",
            at + 1
        );
    }
    fs::write(&file, config)?;
    let mut command = Command::new(&place.evenkeel);
    command.arg("serve").arg("--config").arg(&file).arg("--data-dir").arg(place.folder.join("data"));
    let process = Process::start(command.current_dir(&place.folder), &log(&place.folder))?;
    let open = target(vec![address]);
    let keys = if keys.is_empty() { open.keys } else { keys.iter().map(|key| key.key.clone()).collect() };
    Ok(StartedProcess { target: Target { addresses: open.addresses, keys }, process: Some(process) })
}
