//! Opens the datasources and the SQL API.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use evenkeel_cluster::Cluster;
use evenkeel_pipeline::PipelineOptions;
use evenkeel_postgres::{ConnectConfig, PoolConfig};
use evenkeel_server::tenant::Authenticator;
use evenkeel_sql::datasource::Datasource;
use evenkeel_sql::datasource::postgres::PostgresDatasource;
use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use evenkeel_sql::{DatasourceOptions, SqlApi, SqlOptions};
use evenkeel_telemetry::{Observer, Registry};

use super::cluster::host_name;
use super::{StartError, random_seed};
use crate::config::{Config, DatabaseAddress, DatasourceConfig};
use crate::data_dir::DataDir;
use crate::sqs_key::{derive_key, master_key};

/// Purpose of the key that signs transaction ids; another purpose would invalidate all ids.
const SIGNING_KEY: &str = "evenkeel sql signing key";

/// The SQL API, and its PostgreSQL datasources by name.
pub(super) struct OpenedSql {
    pub(super) api: Arc<SqlApi>,
    pub(super) postgres: Vec<(String, Arc<PostgresDatasource>)>,
}

/// Opens every datasource and starts the API.
///
/// A SQLite file that cannot be opened is an error. A PostgreSQL server that cannot be reached is not: requests fail
/// until it can be.
pub(super) async fn open(
    config: &Config,
    data_dir: &DataDir,
    auth: Arc<Authenticator>,
    cluster: Option<Arc<Cluster>>,
    registry: &Registry,
) -> Result<OpenedSql, StartError> {
    let telemetry = &config.telemetry;
    let observer = Observer::new(registry, "sql", telemetry.metric_limits, telemetry.request_log)?;
    let mut sources: Vec<Arc<dyn Datasource>> = Vec::new();
    let mut postgres = Vec::new();
    for DatasourceConfig { options, address, .. } in &config.sql.datasources {
        match address {
            DatabaseAddress::Sqlite(path) => {
                sources.push(open_sqlite(options, &data_dir.path().join(path)).await?);
            }
            DatabaseAddress::Postgres(connect) => {
                let connections_max = options.max_open_conns as usize;
                let connect = ConnectConfig::clone(connect);
                let source =
                    PostgresDatasource::new(PoolConfig { connections_max, ..PoolConfig::new(connect) });
                postgres.push((options.name.clone(), source.clone()));
                sources.push(source);
            }
        }
    }
    let options = SqlOptions {
        datasources: config.sql.datasources.iter().map(|datasource| datasource.options.clone()).collect(),
        limits: config.sql.limits,
        pipeline: PipelineOptions { seed: random_seed(), ..config.sql.pipeline.clone() },
        score: config.sql.score,
        redirect: config.sql.redirect,
        node: host_name(),
        signing_key: derive_key(data_dir, SIGNING_KEY)?,
        master_key: master_key(data_dir)?,
    };
    let tenants = auth.tenants().all();
    let api = SqlApi::new(options, sources, auth, cluster, Arc::new(observer), registry)?;
    api.set_tenants(&tenants)?;
    Ok(OpenedSql { api, postgres })
}

async fn open_sqlite(options: &DatasourceOptions, path: &Path) -> Result<Arc<dyn Datasource>, StartError> {
    let sqlite = SqliteOptions {
        // One connection writes.
        readers_max: options.max_open_conns.saturating_sub(1).max(1),
        ..SqliteOptions::new(path)
    };
    let opened = tokio::task::spawn_blocking(|| SqliteDatasource::open(sqlite)).await;
    let name = options.name.clone();
    match opened {
        Ok(Ok(source)) => Ok(source),
        Ok(Err(error)) => Err(StartError::Datasource { name, reason: with_sources(&error) }),
        Err(error) => Err(StartError::Datasource { name, reason: error.to_string() }),
    }
}

/// Warns if the server cannot be reached, or if its user is a superuser.
pub(super) async fn check_postgres(datasource: String, source: Arc<PostgresDatasource>) {
    match source.is_superuser().await {
        Ok(false) => {}
        Ok(true) => {
            tracing::warn!(target: "evenkeel", datasource, "the user of this datasource is a superuser: neither permissions nor row-level security restrict it; use another user");
        }
        Err(error) => {
            tracing::warn!(target: "evenkeel", datasource, %error, "PostgreSQL cannot be reached; requests to this datasource fail until it can");
        }
    }
}

/// Returns the message of an error, followed by those of its causes that it does not contain.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text
}
