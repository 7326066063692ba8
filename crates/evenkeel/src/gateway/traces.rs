//! Takes spans to a collector, as OTLP over HTTP.
//!
//! Bound: one batch of [`BATCH_MAX`] spans at a time, tried [`TRIES_MAX`] times; what no collector takes is dropped and
//! counted. Stopping takes at most [`STOP_MAX`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::trace::{Attributes, CONTENT_TYPE, Tracer, payload};
use evenkeel_upstream::{TlsRoots, Upstream, UpstreamError};
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::TraceConfig;

/// How many spans go at once.
const BATCH_MAX: usize = 512;
/// How long spans wait for others to go with.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often a batch is tried that a collector has no room for, or that does not reach one.
const TRIES_MAX: u32 = 3;
/// How long after the first of these it is tried again; twice that after the second.
const BACKOFF: Duration = Duration::from_secs(1);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last spans may take when the gateway stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Takes spans to a collector until it is stopped.
#[derive(Debug)]
pub(super) struct Exporter {
    stop: oneshot::Sender<()>,
    exporting: JoinHandle<()>,
}

impl Exporter {
    pub(super) fn start(tracer: Arc<Tracer>, config: TraceConfig, roots: TlsRoots) -> Self {
        let pool = ConnectionPoolConfig {
            max_idle_per_host: 1,
            request_timeout: TIMEOUT,
            ..ConnectionPoolConfig::default()
        };
        let collector = Collector { upstream: Upstream::new(pool, roots), config, service: service() };
        let (stop, stopped) = oneshot::channel();
        Self { stop, exporting: tokio::spawn(export(tracer, collector, stopped)) }
    }

    /// Has what is left taken, within limits.
    pub(super) async fn stop(self) {
        // One that has ended already needs no telling.
        let _ = self.stop.send(());
        if timeout(STOP_MAX, self.exporting).await.is_err() {
            tracing::warn!(target: "evenkeel", "the collector did not take the last spans in time");
        }
    }
}

/// What is told of the process with every batch.
fn service() -> Attributes {
    vec![
        ("service.name", "evenkeel".into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("process.pid", u64::from(std::process::id()).into()),
    ]
}

async fn export(tracer: Arc<Tracer>, collector: Collector, mut stopped: oneshot::Receiver<()>) {
    let mut tries_max = TRIES_MAX;
    let mut was_well = true;
    loop {
        let spans = tracer.take(BATCH_MAX);
        if spans.is_empty() {
            if tries_max < TRIES_MAX {
                return;
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                // Whoever drops the gateway wants this to stop, too; there is no time for second tries then.
                _ = &mut stopped => tries_max = 1,
            }
            continue;
        }
        let body = Bytes::from(payload(&collector.service, &spans));
        let taken = collector.take(body, tries_max).await;
        match &taken {
            Ok(()) => tracer.count_exported(spans.len()),
            Err(_) => tracer.count_dropped(spans.len()),
        }
        // Told once, not with every batch.
        if let (Err(why), true) = (&taken, was_well) {
            tracing::warn!(target: "evenkeel", collector = %collector.config.collector, why, "spans dropped: no collector takes them");
        }
        was_well = taken.is_ok();
    }
}

struct Collector {
    upstream: Upstream,
    config: TraceConfig,
    service: Attributes,
}

impl Collector {
    /// Gives it a batch, again if that may help.
    async fn take(&self, body: Bytes, tries_max: u32) -> Result<(), String> {
        let mut tried = 0;
        loop {
            tried += 1;
            let why = match self.send(body.clone()).await {
                Ok(status) if status.is_success() => return Ok(()),
                Ok(status) if !is_retryable(status) => return Err(format!("it answered {status}")),
                Ok(status) => format!("it answered {status}"),
                Err(error) => error.to_string(),
            };
            if tries_max <= tried {
                return Err(why);
            }
            sleep(BACKOFF * tried).await;
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
        let answer = self.upstream.send(&self.config.collector, &request).await?;
        let status = answer.status();
        // Read to its end, its connection is used again.
        let mut rest = answer.into_body();
        while let Some(frame) = rest.frame().await {
            frame?;
        }
        Ok(status)
    }
}

/// Whether the same batch may be taken later, as OTLP has it.
fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
