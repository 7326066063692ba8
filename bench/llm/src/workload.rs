//! The three workloads and their metrics.

use std::time::Duration;

use bench_support::{RunError, TurnSample, latency_percentiles};
use tokio::time::timeout;

use crate::chat::ChatMode;
use crate::contender::RunningProxy;
use crate::load::{ClientPool, LoadError, stream};

/// Time limit of a turn, well above the time that the slowest contender takes.
const TURN_MAX: Duration = Duration::from_secs(120);
const LOAD_CONNECTIONS: usize = 16;
const LOAD_REQUESTS: f64 = 20_000.0;
const ONE_REQUESTS: f64 = 3_000.0;
const STREAMS: f64 = 64.0;
const FRAMES: f64 = 100.0;
const FRAME_INTERVAL_MS: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LlmWorkload {
    Load,
    One,
    Stream,
}

/// A metric and its table column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricColumn {
    pub(crate) name: &'static str,
    pub(crate) heading: &'static str,
    /// Name of the metric's rows in the JSON results; `None` if it is not compared with the baseline.
    pub(crate) group: Option<&'static str>,
}

const fn plain(name: &'static str, heading: &'static str) -> MetricColumn {
    MetricColumn { name, heading, group: None }
}

const fn compared(group: &'static str, name: &'static str, heading: &'static str) -> MetricColumn {
    MetricColumn { name, heading, group: Some(group) }
}

const LOAD_METRICS: &[MetricColumn] = &[
    compared("cpu", "cpu_us", "CPU µs/request"),
    compared("wall", "wall_us", "wall µs/request"),
    plain("rate", "requests/s"),
    compared("rss", "rss_mib", "MiB loaded"),
];
const ONE_METRICS: &[MetricColumn] = &[
    plain("p50_us", "p50 µs"),
    plain("p99_us", "p99 µs"),
    compared("added", "added_p50_us", "added p50 µs"),
    plain("added_p99_us", "added p99 µs"),
];
const STREAM_METRICS: &[MetricColumn] = &[
    compared("frame", "cpu_us_per_frame", "CPU µs/frame"),
    plain("frames", "frames"),
    plain("stalled", "stalled > 100 ms"),
    plain("p50_us", "p50 µs"),
    plain("p99_us", "p99 µs"),
];

impl LlmWorkload {
    pub(crate) const ALL: &[Self] = &[Self::Load, Self::One, Self::Stream];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::One => "one",
            Self::Stream => "stream",
        }
    }

    pub(crate) fn about(self) -> String {
        match self {
            Self::Load => {
                format!("{LOAD_CONNECTIONS} connections, each sends the next request after the response")
            }
            Self::One => "one connection, one request at a time".to_owned(),
            Self::Stream => {
                format!(
                    "{STREAMS} concurrent streams, {FRAMES} frames each, one every {FRAME_INTERVAL_MS} ms"
                )
            }
        }
    }

    pub(crate) fn metrics(self) -> &'static [MetricColumn] {
        match self {
            Self::Load => LOAD_METRICS,
            Self::One => ONE_METRICS,
            Self::Stream => STREAM_METRICS,
        }
    }

    /// Runs the workload on a contender; `scale` multiplies the number of requests or frames.
    pub(crate) async fn run(self, running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
        let turn = async {
            match self {
                Self::Load => load(running, scale).await,
                Self::One => one(running, scale).await,
                Self::Stream => frames(running, scale).await,
            }
        };
        timeout(TURN_MAX, turn)
            .await
            .unwrap_or(Err(RunError(format!("timed out after {} s", TURN_MAX.as_secs()))))
    }
}

async fn load(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let clients = ClientPool::open(&running.target, LOAD_CONNECTIONS).await?;
    let requests = scaled(LOAD_REQUESTS, scale).max(LOAD_CONNECTIONS);
    let before = running.cpu()?;
    let result = clients.send(requests).await?;
    let cpu = running.cpu()?.saturating_sub(before);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
    let mut sample =
        vec![("wall_us", us(result.wall)), ("rate", requests as f64 / result.wall.as_secs_f64())];
    if running.has_process() {
        sample.push(("cpu_us", us(cpu)));
    }
    if let Some(rss) = running.rss()? {
        sample.push(("rss_mib", mib(rss)));
    }
    Ok(sample)
}

async fn one(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let clients = ClientPool::open(&running.target, 1).await?;
    let result = clients.send(scaled(ONE_REQUESTS, scale)).await?;
    Ok(latency_percentiles(result.latencies_ns))
}

async fn frames(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let mode = ChatMode::Stream { frames: scaled(FRAMES, scale), interval_ms: FRAME_INTERVAL_MS };
    let before = running.cpu()?;
    let result = stream(&running.target, STREAMS as usize, mode).await?;
    let cpu = running.cpu()?.saturating_sub(before);
    let received = result.latencies_ns.len();
    let mut sample = vec![("frames", received as f64), ("stalled", result.stalled as f64)];
    if running.has_process() {
        sample.push(("cpu_us_per_frame", cpu.as_secs_f64() * 1e6 / received as f64));
    }
    sample.extend(latency_percentiles(result.latencies_ns));
    Ok(sample)
}

fn scaled(count: f64, scale: f64) -> usize {
    ((count * scale) as usize).max(1)
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

impl From<LoadError> for RunError {
    fn from(error: LoadError) -> Self {
        Self(error.to_string())
    }
}
