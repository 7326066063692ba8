//! Exports spans to an OpenTelemetry collector, as OTLP over HTTP.
//!
//! Limits: one batch of at most [`BATCH_MAX`] spans is in flight and is tried [`TRIES_MAX`] times; then it is dropped and
//! counted. Stopping takes at most [`STOP_MAX`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::trace::{Attributes, CONTENT_TYPE, Tracer, payload};
use evenkeel_upstream::{LinkLocalPolicy, TlsRoots, Upstream, UpstreamError};
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::TraceConfig;

const BATCH_MAX: usize = 512;
/// Pause when the span buffer is empty.
const INTERVAL: Duration = Duration::from_millis(500);
/// Attempts per batch.
const TRIES_MAX: u32 = 3;
/// Delay after the first attempt; it grows linearly.
const BACKOFF: Duration = Duration::from_secs(1);
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for exporting the last spans during shutdown.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Background task that exports spans.
#[derive(Debug)]
pub(super) struct Exporter {
    stop: oneshot::Sender<()>,
    exporting: JoinHandle<()>,
}

impl Exporter {
    pub(super) fn start(
        tracer: Arc<Tracer>,
        config: TraceConfig,
        roots: TlsRoots,
        link_local: LinkLocalPolicy,
    ) -> Self {
        let pool = ConnectionPoolConfig {
            max_idle_per_host: 1,
            request_timeout: TIMEOUT,
            ..ConnectionPoolConfig::default()
        };
        let upstream = Upstream::new(pool, roots).with_link_local(link_local);
        let collector = Collector { upstream, config, resource: resource() };
        let (stop, stopped) = oneshot::channel();
        Self { stop, exporting: tokio::spawn(export(tracer, collector, stopped)) }
    }

    /// Exports the remaining spans, for at most [`STOP_MAX`].
    pub(super) async fn stop(self) {
        // Fails only if the task has already ended.
        let _ = self.stop.send(());
        if timeout(STOP_MAX, self.exporting).await.is_err() {
            tracing::warn!(target: "evenkeel", "the collector did not accept the last spans in time; they are lost");
        }
    }
}

/// Returns the resource attributes sent with every batch.
fn resource() -> Attributes {
    vec![
        ("service.name", "evenkeel".into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("process.pid", u64::from(std::process::id()).into()),
    ]
}

async fn export(tracer: Arc<Tracer>, collector: Collector, mut stopped: oneshot::Receiver<()>) {
    let mut tries_max = TRIES_MAX;
    let mut was_accepted = true;
    loop {
        let spans = tracer.take(BATCH_MAX);
        if spans.is_empty() {
            if tries_max < TRIES_MAX {
                return;
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                // Also resolves when the gateway is dropped. There is no time for retries during shutdown.
                _ = &mut stopped => tries_max = 1,
            }
            continue;
        }
        let body = Bytes::from(payload(&collector.resource, &spans));
        let exported = collector.export(body, tries_max).await;
        match &exported {
            Ok(()) => tracer.count_exported(spans.len()),
            Err(_) => tracer.count_dropped(spans.len()),
        }
        // Logged once per outage, not with every batch.
        if let Err(error) = &exported
            && was_accepted
        {
            tracing::warn!(target: "evenkeel", collector = %collector.config.collector, error, "the collector accepts no spans; dropping them until it does");
        }
        was_accepted = exported.is_ok();
    }
}

struct Collector {
    upstream: Upstream,
    config: TraceConfig,
    resource: Attributes,
}

impl Collector {
    /// Sends a batch; retries if the error may be temporary.
    async fn export(&self, body: Bytes, tries_max: u32) -> Result<(), String> {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.send(body.clone()).await {
                Ok(status) if status.is_success() => return Ok(()),
                Ok(status) if !is_retryable(status) => return Err(format!("status {status}")),
                Ok(status) => format!("status {status}"),
                Err(error) => error.to_string(),
            };
            if tries >= tries_max {
                return Err(error);
            }
            sleep(BACKOFF * tries).await;
        }
    }

    async fn send(&self, body: Bytes) -> Result<StatusCode, UpstreamError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/v1/traces");
        for (name, value) in &self.config.headers {
            request.headers_mut().insert(name, value.clone());
        }
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        let response = self.upstream.send(&self.config.collector, &request).await?;
        let status = response.status();
        // The connection is reused only if the body is read to the end.
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(status)
    }
}

/// Reports whether a batch may be accepted later, as the OTLP specification defines.
fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
