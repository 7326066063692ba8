//! One client of a tenant: sends a request, reads the whole response, backs off when rejected, repeats.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_upstream::{Origin, Upstream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, InvalidHeaderValue, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{DemoStats, MODEL, TenantProfile};

const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum backoff after a rejection; short, so that clients retry within a short demo.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

pub(super) struct Client {
    upstream: Upstream,
    origin: Origin,
    authorization: HeaderValue,
    profile: &'static TenantProfile,
    stats: Arc<DemoStats>,
    number: u32,
}

enum DemoOutcome {
    Served { tokens: u64, cost: u64 },
    Rejected { retry_after: Duration },
    Failed,
}

impl Client {
    pub(super) fn new(
        upstream: &Upstream,
        origin: &Origin,
        key: &str,
        profile: &'static TenantProfile,
        stats: &Arc<DemoStats>,
        number: u32,
    ) -> Result<Self, InvalidHeaderValue> {
        let mut authorization = HeaderValue::try_from(format!("Bearer {key}"))?;
        authorization.set_sensitive(true);
        let upstream = upstream.clone();
        let origin = origin.clone();
        Ok(Self { upstream, origin, authorization, profile, stats: stats.clone(), number })
    }

    /// Sends requests, one after the other, until the future is dropped.
    pub(super) async fn run(self) {
        for turn in 0_u64.. {
            self.stats.record_sent(self.number);
            match self.send(turn).await {
                DemoOutcome::Served { tokens, cost } => {
                    self.stats.record_served(tokens, cost);
                    sleep(self.profile.think_time).await;
                }
                DemoOutcome::Rejected { retry_after } => {
                    self.stats.record_rejected(self.number);
                    sleep(retry_after.min(BACKOFF_MAX)).await;
                }
                DemoOutcome::Failed => {
                    self.stats.record_failed(self.number);
                    sleep(BACKOFF_MAX).await;
                }
            }
        }
    }

    async fn send(&self, turn: u64) -> DemoOutcome {
        let prompt = format!("question {turn} of client {} of {}", self.number, self.profile.name);
        let body = json!({
            "model": MODEL,
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": self.profile.response_tokens,
            "ignore_eos": true,
            "messages": [{"role": "user", "content": prompt}],
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
                let seconds = header_number(&response, RETRY_AFTER.as_str());
                return DemoOutcome::Rejected { retry_after: Duration::from_secs(seconds) };
            }
            _ => return DemoOutcome::Failed,
        }
        let wait = Duration::from_millis(header_number(&response, "x-queue-wait-ms"));
        self.stats.record_started(self.number, wait);
        match Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await {
            Ok(body) => read_usage(&body.to_bytes()).unwrap_or(DemoOutcome::Failed),
            Err(_) => DemoOutcome::Failed,
        }
    }
}

/// Returns the integer part of a numeric header, or 0 if it is missing.
fn header_number<B>(response: &Response<B>, header: &str) -> u64 {
    let text = response.headers().get(header).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0)
}

/// Reads tokens and cost from the end of a stream; `None` if the stream was truncated.
fn read_usage(stream: &[u8]) -> Option<DemoOutcome> {
    let text = core::str::from_utf8(stream).ok()?;
    let mut events = text.lines().filter_map(|line| line.strip_prefix("data: ")).rev();
    if events.next()? != "[DONE]" {
        return None;
    }
    let usage = serde_json::from_str::<Value>(events.next()?).ok()?;
    let count = |name: &str| usage["usage"][name].as_u64();
    let tokens = count("completion_tokens")?;
    Some(DemoOutcome::Served { tokens, cost: count("prompt_tokens")? + 2 * tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_only_from_a_complete_stream() {
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
        let whole = format!("data: {{}}\n\n{usage}\n\ndata: [DONE]\n\n");
        let served = read_usage(whole.as_bytes());
        assert!(matches!(served, Some(DemoOutcome::Served { tokens: 5, cost: 17 })));
        assert!(read_usage(format!("{usage}\n\n").as_bytes()).is_none());
        assert!(read_usage(b"data: {\"error\":{}}\n\n").is_none());
    }
}
