//! One client of a tenant: asks, reads to the end, waits when it is told to, asks again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_upstream::{Origin, Upstream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{DemoStats, MODEL, Tenant, TenantProfile};

const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Whoever is told to come back later comes back by then, so that a short demo shows it.
const RETRY_MAX: Duration = Duration::from_secs(2);

pub(super) struct Client {
    upstream: Upstream,
    origin: Origin,
    authorization: HeaderValue,
    appetite: &'static TenantProfile,
    ledger: Arc<DemoStats>,
    number: u32,
}

impl Client {
    pub(super) fn new(
        upstream: &Upstream,
        origin: &Origin,
        tenant: &Tenant,
        number: u32,
    ) -> Result<Self, http::header::InvalidHeaderValue> {
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", tenant.key))?;
        authorization.set_sensitive(true);
        Ok(Self {
            upstream: upstream.clone(),
            origin: origin.clone(),
            authorization,
            appetite: tenant.appetite,
            ledger: tenant.ledger.clone(),
            number,
        })
    }

    /// Asks until it is dropped.
    pub(super) async fn ask_on(self) {
        for turn in 0_u64.. {
            self.ledger.asked();
            match self.ask(turn).await {
                DemoOutcome::Served { cost, wait } => {
                    self.ledger.served(cost, wait);
                    sleep(self.appetite.thinks).await;
                }
                DemoOutcome::TurnedAway { retry_after } => {
                    self.ledger.turned_away();
                    sleep(retry_after.min(RETRY_MAX)).await;
                }
                DemoOutcome::Failed => {
                    self.ledger.failed();
                    sleep(RETRY_MAX).await;
                }
            }
        }
    }

    async fn ask(&self, turn: u64) -> DemoOutcome {
        let question = format!("question {turn} of client {} of {}", self.number, self.appetite.name);
        let body = json!({
            "model": MODEL,
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": self.appetite.answer_tokens,
            "ignore_eos": true,
            "messages": [{"role": "user", "content": question}],
        });
        let request = Request::post("/v1/chat/completions")
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body.to_string()));
        let Ok(request) = request else { return DemoOutcome::Failed };
        let Ok(response) = self.upstream.send(&self.origin, &request).await else {
            return DemoOutcome::Failed;
        };
        match response.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => {
                return DemoOutcome::TurnedAway {
                    retry_after: Duration::from_secs(number(&response, RETRY_AFTER.as_str())),
                };
            }
            _ => return DemoOutcome::Failed,
        }
        let wait = Duration::from_millis(number(&response, "x-queue-wait-ms"));
        let Ok(all) = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await else {
            return DemoOutcome::Failed;
        };
        match cost_of(&all.to_bytes()) {
            Some(cost) => DemoOutcome::Served { cost, wait },
            None => DemoOutcome::Failed,
        }
    }
}

enum DemoOutcome {
    Served { cost: u64, wait: Duration },
    TurnedAway { retry_after: Duration },
    Failed,
}

fn number<B>(response: &Response<B>, header: &str) -> u64 {
    let text = response.headers().get(header).and_then(|value| value.to_str().ok());
    // Fractions of a millisecond are not shown anyway.
    text.and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0)
}

/// What a whole stream cost; `None` if it ended early.
fn cost_of(stream: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(stream).ok()?;
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut last = events.rev();
    if last.next()? != "[DONE]" {
        return None;
    }
    let usage = serde_json::from_str::<Value>(last.next()?).ok()?;
    let tokens = |name: &str| usage["usage"][name].as_u64();
    Some(tokens("prompt_tokens")? + 2 * tokens("completion_tokens")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_costs_its_tokens_once_in_and_twice_out_unless_it_ends_early() {
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
        assert_eq!(cost_of(format!("data: {{}}\n\n{usage}\n\ndata: [DONE]\n\n").as_bytes()), Some(17));
        assert_eq!(cost_of(format!("{usage}\n\n").as_bytes()), None);
        assert_eq!(cost_of(b"data: {\"error\":{}}\n\n"), None);
    }
}
