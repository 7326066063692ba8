//! `evenkeel serve` on PostgreSQL and on SQLite.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use bench_support::{Process, free_port};

use super::{LoadTarget, POOL_SIZE, Preparation, SqlSetup, StartedMiddle, log};
use crate::http_load::HttpTarget;
use crate::query_api::QueryApi;

const TENANTS: usize = 4;

pub(super) fn open(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start(setup, &postgres(setup), &[], QueryApi::Postgres)
}

pub(super) fn ndjson(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start(setup, &postgres(setup), &[], QueryApi::PostgresLines)
}

pub(super) fn tenants(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    let keys = (0..TENANTS).map(|_| create_key(setup)).collect::<io::Result<Vec<_>>>()?;
    start(setup, &postgres(setup), &keys, QueryApi::Postgres)
}

pub(super) fn sqlite(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start_sqlite(setup, QueryApi::Sqlite)
}

pub(super) fn hrana(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start_sqlite(setup, QueryApi::Hrana)
}

fn start_sqlite(setup: &SqlSetup, api: QueryApi) -> io::Result<StartedMiddle> {
    // One connection is the writer's.
    let datasource = datasource("sqlite:bench.db", POOL_SIZE + 1);
    let started = start(setup, &datasource, &[], api)?;
    Ok(StartedMiddle { preparation: Preparation::FillByExecute, ..started })
}

fn postgres(setup: &SqlSetup) -> String {
    datasource(&setup.database_url, POOL_SIZE)
}

/// Returns the part of the configuration that describes the database.
pub(crate) fn datasource(url: &str, connections: usize) -> String {
    format!("\n[[sql.datasources]]\nname = 'bench'\nurl = '{url}'\nmax_open_conns = {connections}\n")
}

/// An API key and the hash that the configuration contains.
struct TenantKey {
    key: String,
    hash: String,
}

fn create_key(setup: &SqlSetup) -> io::Result<TenantKey> {
    let output = Command::new(&setup.evenkeel).args(["tenant", "key"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(key), Some(hash)) => Ok(TenantKey { key: key.to_owned(), hash: hash.to_owned() }),
        _ => Err(io::Error::other("`evenkeel tenant key` printed no key")),
    }
}

fn start(setup: &SqlSetup, datasource: &str, keys: &[TenantKey], api: QueryApi) -> io::Result<StartedMiddle> {
    let address = free_port()?;
    let mut config = format!("[server]\nlisten = '{address}'\n{datasource}");
    for (index, TenantKey { hash, .. }) in keys.iter().enumerate() {
        let weight = index + 1;
        config += &format!("\n[[tenants]]\nname = 't{index}'\nweight = {weight}\nkey_hashes = ['{hash}']\n");
    }
    let process = spawn(&setup.evenkeel, &setup.directory, &config)?;
    let keys = keys.iter().map(|key| key.key.clone()).collect();
    Ok(StartedMiddle {
        load: LoadTarget::Http(HttpTarget { address, keys, api }),
        process: Some(process),
        preparation: Preparation::None,
    })
}

/// Starts a gateway whose files are in `directory`.
pub(crate) fn spawn(evenkeel: &Path, directory: &Path, config: &str) -> io::Result<Process> {
    if !evenkeel.is_file() {
        let path = evenkeel.display();
        let message = format!("{path} is missing; build it with `cargo build --release -p evenkeel`");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let file = directory.join("evenkeel.toml");
    fs::write(&file, config)?;
    let mut command = Command::new(evenkeel);
    command.arg("serve").arg("--config").arg(&file).arg("--data-dir").arg(directory.join("data"));
    Process::start(command.current_dir(directory), &log(directory))
}
