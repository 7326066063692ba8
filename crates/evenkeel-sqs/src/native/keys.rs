//! Keys: what each holds, and what is set for one.

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

/// What may be set for a key.
const FIELDS: [&str; 4] = ["weight", "concurrency_max", "rate_per_second", "burst"];

pub(super) async fn keys(call: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    let [skip, max] = query(call, ["skip", "max"])?;
    let skip = number("skip", skip.as_deref(), 0, 0..=u64::from(u32::MAX))?;
    let max = number("max", max.as_deref(), 100, 1..=PAGE_MAX)?;
    let found = queue.key_stats(skip as usize, max as usize).await.map_err(queue_error)?;
    let now = queue.now();
    let keys: Vec<Value> = found.iter().map(|key| key_shown(key, now.0)).collect();
    json_response(StatusCode::OK, &json!({"keys": keys}))
}

fn key_shown(key: &KeyStats, now_ms: u64) -> Value {
    let oldest = key.oldest_sent_at.map(|sent| now_ms.saturating_sub(sent.0));
    let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let (p50, p99) = key.waits.map(|waits| (ms(waits.p50), ms(waits.p99))).unzip();
    let mut shown = rule_shown(&key.name, &key.rule);
    let stats = json!({
        "weight": key.weight.as_f64(), "pending": key.pending, "in_flight": key.in_flight,
        "delayed": key.delayed, "oldest_age_ms": oldest, "debt": key.debt.0, "delivered": key.delivered,
        "redelivered": key.redelivered, "wait_ms_p50": p50, "wait_ms_p99": p99,
        "throttled": key.held.map(held_shown),
    });
    if let (Some(shown), Value::Object(stats)) = (shown.as_object_mut(), stats) {
        shown.extend(stats);
    }
    shown
}

fn held_shown(held: Throttle) -> Value {
    let who = match held.who {
        ThrottleScope::Key => "key",
        ThrottleScope::Tenant => "tenant",
    };
    let by = match held.by {
        ThrottleReason::Concurrency { .. } => "concurrency",
        ThrottleReason::Order => "order",
        ThrottleReason::Rate { .. } => "rate",
    };
    json!({"reason": by, "scope": who, "until_ms": held.by.until().map(|until| until.0)})
}

impl Native {
    /// Sets what a key is bound to; what is not said stays, and `null` takes it back.
    pub(super) async fn rule(
        &self,
        call: &mut ServerRequest,
        queue: &Queue,
        key: &str,
    ) -> Result<Response, ApiError> {
        check_admin(call)?;
        let wishes: Map<String, Value> = read(call).await?;
        if let Some(unknown) = wishes.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(ApiError::invalid(format!(
                "unknown field {unknown:?}; there is {}",
                FIELDS.join(", ")
            )));
        }
        if wishes.is_empty() {
            return Err(ApiError::invalid(format!("nothing is to be set; there is {}", FIELDS.join(", "))));
        }
        let ruling = queue.lock_rule(key).await.map_err(queue_error)?;
        let rule = patched_rule(ruling.rule(), &wishes)?;
        ruling.set(rule).await.map_err(queue_error)?;
        json_response(StatusCode::OK, &rule_shown(key, &rule))
    }
}

fn patched_rule(before: KeyRule, wishes: &Map<String, Value>) -> Result<KeyRule, ApiError> {
    let [weight, concurrency, rate, burst] = FIELDS.map(|name| (name, wishes.get(name)));
    let weight = match patch_field::<f64>(weight)? {
        None => before.weight,
        Some(weight) => weight.map(Weight::new).transpose().map_err(unfit)?,
    };
    let concurrency_max = patch_field::<NonZeroU32>(concurrency)?.unwrap_or(before.concurrency_max);
    let per_second = patch_field::<f64>(rate)?.unwrap_or(before.rate.map(Rate::per_second));
    // Where no rate was, there is no burst to keep.
    let burst_wish = patch_field::<NonZeroU32>(burst)?;
    let burst = burst_wish.unwrap_or(before.rate.map(Rate::burst));
    if per_second.is_none() && burst_wish.flatten().is_some() {
        return Err(ApiError::invalid("a burst is of a rate, and there is no rate_per_second"));
    }
    let rate = per_second.map(|rate| Rate::new(rate, burst)).transpose().map_err(unfit)?;
    Ok(KeyRule { weight, concurrency_max, rate })
}

/// Reads a field: not said, taken back, or set.
fn patch_field<T: DeserializeOwned>(
    (name, value): (&str, Option<&Value>),
) -> Result<Option<Option<T>>, ApiError> {
    let read = value.map(|value| serde_json::from_value(value.clone())).transpose();
    read.map_err(|error| ApiError::invalid(format!("{name}: {error}")))
}

fn unfit(error: impl core::fmt::Display) -> ApiError {
    ApiError::invalid(error.to_string())
}

fn rule_shown(name: &str, rule: &KeyRule) -> Value {
    json!({
        "name": name, "weight": rule.weight.map(Weight::as_f64), "concurrency_max": rule.concurrency_max,
        "rate_per_second": rule.rate.map(Rate::per_second), "burst": rule.rate.map(Rate::burst),
    })
}
