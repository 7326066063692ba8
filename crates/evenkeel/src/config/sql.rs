//! `[sql]`: datasources, the queue for their connections, and limits of statements and transactions.

mod score;
mod tenant;
mod url;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_pipeline::{PipelineOptions, RedirectMode};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::score::ScoreConfig;
use evenkeel_postgres::ConnectConfig;
use evenkeel_sql::{DatasourceOptions, SqlLimits};

use super::llm::check_name;
use super::load::{backpressure, read_wait_queue};
use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::value::{Float, Integer};

use tenant::check_role;
pub(super) use tenant::{SessionSettings, read_tenant_sql};
use url::DatasourceUrl;

/// Maximum number of datasources.
const DATASOURCES_MAX: usize = 64;
/// The datasource of a configuration that names none.
const DEFAULT_NAME: &str = "main";
const DEFAULT_URL: &str = "sqlite:sql.db";
/// Most requests on SQL routes while there is room.
const HTTP_SESSIONS_DEFAULT: i64 = 1_000;

/// `[sql]`.
#[derive(Clone, Debug)]
pub struct SqlConfig {
    /// At least one; the first is the default.
    pub datasources: Vec<DatasourceConfig>,
    pub limits: SqlLimits,
    /// Options of the scheduler.
    pub pipeline: PipelineOptions,
    pub score: ScoreConfig,
    pub redirect: RedirectMode,
}

/// One of `[[sql.datasources]]`.
#[derive(Clone, Debug)]
pub struct DatasourceConfig {
    pub options: DatasourceOptions,
    pub address: DatabaseAddress,
    url: DatasourceUrl,
}

/// Location of a database, parsed from a URL.
#[derive(Clone, Debug)]
pub enum DatabaseAddress {
    /// Path of the file; a relative one is relative to the data directory.
    Sqlite(PathBuf),
    Postgres(Box<ConnectConfig>),
}

/// The configured datasources as far as tenants refer to them, those with errors included.
#[derive(Debug, Default)]
pub(super) struct KnownDatasources {
    names: Vec<String>,
    sqlite: Vec<String>,
}

impl SqlConfig {
    /// Reports whether both configurations have the same datasources with the same settings.
    pub fn has_same_datasources(&self, other: &Self) -> bool {
        let pairs = || self.datasources.iter().zip(&other.datasources);
        self.datasources.len() == other.datasources.len() && pairs().all(|(one, other)| one.is_same(other))
    }
}

impl DatasourceConfig {
    fn is_same(&self, other: &Self) -> bool {
        let numbers = |options: &DatasourceOptions| {
            [options.max_open_conns, options.max_transaction_conns, options.max_http_sessions]
        };
        self.options.name == other.options.name
            && self.options.role == other.options.role
            && numbers(&self.options) == numbers(&other.options)
            && self.url.is_same(&other.url)
    }
}

pub(super) fn read(section: &mut Section<'_>) -> (SqlConfig, KnownDatasources) {
    let default = WaitQueueConfig {
        max_waiting: 1_000,
        default_timeout: Duration::from_secs(30),
        warning_threshold: 0.9,
        overload_threshold: 1.0,
    };
    let wait_queue = read_wait_queue(section, "wait_timeout_secs", &default);
    let load = LoadManagerConfig {
        wait_queue,
        backpressure: backpressure(&wait_queue, BackpressureConfig::default().max_delay),
        ..LoadManagerConfig::default()
    };
    let limits = read_limits(section);
    let modes = [("redirect", RedirectMode::ByClient), ("forward", RedirectMode::Forward)];
    let redirect = section.one_of("redirect", "redirect", &modes);
    let score = score::read(&mut section.section("score"));
    let (datasources, known) = read_datasources(section);
    let pipeline = PipelineOptions { load, ..PipelineOptions::default() };
    (SqlConfig { datasources, limits, pipeline, score, redirect }, known)
}

fn read_limits(section: &mut Section<'_>) -> SqlLimits {
    let default = SqlLimits::default();
    let timeout_max = read_millis(section, "timeout_max_ms", default.timeout_max, 1..=86_400_000);
    // A default above a maximum that the user lowered follows it.
    let timeout_default = default.timeout_default.min(timeout_max);
    let highest = i64::try_from(timeout_max.as_millis()).unwrap_or(i64::MAX);
    let timeout_default = read_millis(section, "timeout_ms", timeout_default, 1..=highest);
    let contended = default.transaction_contended_idle_max;
    let contended = read_millis(section, "transaction_contended_idle_ms", contended, 0..=3_600_000);
    let mut secs = |key, default: Duration, max: f64| {
        section.within(key, Float(default.as_secs_f64()), Float(0.1)..=Float(max)).as_secs()
    };
    let transaction_idle_max = secs("transaction_idle_secs", default.transaction_idle_max, 3_600.0);
    let transaction_time_max = secs("transaction_secs", default.transaction_time_max, 86_400.0);
    let mut count = |key, default: usize, range: RangeInclusive<i64>| {
        let range = Integer(*range.start())..=Integer(*range.end());
        section.within(key, Integer(default as i64), range).as_usize()
    };
    SqlLimits {
        timeout_default,
        timeout_max,
        result_bytes_max: count("result_bytes_max", default.result_bytes_max, 1_024..=1 << 30),
        statements_max: count("statements_max", default.statements_max, 1..=10_000),
        transaction_idle_max,
        transaction_contended_idle_max: contended,
        transaction_time_max,
        idempotency_entries_max: count(
            "idempotency_entries_max",
            default.idempotency_entries_max,
            1..=10_000_000,
        ),
        idempotency_bytes_max: count("idempotency_bytes_max", default.idempotency_bytes_max, 1_024..=1 << 40),
        ..default
    }
}

fn read_millis(
    section: &mut Section<'_>,
    key: &'static str,
    default: Duration,
    range: RangeInclusive<i64>,
) -> Duration {
    let default = Integer(i64::try_from(default.as_millis()).unwrap_or(i64::MAX));
    let millis = section.within(key, default, Integer(*range.start())..=Integer(*range.end()));
    Duration::from_millis(millis.as_u64())
}

fn read_datasources(section: &mut Section<'_>) -> (Vec<DatasourceConfig>, KnownDatasources) {
    let mut tables = section.sections("datasources");
    if tables.is_empty() {
        tables.push((ValueSource::Default, section.default_entry("datasources")));
    }
    if let Some((origin, _)) = tables.get(DATASOURCES_MAX) {
        section.error(origin, format!("more than {DATASOURCES_MAX} datasources"));
    }
    let mut datasources: Vec<(ValueSource, DatasourceConfig)> = Vec::new();
    let mut known = KnownDatasources::default();
    for (origin, mut table) in tables {
        let name = read_name(&mut table, &origin);
        let datasource = read_datasource(&mut table, &origin, name.as_deref());
        known.names.extend(name);
        let Some(datasource) = datasource else { continue };
        if let DatabaseAddress::Sqlite(_) = datasource.address {
            known.sqlite.push(datasource.options.name.clone());
        }
        if let Some(message) = conflict(&datasources, &datasource) {
            table.error(&origin, message);
        }
        datasources.push((origin, datasource));
    }
    (datasources.into_iter().map(|(_, datasource)| datasource).collect(), known)
}

/// Finds an earlier datasource with the same name or the same SQLite file.
fn conflict(earlier: &[(ValueSource, DatasourceConfig)], datasource: &DatasourceConfig) -> Option<String> {
    let name = &datasource.options.name;
    if let Some((first, _)) = earlier.iter().find(|(_, other)| other.options.name == *name) {
        return Some(format!("two datasources are named {name:?}; the first is at {first}"));
    }
    let is_same_file = |other: &DatabaseAddress| match (other, &datasource.address) {
        (DatabaseAddress::Sqlite(other), DatabaseAddress::Sqlite(path)) => other == path,
        _ => false,
    };
    let (first, _) = earlier.iter().find(|(_, other)| is_same_file(&other.address))?;
    Some(format!("two datasources use the same SQLite file, which has one writer; the first is at {first}"))
}

fn read_name(table: &mut Section<'_>, origin: &ValueSource) -> Option<String> {
    let name = match origin {
        ValueSource::Default => Some(table.read("name", DEFAULT_NAME.to_owned())),
        ValueSource::File { .. } | ValueSource::Env(_) | ValueSource::Flag(_) => table.optional("name"),
    };
    let Some(SourcedValue { value, origin }) = name else {
        table.error(origin, "a datasource needs a name");
        return None;
    };
    if let Err(message) = check_name(&value) {
        table.error(&origin, message);
    }
    Some(value)
}

/// Reads the other settings of a datasource; `None`, with an error, if it has no name or no valid URL.
fn read_datasource(
    table: &mut Section<'_>,
    origin: &ValueSource,
    name: Option<&str>,
) -> Option<DatasourceConfig> {
    let url = match origin {
        ValueSource::Default => Some(table.read("url", DatasourceUrl::new(DEFAULT_URL))),
        ValueSource::File { .. } | ValueSource::Env(_) | ValueSource::Flag(_) => table.optional("url"),
    };
    let address = match &url {
        None => {
            table.error(origin, "a datasource needs a url");
            None
        }
        Some(url) => url.value.parse().map_err(|message| table.error(&url.origin, message)).ok(),
    };
    let max_open_conns = read_open_conns(table, address.as_ref());
    let max_transaction_conns = read_transaction_conns(table, max_open_conns);
    let sessions = Integer(HTTP_SESSIONS_DEFAULT);
    let max_http_sessions = table.within("max_http_sessions", sessions, Integer(1)..=Integer(1_000_000));
    let role = read_role(table, address.as_ref());
    let options = DatasourceOptions {
        name: name?.to_owned(),
        max_open_conns,
        max_transaction_conns,
        max_http_sessions: max_http_sessions.as_u32(),
        role,
    };
    Some(DatasourceConfig { options, address: address?, url: url?.value })
}

fn read_open_conns(table: &mut Section<'_>, address: Option<&DatabaseAddress>) -> u32 {
    let key = "max_open_conns";
    match address {
        Some(DatabaseAddress::Sqlite(_)) => {
            let setting = table.read(key, Integer(9));
            if !(2..=1_025).contains(&setting.value.0) {
                let message = "max_open_conns must be from 2 to 1025: SQLite has one connection that writes, and others that read";
                table.error(&setting.origin, message);
            }
            setting.value.as_u32()
        }
        Some(DatabaseAddress::Postgres(_)) | None => {
            table.within(key, Integer(20), Integer(1)..=Integer(10_000)).as_u32()
        }
    }
}

fn read_transaction_conns(table: &mut Section<'_>, open: u32) -> u32 {
    let highest = open.saturating_sub(1).max(1);
    let default = (u64::from(open) * 4 / 5).clamp(1, u64::from(highest));
    let setting = table.read("max_transaction_conns", Integer(default as i64));
    if !(1..=i64::from(highest)).contains(&setting.value.0) {
        let message = format!(
            "max_transaction_conns must be from 1 to {highest}: below max_open_conns ({open}), so that statements \
             outside of transactions find a connection"
        );
        table.error(&setting.origin, message);
    }
    setting.value.as_u32()
}

fn read_role(table: &mut Section<'_>, address: Option<&DatabaseAddress>) -> Option<String> {
    let role = table.optional::<String>("role")?;
    if let Some(DatabaseAddress::Sqlite(_)) = address {
        table.error(&role.origin, "role is for PostgreSQL; SQLite has no roles");
    } else if let Err(message) = check_role(&role.value) {
        table.error(&role.origin, message);
    }
    Some(role.value)
}

#[cfg(test)]
mod tests;
