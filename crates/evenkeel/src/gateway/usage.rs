//! Usage of the tenants: stored every second, shown in statements, budgets and metrics.

use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::budget::{BudgetStatus, Budgets};
use evenkeel_server::calendar::Day;
use evenkeel_server::query::query;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, Caller};
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_telemetry::{Family, FloatGauge, Label, MetricDesc, RegisterError, Registry};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::Core;
use super::api::json_response;
use crate::config::budget_to_json;
use crate::statement;
use crate::usage_store::UsageStoreError;

const USAGE: &str = "/api/usage";
/// At most the usage of this time, and that of requests in flight, is lost in a crash.
const INTERVAL: Duration = Duration::from_secs(1);
const CSV: &str = "text/csv";

const BUDGET_LIMIT: MetricDesc = MetricDesc::new(
    "evenkeel_tenant_budget_limit",
    "budget of a tenant, in tokens or in units of the currency",
);
const BUDGET_USED: MetricDesc = MetricDesc::new(
    "evenkeel_tenant_budget_used",
    "usage of a tenant in the current period of a budget, in tokens or in units of the currency",
);
/// The four budgets.
const BUDGETS_MAX: usize = 4;

/// Gauges of the budgets; those of tenants beyond the limit share `other`, whose value means nothing.
pub(super) struct BudgetMetrics {
    limit: Family<FloatGauge, 2>,
    used: Family<FloatGauge, 2>,
    /// Tenants with series.
    shown: Mutex<Vec<String>>,
}

impl BudgetMetrics {
    pub(super) fn new(registry: &Registry, tenants_max: usize) -> Result<Self, RegisterError> {
        let tenant = Label { name: "tenant", values_max: tenants_max };
        let budget = Label { name: "budget", values_max: BUDGETS_MAX };
        Ok(Self {
            limit: registry.float_gauges(BUDGET_LIMIT, [tenant, budget])?,
            used: registry.float_gauges(BUDGET_USED, [tenant, budget])?,
            shown: Mutex::default(),
        })
    }

    /// Shows these tenants' budgets and no others.
    fn set(&self, tenants: Vec<(String, Vec<BudgetStatus>)>) {
        let mut shown = self.shown.lock();
        for name in shown.drain(..) {
            self.limit.forget(&[&name]);
            self.used.forget(&[&name]);
        }
        for (name, statuses) in tenants {
            for status in statuses {
                let labels = [name.as_str(), status.budget.name()];
                self.limit.with(labels).set(status.amount(status.limit));
                self.used.with(labels).set(status.amount(status.used));
            }
            shown.push(name);
        }
    }
}

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes) -> Result<(), RouteError> {
    let core = core.clone();
    let usage = handler(move |call| own_usage(core.clone(), call));
    routes.add(Method::GET, USAGE, Access::Tenant, usage)
}

/// Handles `GET /api/usage`: the caller's own statement and budgets.
async fn own_usage(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let Caller::Tenant(tenant) = call.caller.clone() else { return Err(ApiError::Internal) };
    let name = tenant.settings.name.clone();
    let mut statement = read_statement(core.clone(), &call, name).await?;
    if !wants_csv(&call)? {
        statement["budgets"] = core.budgets_json(&tenant.settings.name, &tenant.settings.budgets);
    }
    respond(&call, &statement)
}

/// Handles `GET /api/tenants/{tenant}/statement`. A tenant that was removed has one while its usage is stored.
pub(super) async fn tenant_statement(
    core: Arc<Core>,
    call: ServerRequest,
    tenant: String,
) -> Result<Response, ApiError> {
    let is_known = core.auth.tenants().all().iter().any(|known| known.settings.name == tenant);
    let statement = read_statement(core, &call, tenant.clone()).await?;
    if !is_known && statement["rows"].as_array().is_none_or(Vec::is_empty) {
        return Err(ApiError::NotFound { what: format!("tenant {tenant:?}") });
    }
    respond(&call, &statement)
}

/// Reads the statement for the days in the query.
async fn read_statement(core: Arc<Core>, call: &ServerRequest, tenant: String) -> Result<Value, ApiError> {
    let [month, from, to, _] = parameters(call)?;
    let today = Day::of(UnixSeconds::now());
    let days = statement::days(month.as_deref(), from.as_deref(), to.as_deref(), today);
    let days = days.map_err(ApiError::invalid)?;
    let read = tokio::task::spawn_blocking(move || {
        let rows = core.usage.statement(core.llm.ledger(), &tenant, days)?;
        Ok(statement::to_json(&tenant, days, &rows))
    });
    let read: Result<Value, UsageStoreError> = read.await.map_err(|_| ApiError::Internal)?;
    read.map_err(|error| {
        tracing::error!(target: "evenkeel", %error, "could not read the usage of a tenant");
        ApiError::Internal
    })
}

fn parameters(call: &ServerRequest) -> Result<[Option<String>; 4], ApiError> {
    query(call, ["month", "from", "to", "format"])
}

/// Reports whether the client wants CSV: by the parameter `format`, or else by `Accept`.
fn wants_csv(call: &ServerRequest) -> Result<bool, ApiError> {
    let [_, _, _, format] = parameters(call)?;
    match format.as_deref() {
        Some("csv") => Ok(true),
        Some("json") => Ok(false),
        Some(_) => Err(ApiError::invalid("format must be csv or json")),
        None => {
            let accept = call.request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            Ok(accept.is_some_and(|accept| accept.contains(CSV)))
        }
    }
}

fn respond(call: &ServerRequest, statement: &Value) -> Result<Response, ApiError> {
    if !wants_csv(call)? {
        return Ok(json_response(StatusCode::OK, statement));
    }
    let mut response = Response::new(body::full(statement::to_csv(statement)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    Ok(response)
}

impl Core {
    /// Describes a tenant's budgets with their usage.
    pub(super) fn budgets_json(&self, tenant: &str, budgets: &Budgets) -> Value {
        let statuses = self.llm.ledger().budgets(tenant, budgets, UnixSeconds::now());
        let describe = |status: &BudgetStatus| {
            let amount = |amount| budget_to_json(status.budget, Some(amount));
            json!({
                "budget": status.budget.name(),
                "limit": amount(status.limit),
                "used": amount(status.used),
                "reserved": amount(status.reserved),
                "remaining": amount(status.remaining()),
                "resets_at": status.resets_at.to_rfc3339(),
            })
        };
        statuses.iter().map(describe).collect()
    }

    /// Adds the state of its budgets to each tenant of the list of all tenants.
    pub(super) fn add_budgets(&self, list: &mut Value) {
        let tenants = self.auth.tenants();
        for described in list["tenants"].as_array_mut().into_iter().flatten() {
            let tenant = described["name"].as_str().and_then(|name| tenants.get(name));
            let Some(settings) = tenant.map(|tenant| tenant.settings.clone()) else { continue };
            described["budgets"] = self.budgets_json(&settings.name, &settings.budgets);
        }
    }

    pub(super) fn update_budget_metrics(&self) {
        let now = UnixSeconds::now();
        let tenants = self.auth.tenants().all();
        let limited = tenants.iter().filter(|tenant| !tenant.settings.budgets.is_empty());
        let shown = limited.map(|tenant| {
            let settings = &tenant.settings;
            (settings.name.clone(), self.llm.ledger().budgets(&settings.name, &settings.budgets, now))
        });
        self.budget_metrics.set(shown.collect());
    }
}

/// Stores the usage until the gateway is dropped.
pub(super) async fn store_regularly(core: Weak<Core>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        match store(core).await {
            Ok(()) if is_failing => {
                is_failing = false;
                tracing::info!(target: "evenkeel", "the usage of tenants is stored again");
            }
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::error!(target: "evenkeel", %error, "could not store the usage of tenants, retrying every second; a crash would lose it");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Stores the usage on a thread that may block on disk writes.
pub(super) async fn store(core: Arc<Core>) -> Result<(), UsageStoreError> {
    let stored = tokio::task::spawn_blocking(move || core.usage.store(core.llm.ledger())).await;
    // The task does not panic; if it did, the next one would store the usage.
    stored.unwrap_or(Ok(()))
}
