//! Simulates several gateways of one database that hand requests over to each other.
//!
//! Each gateway is a real `OptimizedLoadManager` with a `Redirector`; gateways exchange figures every 250 ms, with
//! jitter and delay. A run also computes the ideal: one queue over all slots, with the same arrivals and service times.
//! [`RedirectRule`] replaces the product's step by rules that are known to fail, to show that the scenarios notice.

mod gateway;
mod ideal;
mod plans;
mod run;

use evenkeel_pipeline::{RedirectMode, RedirectOptions};
use evenkeel_policy::time::Duration;

pub use plans::{redirect_names, redirect_plan};
pub use run::run_redirect;

use crate::record::nearest_rank;

/// Gateways, their clients, and the exchange of figures.
#[derive(Clone, Debug)]
pub struct RedirectPlan {
    /// Name in reports.
    pub name: &'static str,
    /// Description in reports.
    pub about: &'static str,
    pub seed: u64,
    pub duration: Duration,
    pub gateways: Vec<GatewayPlan>,
    /// Delay between the measurement of figures and their arrival at a peer.
    pub report_delay: Duration,
    pub options: RedirectOptions,
    pub mode: RedirectMode,
}

/// One gateway and the requests of its clients.
#[derive(Clone, Copy, Debug)]
pub struct GatewayPlan {
    /// Load by its clients, as a fraction of what its own slots can serve.
    pub load: f64,
    /// Factor of the service times of its slots.
    pub slowness: f64,
    pub life: GatewayLife,
}

/// Availability of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayLife {
    /// It runs from long before the start to the end.
    Steady,
    /// It is unreachable in every other period of this length.
    Flapping(Duration),
    /// It restarts at this time; its caches are cold, so that it is eight times as slow, and a minute later as fast as
    /// the others.
    Restarted(Duration),
}

/// Step that decides about a request without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectRule {
    /// The product's step.
    Product,
    /// The product's step with gates by the reported figures up to `down_after`, and without counting requests that were
    /// handed over since.
    HardGates,
    /// The product's step without counting requests that were handed over since the last figures.
    NoCorrection,
    /// The product's step without a smaller weight for peers that started recently.
    NoSlowStart,
    /// Never hands over.
    Never,
    /// Hands over to the peer with the most connections in use.
    WorstPeer,
}

impl RedirectRule {
    /// All rules, the product's first.
    pub const ALL: [Self; 6] =
        [Self::Product, Self::HardGates, Self::NoCorrection, Self::NoSlowStart, Self::WorstPeer, Self::Never];

    /// Returns the name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Product => "Evenkeel",
            Self::HardGates => "hard gates, nothing counted",
            Self::NoCorrection => "handed over not counted",
            Self::NoSlowStart => "no slow start",
            Self::WorstPeer => "fullest peer",
            Self::Never => "no redirects",
        }
    }

    fn counts_handed_over(self) -> bool {
        !matches!(self, Self::HardGates | Self::NoCorrection)
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RedirectRun {
    /// Latencies from arrival to end, of the requests that arrived after the first 10 s; sorted.
    pub latencies: Vec<Duration>,
    /// Latencies of the same requests with one queue over all slots; sorted.
    pub ideal: Vec<Duration>,
    /// Number of first hand-overs of these requests, those to unreachable gateways included.
    pub redirected: usize,
    /// Number of hand-overs to a gateway that was unreachable.
    pub refused: usize,
    /// Number of requests that no gateway accepted.
    pub rejected: usize,
    /// Number of requests served by each gateway.
    pub served: Vec<usize>,
    /// Number of requests handed over to each gateway.
    pub received: Vec<usize>,
}

impl RedirectRun {
    /// Returns the mean latency as a multiple of the ideal one.
    pub fn ratio(&self) -> f64 {
        mean(&self.latencies).as_secs_f64() / mean(&self.ideal).as_secs_f64()
    }

    /// Returns the fraction of the requests that were handed over.
    pub fn redirect_share(&self) -> f64 {
        self.redirected as f64 / self.latencies.len().max(1) as f64
    }

    /// Returns mean and 99th percentile of the latencies.
    pub fn mean_and_p99(&self) -> [Duration; 2] {
        [mean(&self.latencies), nearest_rank(&self.latencies, 99)]
    }

    /// Returns mean and 99th percentile of the ideal latencies.
    pub fn ideal_mean_and_p99(&self) -> [Duration; 2] {
        [mean(&self.ideal), nearest_rank(&self.ideal, 99)]
    }
}

fn mean(latencies: &[Duration]) -> Duration {
    let sum: Duration = latencies.iter().sum();
    sum / u32::try_from(latencies.len().max(1)).unwrap_or(u32::MAX)
}
