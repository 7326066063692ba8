//! The three workloads, and what a turn of each measures.

use std::time::Duration;

use bench_support::{RunError, TurnSample, delays};
use tokio::time::timeout;

use crate::chat::ChatMode;
use crate::contender::RunningProxy;
use crate::load::{ClientPool, LoadError, stream};

/// More than the slowest turn of a contender that answers at all.
const TURN_MAX: Duration = Duration::from_secs(120);
const LOAD_CONNECTIONS: usize = 16;
const LOAD_REQUESTS: f64 = 20_000.0;
const ONE_REQUESTS: f64 = 3_000.0;
const STREAMS: f64 = 64.0;
const FRAMES: f64 = 100.0;
const FRAME_EVERY_MS: u64 = 20;

/// What is asked of everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LlmWorkload {
    Load,
    One,
    Stream,
}

/// A figure, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricColumn {
    pub(crate) name: &'static str,
    pub(crate) head: &'static str,
    /// The group under which ratios to the baseline are written, if they are.
    pub(crate) group: Option<&'static str>,
}

const fn figure(name: &'static str, head: &'static str) -> MetricColumn {
    MetricColumn { name, head, group: None }
}

const fn compared(group: &'static str, name: &'static str, head: &'static str) -> MetricColumn {
    MetricColumn { name, head, group: Some(group) }
}

const LOAD_FIGURES: &[MetricColumn] = &[
    compared("cpu", "cpu_us", "CPU µs/request"),
    compared("wall", "wall_us", "wall µs/request"),
    figure("rate", "requests/s"),
    compared("rss", "rss_mib", "MiB loaded"),
];
const ONE_FIGURES: &[MetricColumn] = &[
    figure("p50_us", "p50 µs"),
    figure("p99_us", "p99 µs"),
    compared("added", "added_p50_us", "added p50 µs"),
    figure("added_p99_us", "added p99 µs"),
];
const STREAM_FIGURES: &[MetricColumn] = &[
    compared("frame", "cpu_us_per_frame", "CPU µs/frame"),
    figure("frames", "frames"),
    figure("stalled", "stalled > 100 ms"),
    figure("p50_us", "p50 µs"),
    figure("p99_us", "p99 µs"),
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
            Self::Load => format!("{LOAD_CONNECTIONS} connections, each asking again once answered"),
            Self::One => "one connection".to_owned(),
            Self::Stream => {
                format!("{STREAMS} streams at once, {FRAMES} frames each, one every {FRAME_EVERY_MS} ms")
            }
        }
    }

    pub(crate) fn figures(self) -> &'static [MetricColumn] {
        match self {
            Self::Load => LOAD_FIGURES,
            Self::One => ONE_FIGURES,
            Self::Stream => STREAM_FIGURES,
        }
    }

    /// Gives a contender its turn; `scale` makes it longer or shorter.
    pub(crate) async fn run(self, running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
        let turn = async {
            match self {
                Self::Load => load(running, scale).await,
                Self::One => one(running, scale).await,
                Self::Stream => frames(running, scale).await,
            }
        };
        timeout(TURN_MAX, turn).await.unwrap_or(Err(RunError("it took too long".to_owned())))
    }
}

async fn load(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let callers = ClientPool::open(&running.target, LOAD_CONNECTIONS).await?;
    let requests = scaled(LOAD_REQUESTS, scale).max(LOAD_CONNECTIONS);
    let before = running.cpu()?;
    let answered = callers.ask(requests).await?;
    let cpu = running.cpu()?.saturating_sub(before);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
    let mut sample =
        vec![("wall_us", us(answered.wall)), ("rate", requests as f64 / answered.wall.as_secs_f64())];
    if running.is_somebody() {
        sample.push(("cpu_us", us(cpu)));
    }
    if let Some(rss) = running.rss()? {
        sample.push(("rss_mib", mib(rss)));
    }
    Ok(sample)
}

async fn one(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let callers = ClientPool::open(&running.target, 1).await?;
    let answered = callers.ask(scaled(ONE_REQUESTS, scale)).await?;
    Ok(delays(answered.delays_ns))
}

async fn frames(running: &RunningProxy, scale: f64) -> Result<TurnSample, RunError> {
    let delivery = ChatMode::Stream { frames: scaled(FRAMES, scale), every_ms: FRAME_EVERY_MS };
    let before = running.cpu()?;
    let streamed = stream(&running.target, STREAMS as usize, delivery).await?;
    let cpu = running.cpu()?.saturating_sub(before);
    let passed = streamed.delays_ns.len();
    let mut sample = vec![("frames", passed as f64), ("stalled", streamed.stalled as f64)];
    if running.is_somebody() {
        sample.push(("cpu_us_per_frame", cpu.as_secs_f64() * 1e6 / passed as f64));
    }
    sample.extend(delays(streamed.delays_ns));
    Ok(sample)
}

fn scaled(count: f64, scale: f64) -> usize {
    ((count * scale) as usize).max(1)
}

/// Counts bytes in larger units.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

impl From<LoadError> for RunError {
    fn from(unanswered: LoadError) -> Self {
        Self(unanswered.to_string())
    }
}
