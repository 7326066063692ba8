//! `/healthz`: the figures by which nodes compare each other, under the names of the load-balancing specification; and
//! `/api/sql`: the configuration beside them, for administrators.

mod peers;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::score::{NodeStats, Status};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::SqlApi;
use crate::database::Database;

/// Time that `/healthz` waits for a connection to find the identity of a database.
const IDENTITY_WAIT_MAX: Duration = Duration::from_millis(100);

/// Serves `/healthz`: 200 while the default datasource serves, else 503.
pub(crate) async fn healthz(api: Arc<SqlApi>) -> Result<Response, ApiError> {
    let mut datasources = Vec::new();
    let mut node_status = None;
    for database in &api.databases {
        let stats = api.node_stats(database);
        node_status.get_or_insert(stats.status);
        datasources.push(json!({
            "name": database.options.name,
            "databaseId": identity(database).await,
            "stats": to_json(&stats),
        }));
    }
    let status = node_status.unwrap_or_default();
    let code = match status {
        Status::Serving => StatusCode::OK,
        Status::Draining | Status::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({"node": api.node, "status": status_name(status), "datasources": datasources});
    Ok(json_response(code, full(body.to_string())))
}

/// Returns the identity of a database, if it is known or can be found at once: every connection may be in use.
async fn identity(database: &Database) -> Option<&str> {
    tokio::time::timeout(IDENTITY_WAIT_MAX, database.id()).await.ok()?.ok()
}

/// Serves `/api/sql`.
pub(crate) async fn describe(api: Arc<SqlApi>) -> Result<Response, ApiError> {
    let datasources: Vec<Value> = api
        .databases
        .iter()
        .map(|database| {
            let options = &database.options;
            json!({
                "name": options.name,
                "engine": database.source.engine().as_str(),
                "role": options.role,
                "stats": to_json(&api.node_stats(database)),
                "peers": peers::describe(&api, database),
            })
        })
        .collect();
    let body = json!({
        "node": api.node,
        "draining": api.is_draining(),
        "openTransactions": api.transactions.len(),
        "datasources": datasources,
        "cluster": peers::describe_cluster(&api),
    });
    Ok(json_response(StatusCode::OK, full(body.to_string())))
}

pub(crate) fn status_name(status: Status) -> &'static str {
    match status {
        Status::Serving => "SERVING",
        Status::Draining => "DRAINING",
        Status::Down => "DOWN",
    }
}

fn to_json(stats: &NodeStats) -> Value {
    json!({
        "runningHttpSession": stats.running_http_session,
        "runningSql": stats.running_sql,
        "runningTx": stats.running_tx,
        "maxHttpSessions": stats.max_http_sessions,
        "maxOpenConns": stats.max_open_conns,
        "maxTransactionConns": stats.max_transaction_conns,
        "openConns": stats.open_conns,
        "idleConns": stats.idle_conns,
        "waitConnCount": stats.wait_conn_count,
        "p95LatencyMs": stats.p95_latency_ms,
        "latencySamples": stats.latency_samples,
        "errorRate1m": stats.error_rate_1m,
        "timeouts1m": stats.timeouts_1m,
        "uptimeSec": stats.uptime_sec,
        "status": status_name(stats.status),
    })
}
