//! Routes of a link's paths over relays: set-up, and the search for better ones.

use std::sync::Arc;

use evenkeel_policy::path::{
    HopConfig, HopCount, HopRule, Loss, PathState, Relays, RouteFigures, RouteRule, RouteVerdict,
};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::{PathMetrics, RouteMetrics};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::LinkStartError;
use super::route_pool::{RELAYS_MAX, RelayRoute, RoutePool};
use crate::identity::Identity;
use crate::path_signals::PathSignals;
use crate::quic::{ConnectError, PathConnection, PathPurpose, PathTarget, RouteError, RoutedEndpoint};
use crate::random;
use crate::relay::{RelayTarget, SetupKey};

/// Packets of a probe in one round.
const PROBE_PACKETS: u32 = 20;
/// Time between two packets of a probe.
const PROBE_SPACING: Duration = Duration::from_millis(25);
/// Bytes of a probe's packet beside its headers.
const PROBE_BYTES: &[u8] = &[0; 64];

/// Relays of a link, and the rule for the number of hops. Without relays, paths are direct.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    pub relays: Vec<RelayTarget>,
    pub hops: HopConfig,
    /// Time between two rounds of probes.
    pub probe_interval: Duration,
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self { relays: Vec::new(), hops: HopConfig::default(), probe_interval: Duration::from_secs(10) }
    }
}

impl RouteSettings {
    /// Rejects relays that are too many, too few for a route, or given twice.
    pub fn check(&self) -> Result<(), LinkStartError> {
        let relays = self.relays.len();
        let hops_min = self.hops.hops_min;
        if RELAYS_MAX < relays {
            return Err(LinkStartError::TooManyRelays { relays });
        }
        for (index, relay) in self.relays.iter().enumerate() {
            let is_same = |other: &RelayTarget| {
                other.address == relay.address || other.fingerprint == relay.fingerprint
            };
            if self.relays[..index].iter().any(is_same) {
                return Err(LinkStartError::DuplicateRelay { relay: relay.to_string() });
            }
        }
        if (1..usize::from(hops_min)).contains(&relays) {
            return Err(LinkStartError::TooFewRelays { relays, hops_min });
        }
        Ok(())
    }
}

/// Routes of all paths of a link.
pub(super) struct Routes {
    key: SetupKey,
    rule: HopRule,
    hops_min: usize,
    pub(super) probe_interval: Duration,
    pool: Mutex<RoutePool>,
    endpoints: Mutex<Vec<Option<Arc<RoutedEndpoint>>>>,
    metrics: RouteMetrics,
}

/// Route whose relays have been set up.
#[derive(Clone)]
pub(super) struct OpenRoute {
    pub(super) endpoint: Arc<RoutedEndpoint>,
    route: RelayRoute,
}

impl Routes {
    /// Checks the settings; `None` without relays.
    pub(super) fn new(
        settings: RouteSettings,
        link: &str,
        identity: &Identity,
        metrics: &PathMetrics,
        paths: usize,
    ) -> Result<Option<Arc<Self>>, LinkStartError> {
        settings.check()?;
        let RouteSettings { relays, hops, probe_interval } = settings;
        if relays.is_empty() {
            return Ok(None);
        }
        let hops_max = hops.hops_max.min(u8::try_from(relays.len()).unwrap_or(u8::MAX));
        let hops = HopConfig { hops_max, hops_start: hops.hops_start.min(hops_max), ..hops };
        let Some(rule) = HopRule::new(hops, Relays::Configured)? else { return Ok(None) };
        Ok(Some(Arc::new(Self {
            key: SetupKey::new(identity)?,
            rule,
            hops_min: hops.hops_min.into(),
            probe_interval,
            pool: Mutex::new(RoutePool::new(relays, paths)),
            endpoints: Mutex::new(vec![None; paths]),
            metrics: RouteMetrics::new(metrics.registry(), link)?,
        })))
    }

    /// Draws a route for a path that has none, and sets it up.
    pub(super) async fn open(
        &self,
        now: Instant,
        path: usize,
        target: &PathTarget,
    ) -> Result<OpenRoute, String> {
        let hops = self.hops(path);
        self.open_with(now, path, target, hops, PathPurpose::Traffic).await
    }

    async fn open_with(
        &self,
        now: Instant,
        path: usize,
        target: &PathTarget,
        hops: HopCount,
        purpose: PathPurpose,
    ) -> Result<OpenRoute, String> {
        let (route, relays) = {
            let pool = self.pool.lock();
            let hops = hops.get().into();
            let route = pool.draw(now, path, hops, self.hops_min, purpose, &mut random::draw);
            let relays = pool.relays(&route);
            (route, relays)
        };
        match RoutedEndpoint::open(target, &relays, &self.key).await {
            Ok(endpoint) => Ok(OpenRoute { endpoint: Arc::new(endpoint), route }),
            Err(error) => {
                self.record_failure(now, &route, &error);
                Err(error.to_string())
            }
        }
    }

    fn record_failure(&self, now: Instant, route: &RelayRoute, error: &RouteError) {
        let reason = match error {
            RouteError::Bind(_) => "socket",
            RouteError::Address(_) => "address",
            RouteError::NoRandomNumbers => "no_random_numbers",
            RouteError::Relay { hop, error, .. } => {
                self.pool.lock().record_failure(now, route, *hop, error);
                error.label()
            }
        };
        self.metrics.count_failure(reason);
    }

    /// Records that a route was set up, but the peer did not answer over it.
    pub(super) fn record_connect_error(&self, now: Instant, open: &OpenRoute, error: &ConnectError) {
        if let ConnectError::NoAnswer { .. } | ConnectError::NoWelcome { .. } | ConnectError::Lost { .. } =
            error
        {
            self.record_silence(now, open);
            self.metrics.count_failure("peer_silent");
        }
    }

    /// Records that the connection over a route fell silent.
    pub(super) fn record_silence(&self, now: Instant, open: &OpenRoute) {
        self.pool.lock().record_silence(now, &open.route);
    }

    /// Makes a route over which the path is connected the route of the path.
    pub(super) fn adopt(&self, path: usize, name: &str, open: &OpenRoute) {
        let mut pool = self.pool.lock();
        pool.record_success(&open.route);
        pool.adopt(path, open.route.clone());
        self.metrics.set_hops(name, open.route.hops());
        self.endpoints.lock()[path] = Some(open.endpoint.clone());
    }

    /// Counts a route that replaced another.
    pub(super) fn count_swap(&self) {
        self.metrics.swaps.count();
    }

    fn hops(&self, path: usize) -> HopCount {
        self.pool.lock().route(path).map_or(self.rule.start(), |route| self.rule.count(route.hops()))
    }

    /// Draws a route to compare with that of a path whose figures are `current`, and sets it up.
    ///
    /// The hop rule proposes its length. If it proposes no change, a route is drawn only in every third round.
    pub(super) async fn open_candidate(
        &self,
        now: Instant,
        path: usize,
        target: &PathTarget,
        current: &RouteFigures,
        round: u32,
    ) -> Option<OpenRoute> {
        let hops = self.hops(path);
        let proposed = self.rule.step(hops, current.rtt, current.loss);
        if proposed == hops && !round.is_multiple_of(3) {
            return None;
        }
        match self.open_with(now, path, target, proposed, PathPurpose::Probe).await {
            Ok(open) => Some(open),
            Err(error) => {
                tracing::debug!(path = %target, error, "could not set up a route to probe");
                None
            }
        }
    }

    /// Returns the endpoints of all paths.
    pub(super) fn endpoints(&self) -> Vec<Arc<RoutedEndpoint>> {
        self.endpoints.lock().iter().flatten().cloned().collect()
    }
}

/// Candidate route with a connection that carries only probes.
pub(super) struct RouteTrial {
    pub(super) route: OpenRoute,
    pub(super) probe: PathConnection,
    /// Rounds running in which it was better.
    rounds: u32,
}

/// Condition of a path before a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathCondition {
    pub(super) state: PathState,
    pub(super) figures: RouteFigures,
}

/// Figures of both routes in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialRound {
    pub(super) current: RouteFigures,
    pub(super) candidate: RouteFigures,
}

impl RouteTrial {
    pub(super) fn new(route: OpenRoute, probe: PathConnection) -> Self {
        Self { route, probe, rounds: 0 }
    }

    /// Measures both routes at the same time; `None` if nothing came back.
    ///
    /// `path` is the path's condition at the start: its traffic measures loss better than a few packets would.
    pub(super) async fn measure(&self, current: &PathConnection, path: &PathCondition) -> Option<TrialRound> {
        let before = self.probe.signals();
        let mut observed = CurrentRtt::default();
        let mut candidate_rtt: Option<Duration> = None;
        let mut observe = || {
            observed.record(&current.signals());
            let signals = self.probe.signals();
            shorten(&mut candidate_rtt, signals.rtt_latest.filter(|_| before.rtt_count < signals.rtt_count));
        };
        for _ in 0..PROBE_PACKETS {
            self.probe.send_datagram(PROBE_BYTES.into()).ok()?;
            sleep(PROBE_SPACING).await;
            observe();
        }
        // Time for the last acknowledgements.
        sleep(2 * before.rtt_latest.unwrap_or(PROBE_SPACING) + PROBE_SPACING).await;
        observe();
        let acked = self.probe.signals().acked_packets - before.acked_packets;
        let lost = u64::from(PROBE_PACKETS).saturating_sub(acked) as f64 / f64::from(PROBE_PACKETS);
        let candidate = RouteFigures { rtt: candidate_rtt?, loss: Loss::new(lost).ok()? };
        let current = RouteFigures { rtt: observed.rtt(path.state)?, loss: path.figures.loss };
        Some(TrialRound { current, candidate })
    }

    /// Judges the trial after one more round.
    pub(super) fn judge(&mut self, round: &TrialRound) -> RouteVerdict {
        let verdict = RouteRule::default().judge(self.rounds, &round.current, &round.candidate);
        if let RouteVerdict::ProbeAgain(rounds) = verdict {
            self.rounds = rounds;
        }
        verdict
    }
}

/// Round trips of the current route in one round.
#[derive(Debug, Default)]
struct CurrentRtt {
    shortest: Option<Duration>,
    /// Shortest since the path took this route.
    shortest_ever: Option<Duration>,
    samples: u32,
    /// Samples in which the path was full.
    full: u32,
}

impl CurrentRtt {
    fn record(&mut self, signals: &PathSignals) {
        shorten(&mut self.shortest, signals.rtt_latest);
        self.shortest_ever = signals.rtt_min;
        self.samples += 1;
        self.full += u32::from(signals.window <= 2 * signals.in_flight);
    }

    /// Returns the round trip to compare with that of an idle route.
    ///
    /// A path that is full measures its own queue, which would follow it to any other route. So the shortest round trip
    /// since the path took this route counts, unless the path is not healthy.
    fn rtt(&self, state: PathState) -> Option<Duration> {
        let is_full = self.samples <= 2 * self.full;
        if is_full && state == PathState::Active { self.shortest_ever } else { self.shortest }
    }
}

fn shorten(shortest: &mut Option<Duration>, rtt: Option<Duration>) {
    if let Some(rtt) = rtt {
        *shortest = Some(shortest.map_or(rtt, |shortest| shortest.min(rtt)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_full_path_does_not_make_its_route_worse() {
        assert_eq!(rtt(10_000, PathState::Active), ms(20));
        assert_eq!(rtt(4_999, PathState::Active), ms(70));
    }

    #[test]
    fn the_round_trip_of_a_full_path_counts_if_it_is_not_healthy() {
        assert_eq!(rtt(10_000, PathState::Degraded), ms(70));
        assert_eq!(rtt(10_000, PathState::Recovery), ms(70));
    }

    /// Returns the round trip of a path whose connection had 20 ms at best, and 70 to 90 ms in this round.
    fn rtt(in_flight: u64, state: PathState) -> Duration {
        let mut observed = CurrentRtt::default();
        for latest in [80, 70, 90] {
            observed.record(&PathSignals {
                rtt_latest: Some(ms(latest)),
                rtt_min: Some(ms(20)),
                in_flight,
                window: 10_000,
                ..PathSignals::default()
            });
        }
        observed.rtt(state).unwrap()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}
