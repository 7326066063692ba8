//! State of a peer: its last valid report, and the failure since.
//!
//! Guarantees: an older report never replaces a newer one. A peer without a valid report for `down_after`, or whose last
//! answer is not believed, is DOWN with the reason.

use std::sync::Arc;

use evenkeel_policy::score::Status;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_upstream::Origin;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::options::PeerOptions;
use crate::report::ReceivedReport;

/// State of a peer at one moment. Clones are cheap.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// Position in the list of peers; the other methods of `Cluster` take it.
    pub index: usize,
    pub name: Arc<str>,
    /// URL at which clients reach the peer, without a trailing slash.
    pub url: Arc<str>,
    pub weight: Weight,
    pub status: Status,
    /// Reason why the peer is DOWN, or the failure since the last valid report.
    pub error: Option<Arc<str>>,
    /// The last valid report, however old it is.
    pub report: Option<Arc<ReceivedReport>>,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) index: usize,
    pub(crate) name: Arc<str>,
    pub(crate) origin: Origin,
    url: Arc<str>,
    weight: Weight,
    state: Mutex<PeerState>,
}

#[derive(Debug, Default)]
struct PeerState {
    report: Option<Arc<ReceivedReport>>,
    /// Failure of the last poll.
    failure: Option<Failure>,
    last_check: SignatureCheck,
}

/// Result of checking the signature of a poll that names the peer as its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    #[default]
    Valid,
    Invalid,
}

#[derive(Clone, Debug)]
struct Failure {
    kind: FailureKind,
    reason: Arc<str>,
}

/// Kind of a failed poll, which decides how long the last report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The peer did not answer: its last report counts until it is too old.
    Unreachable,
    /// The answer cannot be believed: the peer is DOWN at once.
    Invalid,
}

/// Origin of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportSource {
    /// An answer to a poll. Polls of a peer are never concurrent, so the last one knows the peer's boot.
    Poll,
    /// A forwarded response, which may be late: it does not change the known boot.
    ForwardedResponse,
}

impl Peer {
    pub(crate) fn new(index: usize, options: PeerOptions) -> Self {
        Self {
            index,
            name: options.name.into(),
            origin: options.origin,
            url: options.url.trim_end_matches('/').into(),
            weight: options.weight,
            state: Mutex::default(),
        }
    }

    pub(crate) fn snapshot(&self, now: Instant, down_after: Duration) -> PeerSnapshot {
        let state = self.state.lock();
        let report = state.report.clone();
        let failure = state.failure.clone();
        drop(state);
        let is_believed = failure.as_ref().is_none_or(|failure| failure.kind == FailureKind::Unreachable);
        let status = match &report {
            Some(report) if is_believed && report.age(now) < down_after => report.status,
            _ => Status::Down,
        };
        let error = match (failure, &report) {
            (Some(failure), _) => Some(failure.reason),
            (None, _) if status != Status::Down => None,
            (None, None) => Some(format!("peer {:?} has not answered yet", self.name).into()),
            (None, Some(report)) if report.age(now) < down_after => {
                Some(format!("peer {:?} reports that it is down", self.name).into())
            }
            (None, Some(report)) => {
                Some(format!("peer {:?} has not answered for {:.1?}", self.name, report.age(now)).into())
            }
        };
        let name = self.name.clone();
        let url = self.url.clone();
        PeerSnapshot { index: self.index, name, url, weight: self.weight, status, error, report }
    }

    pub(crate) fn report(&self) -> Option<Arc<ReceivedReport>> {
        self.state.lock().report.clone()
    }

    /// Stores a valid report, unless a newer one is known.
    pub(crate) fn record_report(&self, report: ReceivedReport, source: ReportSource) {
        let mut state = self.state.lock();
        let is_newer = match &state.report {
            None => true,
            Some(known) if known.boot == report.boot => known.sequence < report.sequence,
            Some(_) => source == ReportSource::Poll,
        };
        let is_current = is_newer || source == ReportSource::Poll;
        let recovered = if is_current { state.failure.take() } else { None };
        if is_newer {
            state.report = Some(Arc::new(report));
        }
        drop(state);
        if recovered.is_some() {
            info!(peer = %self.name, "peer answers again");
        }
    }

    /// Stores the failure of a poll; it is logged if it differs from the last one.
    pub(crate) fn record_failure(&self, kind: FailureKind, reason: String) {
        let mut state = self.state.lock();
        let is_known = state.failure.as_ref().is_some_and(|known| *known.reason == *reason);
        if is_known {
            return;
        }
        state.failure = Some(Failure { kind, reason: reason.as_str().into() });
        drop(state);
        warn!(peer = %self.name, "{reason}");
    }

    /// Stores the result for an incoming poll; returns true if it differs from the last one.
    pub(crate) fn record_signature_check(&self, check: SignatureCheck) -> bool {
        let mut state = self.state.lock();
        core::mem::replace(&mut state.last_check, check) != check
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::BootId;

    const DOWN_AFTER: Duration = Duration::from_secs(3);

    fn peer() -> Peer {
        let url = "http://10.0.0.2:8080".to_owned();
        let origin = Origin::parse(&url).unwrap();
        Peer::new(0, PeerOptions { name: "b".to_owned(), origin, url, weight: Weight::ONE })
    }

    fn report(boot: u64, sequence: u64, received_at: Instant) -> ReceivedReport {
        let status = Status::Serving;
        ReceivedReport {
            boot: BootId(boot),
            sequence,
            clock_ms: 0,
            measured_at: received_at,
            received_at,
            status,
            pools: vec![],
        }
    }

    /// Returns boot and sequence of the known report.
    fn known(peer: &Peer) -> (u64, u64) {
        let report = peer.report().unwrap();
        (report.boot.0, report.sequence)
    }

    #[test]
    fn a_peer_is_down_three_seconds_after_its_last_report() {
        let peer = peer();
        let now = Instant::now();
        peer.record_report(report(1, 0, now), ReportSource::Poll);
        let status = |after| peer.snapshot(now + after, DOWN_AFTER).status;
        assert_eq!(status(Duration::from_millis(2_999)), Status::Serving);
        assert_eq!(status(DOWN_AFTER), Status::Down);
        let error = peer.snapshot(now + DOWN_AFTER, DOWN_AFTER).error;
        assert_eq!(error.as_deref(), Some(r#"peer "b" has not answered for 3.0s"#));
    }

    #[test]
    fn an_answer_that_is_not_believed_turns_a_peer_down_at_once() {
        let peer = peer();
        let now = Instant::now();
        peer.record_report(report(1, 0, now), ReportSource::Poll);
        peer.record_failure(FailureKind::Unreachable, "does not answer".to_owned());
        assert_eq!(peer.snapshot(now, DOWN_AFTER).status, Status::Serving);
        peer.record_failure(FailureKind::Invalid, "sent a wrong signature".to_owned());
        assert_eq!(peer.snapshot(now, DOWN_AFTER).status, Status::Down);
        peer.record_report(report(1, 1, now), ReportSource::Poll);
        assert_eq!(peer.snapshot(now, DOWN_AFTER).status, Status::Serving);
    }

    #[test]
    fn an_older_report_never_replaces_a_newer_one() {
        let peer = peer();
        let now = Instant::now();
        peer.record_report(report(1, 5, now), ReportSource::Poll);
        for source in [ReportSource::Poll, ReportSource::ForwardedResponse] {
            peer.record_report(report(1, 4, now), source);
            assert_eq!(known(&peer), (1, 5));
        }
        peer.record_report(report(1, 6, now), ReportSource::ForwardedResponse);
        assert_eq!(known(&peer), (1, 6));
        peer.record_report(report(2, 9, now), ReportSource::ForwardedResponse);
        assert_eq!(known(&peer), (1, 6));
        peer.record_report(report(2, 0, now), ReportSource::Poll);
        assert_eq!(known(&peer), (2, 0));
    }
}
