//! `evenkeel serve` on PostgreSQL and on SQLite.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use bench_support::{Process, RunError};

use super::{LoadTarget, POOL_SIZE, Preparation, SqlSetup, StartedMiddle, free_port, log};
use crate::database::ACCOUNTS;
use crate::http_load::{self, HttpTarget, LookupSql, ResultForm};

const TENANTS: usize = 4;
const FILL_TIMEOUT_MS: u32 = 120_000;

pub(super) fn open(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start(setup, &postgres(setup), &[], LookupSql::Postgres, ResultForm::Object)
}

pub(super) fn ndjson(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    start(setup, &postgres(setup), &[], LookupSql::Postgres, ResultForm::Lines)
}

pub(super) fn tenants(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    let keys = (0..TENANTS).map(|_| create_key(setup)).collect::<io::Result<Vec<_>>>()?;
    start(setup, &postgres(setup), &keys, LookupSql::Postgres, ResultForm::Object)
}

pub(super) fn sqlite(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    // One connection is the writer's.
    let datasource = datasource("sqlite:bench.db", POOL_SIZE + 1);
    let started = start(setup, &datasource, &[], LookupSql::Sqlite, ResultForm::Object)?;
    Ok(StartedMiddle { preparation: Preparation::FillSqlite, ..started })
}

/// Creates the table of accounts, with the contents that pgbench gives it.
pub(super) async fn fill_sqlite(address: SocketAddr) -> Result<(), RunError> {
    for sql in [
        "create table pgbench_accounts (aid integer primary key, bid integer, abalance integer, filler text)"
            .to_owned(),
        format!(
            "with recursive accounts (aid) as (select 1 union all select aid + 1 from accounts where aid < {ACCOUNTS}) \
             insert into pgbench_accounts select aid, (aid - 1) / 100000 + 1, 0, printf('%84s', '') from accounts"
        ),
    ] {
        let body = format!(r#"{{"sql":"{sql}","timeoutMs":{FILL_TIMEOUT_MS}}}"#);
        http_load::post(address, "/execute", &body).await?;
    }
    Ok(())
}

fn postgres(setup: &SqlSetup) -> String {
    datasource(&setup.database_url, POOL_SIZE)
}

fn datasource(url: &str, connections: usize) -> String {
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

fn start(
    setup: &SqlSetup,
    datasource: &str,
    keys: &[TenantKey],
    lookup: LookupSql,
    form: ResultForm,
) -> io::Result<StartedMiddle> {
    if !setup.evenkeel.is_file() {
        let path = setup.evenkeel.display();
        let message = format!("{path} is missing; build it with `cargo build --release -p evenkeel`");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let address = free_port()?;
    let mut config = format!("[server]\nlisten = '{address}'\n{datasource}");
    for (index, TenantKey { hash, .. }) in keys.iter().enumerate() {
        let weight = index + 1;
        config += &format!("\n[[tenants]]\nname = 't{index}'\nweight = {weight}\nkey_hashes = ['{hash}']\n");
    }
    let file = setup.directory.join("evenkeel.toml");
    fs::write(&file, config)?;
    let mut command = Command::new(&setup.evenkeel);
    command.arg("serve").arg("--config").arg(&file).arg("--data-dir").arg(setup.directory.join("data"));
    let process = Process::start(command.current_dir(&setup.directory), &log(&setup.directory))?;
    let keys = keys.iter().map(|key| key.key.clone()).collect();
    Ok(StartedMiddle {
        load: LoadTarget::Http(HttpTarget { address, keys, lookup, form }),
        process: Some(process),
        preparation: Preparation::None,
    })
}
