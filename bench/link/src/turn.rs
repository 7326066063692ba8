//! One turn: one contender sends one stream through a new network.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use bench_support::{RunError, TurnSample, process_tree_cpu};
use evenkeel_test_network::Network;

use crate::case::{CaseKind, LinkCase};
use crate::contender::{LinkContender, StartedLink};
use crate::interrupt::InterruptFlag;
use crate::reorder::{REORDER, ReorderDelays};
use crate::stream::{BulkStream, StreamProgress};

/// Long enough for a multipath transport to deliver what its start has left in the receiver's reorder buffer: after 2 s,
/// MPTCP with BBR delivers more in case B than the paths can carry.
const WARM_UP: Duration = Duration::from_secs(6);
/// Longest time for which a stream is observed after a path has become a black hole.
const FAILOVER_OBSERVED_MAX: Duration = Duration::from_secs(12);
/// Time for which a path that flaps is a black hole, and for which it is not.
pub(crate) const FLAP_PERIOD: Duration = Duration::from_secs(2);
/// Measured windows of a case in which paths flap: the first seconds are not typical.
const FLAPPING_WINDOWS: u32 = 3;
/// Measured windows of a case with two flows, whose shares vary over seconds.
const SHARED_WINDOWS: u32 = 5;

/// A gap at least this long is shown as `≥`: the observation ([`FAILOVER_OBSERVED_MAX`]) ended first.
pub(crate) const GAP_WITHOUT_END: Duration = Duration::from_secs(11);

/// Metrics by path: its share of the bytes delivered, and the gap after it has become a black hole.
pub(crate) const SHARES: &[&str] = &["p1 %", "p2 %", "p3 %", "p4 %"];
pub(crate) const GAPS: &[&str] = &["gap p1 ms", "gap p2 ms", "gap p3 ms", "gap p4 ms"];
/// Longest time without progress while a path flaps.
pub(crate) const STALL: &str = "stall ms";
/// Goodput and share of the kernel Cubic flow beside a contender.
pub(crate) const COMPETITOR_MBIT: &str = "kernel flow Mbit/s";
pub(crate) const COMPETITOR_SHARE: &str = "kernel flow %";

/// The parameters of a turn.
pub(crate) struct TurnPlan<'a> {
    pub(crate) case: &'a LinkCase,
    pub(crate) contender: LinkContender,
    pub(crate) window: Duration,
    /// Number of the path that becomes a black hole after the window.
    pub(crate) failing_path: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) evenkeel: &'a Path,
    pub(crate) directory: &'a Path,
    pub(crate) interrupt: &'a InterruptFlag,
}

/// Runs a turn and returns its metrics.
pub(crate) fn run(plan: &TurnPlan) -> Result<TurnSample, RunError> {
    let network = Network::with_seed(plan.case.paths, plan.seed);
    let network = network.map_err(|unavailable| RunError(unavailable.to_string()))?;
    let link = plan.contender.start(&network, plan.evenkeel, plan.directory)?;
    let mut stream = BulkStream::start(&network, &link)?;
    if plan.case.kind == CaseKind::Shared {
        return measure_shared(plan, &network, &mut stream);
    }
    if stream.observe(WARM_UP, plan.interrupt)?.bytes == 0 {
        return Err(RunError("no data arrived during the warm-up".to_owned()));
    }
    if plan.case.kind == CaseKind::Flapping {
        return measure_flapping(plan, &network, &mut stream);
    }
    let mut sample = measure(plan, &network, &link, &mut stream)?;
    if let Some(path) = plan.failing_path {
        network.path(path).black_hole(true);
        let progress = stream.observe_recovery(FAILOVER_OBSERVED_MAX, plan.interrupt)?;
        sample.push((GAPS[path - 1], progress.gap_max.as_secs_f64() * 1e3));
    }
    Ok(sample)
}

/// Measures the window of a stream that has the paths for itself.
fn measure(
    plan: &TurnPlan,
    network: &Network,
    link: &StartedLink,
    stream: &mut BulkStream,
) -> Result<TurnSample, RunError> {
    let delays = || match plan.contender {
        LinkContender::Evenkeel => ReorderDelays::read(network.core()),
        _ => Ok(ReorderDelays::default()),
    };
    let delays_before = delays()?;
    let before = Usage::read(network, link, stream)?;
    let progress = stream.observe(plan.window, plan.interrupt)?;
    let after = Usage::read(network, link, stream)?;
    let delays_after = delays()?;
    let mut sample = vec![("mbit", progress.mbit())];
    let gigabytes = progress.bytes as f64 / 1e9;
    let cpu = |read: fn(&Usage) -> Duration| (read(&after) - read(&before)).as_secs_f64() / gigabytes;
    sample.push(("sender_cpu", cpu(|usage| usage.sender)));
    sample.push(("receiver_cpu", cpu(|usage| usage.receiver)));
    sample.push(("all_cpu", cpu(|usage| usage.all)));
    let delivered: Vec<_> = after
        .delivered
        .iter()
        .zip(&before.delivered)
        .map(|(after, before)| (after - before) as f64)
        .collect();
    let sum: f64 = delivered.iter().sum();
    sample.extend(SHARES.iter().zip(&delivered).map(|(name, bytes)| (*name, bytes / sum * 100.0)));
    for (name, quantile) in REORDER {
        let delay = delays_after.quantile_ms(&delays_before, *quantile);
        sample.extend(delay.map(|delay| (*name, delay)));
    }
    Ok(sample)
}

/// Measures a stream while path 1 is a black hole every other [`FLAP_PERIOD`].
fn measure_flapping(
    plan: &TurnPlan,
    network: &Network,
    stream: &mut BulkStream,
) -> Result<TurnSample, RunError> {
    let start = Instant::now();
    let first = stream.received();
    let mut stall = Duration::ZERO;
    while start.elapsed() < plan.window * FLAPPING_WINDOWS {
        for is_open in [true, false] {
            network.path(1).black_hole(is_open);
            stall = stall.max(stream.observe(FLAP_PERIOD, plan.interrupt)?.gap_max);
        }
    }
    let bytes = stream.received() - first;
    let progress = StreamProgress { bytes, wall: start.elapsed(), gap_max: stall };
    Ok(vec![("mbit", progress.mbit()), (STALL, stall.as_secs_f64() * 1e3)])
}

/// Measures a stream and a kernel Cubic flow beside it.
fn measure_shared(
    plan: &TurnPlan,
    network: &Network,
    stream: &mut BulkStream,
) -> Result<TurnSample, RunError> {
    let competitor = BulkStream::start(network, &StartedLink::competitor(network))?;
    stream.observe(WARM_UP, plan.interrupt)?;
    let before = competitor.received();
    let progress = stream.observe(plan.window * SHARED_WINDOWS, plan.interrupt)?;
    let bytes = competitor.received() - before;
    if bytes == 0 || progress.bytes == 0 {
        return Err(RunError("a flow made no progress".to_owned()));
    }
    let share = bytes as f64 / (bytes + progress.bytes) as f64;
    let competitor = StreamProgress { bytes, ..progress };
    Ok(vec![
        ("mbit", progress.mbit()),
        (COMPETITOR_MBIT, competitor.mbit()),
        (COMPETITOR_SHARE, share * 100.0),
    ])
}

/// Counters since the start.
struct Usage {
    /// CPU time of everything at the edge: the sending thread, and the process that carries the stream.
    sender: Duration,
    receiver: Duration,
    /// CPU time of this process, with the emulator, and its children.
    all: Duration,
    /// Bytes that the emulator has delivered to the core, by path.
    delivered: Vec<u64>,
}

impl Usage {
    fn read(network: &Network, link: &StartedLink, stream: &BulkStream) -> io::Result<Self> {
        let threads = stream.cpu()?;
        let processes = match &link.processes {
            Some(processes) => processes.cpu()?,
            None => [Duration::ZERO; 2],
        };
        let delivered = network.paths().iter().map(|path| path.to_core().counters().delivered_bytes);
        Ok(Self {
            sender: threads[0] + processes[0],
            receiver: threads[1] + processes[1],
            all: process_tree_cpu(std::process::id())?,
            delivered: delivered.collect(),
        })
    }
}
