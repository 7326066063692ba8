//! Search for a better route while a path is connected.

use std::future::pending;

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{Loss, RouteFigures, RouteVerdict};
use evenkeel_policy::time::Duration;
use tokio::time::sleep;

use super::{Attempt, HeldConnection, explain_over, route_text};
use crate::connector::routes::{OpenRoute, PathCondition, RouteTrial, Routes, TrialRound};
use crate::quic::{ConnectError, PathConnection, PathPurpose, PathRequest};

impl Attempt {
    /// Probes other routes until one was better in enough rounds; returns it with the last round. Never ends on a direct
    /// path.
    pub(super) async fn find_better_route(&self, held: &HeldConnection) -> (RouteTrial, TrialRound) {
        let Some(routes) = &self.shared.routes else { return pending().await };
        let mut trial: Option<RouteTrial> = None;
        let mut pause = held.probe_pause;
        for round_number in 1_u32.. {
            sleep(pause).await;
            pause = routes.probe_interval;
            let Some(path) = self.path_condition(held) else { continue };
            if trial.is_none() {
                trial = self.start_trial(routes, held, &path.figures, round_number).await;
            }
            let Some(mut running) = trial.take() else { continue };
            let Some(round) = running.measure(&held.connection, &path).await else { continue };
            match running.judge(&round) {
                RouteVerdict::Keep => {}
                RouteVerdict::ProbeAgain(_) => trial = Some(running),
                RouteVerdict::Swap => return (running, round),
            }
        }
        pending().await
    }

    fn path_condition(&self, held: &HeldConnection) -> Option<PathCondition> {
        let status = held.current.driver.with(|session, now| session.status(now));
        let path = status.paths.into_iter().find(|path| path.path == PathId(self.path.into()))?;
        let figures = RouteFigures { rtt: path.rtt?, loss: Loss::new(path.loss).ok()? };
        Some(PathCondition { state: path.state, figures })
    }

    async fn start_trial(
        &self,
        routes: &Routes,
        held: &HeldConnection,
        figures: &RouteFigures,
        round: u32,
    ) -> Option<RouteTrial> {
        let clock = self.shared.clock;
        let candidate =
            routes.open_candidate(clock.now(), self.path.into(), self.target(), figures, round).await?;
        let connected = self.connect_in_session(held, &candidate, PathPurpose::Probe).await;
        match connected {
            Ok(probe) => Some(RouteTrial::new(candidate, probe)),
            Err(error) => {
                routes.record_connect_error(clock.now(), &candidate, &error);
                let error = explain_over(candidate.endpoint.relays(), &error);
                tracing::debug!(path = self.name(), error, "could not probe a route");
                None
            }
        }
    }

    async fn connect_in_session(
        &self,
        held: &HeldConnection,
        route: &OpenRoute,
        purpose: PathPurpose,
    ) -> Result<PathConnection, ConnectError> {
        let name = self.name();
        let session = Some(held.connection.session());
        let request = PathRequest { path: self.path, name: &name, session, purpose };
        route.endpoint.connect(&self.shared.config, &request).await
    }

    /// Returns the time between two rounds of probes.
    pub(super) fn probe_interval(&self) -> Duration {
        self.shared.routes.as_ref().map_or(Duration::ZERO, |routes| routes.probe_interval)
    }

    /// Connects over a route that was better.
    pub(super) async fn swap(
        &self,
        held: &HeldConnection,
        trial: RouteTrial,
        round: &TrialRound,
    ) -> Option<(PathConnection, OpenRoute)> {
        let connected = self.connect_in_session(held, &trial.route, PathPurpose::Traffic).await;
        let connection = match connected {
            Ok(connection) => connection,
            Err(error) => {
                let error = explain_over(trial.route.endpoint.relays(), &error);
                tracing::warn!(path = self.name(), error, "could not connect over a better route");
                return None;
            }
        };
        if let Some(routes) = &self.shared.routes {
            routes.count_swap();
        }
        let millis = |rtt: Duration| rtt.as_secs_f64() * 1e3;
        let TrialRound { current, candidate } = round;
        tracing::info!(
            path = self.name(),
            from = route_text(&held.connection),
            to = route_text(&connection),
            rtt_ms_before = millis(current.rtt),
            rtt_ms = millis(candidate.rtt),
            loss_before = current.loss.as_f64(),
            loss = candidate.loss.as_f64(),
            "route swapped for a better one"
        );
        Some((connection, trial.route))
    }
}
