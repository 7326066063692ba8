//! Endpoints of fairness keys: statistics, weights and limits.

use core::num::NonZeroU32;
use core::time::Duration;

use evenkeel_policy::weight::Weight;
use evenkeel_queue::queue_state::{KeyStats, Throttle, ThrottleReason, ThrottleScope};
use evenkeel_queue::rule::Rate;
use evenkeel_queue::{KeyRule, Queue};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::admin::PAGE_MAX;
use super::json::queue_error;
use super::{Native, check_admin, json_response, number, query, read};

/// Settable fields of a key.
const FIELDS: [&str; 4] = ["weight", "concurrency_max", "rate_per_second", "burst"];

pub(super) async fn keys(request: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    let [skip, max] = query(request, ["skip", "max"])?;
    let skip = number("skip", skip.as_deref(), 0, 0..=u64::from(u32::MAX))?;
    let max = number("max", max.as_deref(), 100, 1..=PAGE_MAX)?;
    let found = queue.key_stats(skip as usize, max as usize).await.map_err(queue_error)?;
    let now = queue.now();
    let keys: Vec<Value> = found.iter().map(|key| key_json(key, now.0)).collect();
    json_response(StatusCode::OK, &json!({"keys": keys}))
}

fn key_json(key: &KeyStats, now_ms: u64) -> Value {
    let oldest = key.oldest_sent_at.map(|sent| now_ms.saturating_sub(sent.0));
    let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let (p50, p99) = key.waits.map(|waits| (ms(waits.p50), ms(waits.p99))).unzip();
    let mut json = rule_json(&key.name, &key.rule);
    let stats = json!({
        "weight": key.weight.as_f64(), "pending": key.pending, "in_flight": key.in_flight,
        "delayed": key.delayed, "oldest_age_ms": oldest, "debt": key.debt.0, "delivered": key.delivered,
        "redelivered": key.redelivered, "wait_ms_p50": p50, "wait_ms_p99": p99,
        "throttled": key.throttled.map(throttle_json),
    });
    if let (Some(json), Value::Object(stats)) = (json.as_object_mut(), stats) {
        json.extend(stats);
    }
    json
}

fn throttle_json(throttle: Throttle) -> Value {
    let scope = match throttle.scope {
        ThrottleScope::Key => "key",
        ThrottleScope::Tenant => "tenant",
    };
    let reason = match throttle.reason {
        ThrottleReason::Concurrency { .. } => "concurrency",
        ThrottleReason::Order => "order",
        ThrottleReason::Rate { .. } => "rate",
    };
    json!({"scope": scope, "reason": reason, "until_ms": throttle.reason.until().map(|until| until.0)})
}

impl Native {
    /// Sets the weight and limits of a key; omitted fields stay unchanged, and `null` removes one.
    pub(super) async fn set_rule(
        &self,
        request: &mut ServerRequest,
        queue: &Queue,
        key: &str,
    ) -> Result<Response, ApiError> {
        check_admin(request)?;
        let changes: Map<String, Value> = read(request).await?;
        if let Some(unknown) = changes.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(ApiError::invalid(format!(
                "unknown field {unknown:?}, expected {}",
                FIELDS.join(", ")
            )));
        }
        if changes.is_empty() {
            return Err(ApiError::invalid(format!("no field is set, expected {}", FIELDS.join(", "))));
        }
        let guard = queue.lock_rule(key).await.map_err(queue_error)?;
        let rule = patched_rule(guard.rule(), &changes)?;
        guard.set(rule).await.map_err(queue_error)?;
        json_response(StatusCode::OK, &rule_json(key, &rule))
    }
}

fn patched_rule(before: KeyRule, changes: &Map<String, Value>) -> Result<KeyRule, ApiError> {
    let [weight, concurrency_max, rate_per_second, burst] = FIELDS;
    let weight = match patch_field::<f64>(changes, weight)? {
        None => before.weight,
        Some(weight) => weight.map(Weight::new).transpose().map_err(invalid)?,
    };
    let concurrency_max =
        patch_field::<NonZeroU32>(changes, concurrency_max)?.unwrap_or(before.concurrency_max);
    let per_second =
        patch_field::<f64>(changes, rate_per_second)?.unwrap_or(before.rate.map(Rate::per_second));
    let new_burst = patch_field::<NonZeroU32>(changes, burst)?;
    // Without a previous rate there is no burst to keep.
    let burst = new_burst.unwrap_or(before.rate.map(Rate::burst));
    if per_second.is_none() && new_burst.flatten().is_some() {
        return Err(ApiError::invalid("a burst needs a rate_per_second"));
    }
    let rate = per_second.map(|rate| Rate::new(rate, burst)).transpose().map_err(invalid)?;
    Ok(KeyRule { weight, concurrency_max, rate })
}

/// Parses a field of a patch: `None` if it is absent, `Some(None)` if it is `null`.
fn patch_field<T: DeserializeOwned>(
    changes: &Map<String, Value>,
    name: &str,
) -> Result<Option<Option<T>>, ApiError> {
    let value = changes.get(name).map(|value| serde_json::from_value(value.clone())).transpose();
    value.map_err(|error| ApiError::invalid(format!("{name}: {error}")))
}

fn invalid(error: impl core::fmt::Display) -> ApiError {
    ApiError::invalid(error.to_string())
}

fn rule_json(name: &str, rule: &KeyRule) -> Value {
    json!({
        "name": name, "weight": rule.weight.map(Weight::as_f64), "concurrency_max": rule.concurrency_max,
        "rate_per_second": rule.rate.map(Rate::per_second), "burst": rule.rate.map(Rate::burst),
    })
}
