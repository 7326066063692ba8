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
    knowledge: Mutex<Knowledge>,
}

#[derive(Debug, Default)]
struct Knowledge {
    report: Option<Arc<ReceivedReport>>,
    /// Failure of the last poll.
    failure: Option<Failure>,
    /// Reports whether the last request of the peer had a valid signature.
    poll_rejected: bool,
}

#[derive(Clone, Debug)]
struct Failure {
    trust: Trust,
    reason: Arc<str>,
}

/// Consequence of a failed poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The peer did not answer: its last report counts until it is too old.
    Kept,
    /// The answer cannot be believed: the peer is DOWN at once.
    Lost,
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
            knowledge: Mutex::default(),
        }
    }

    pub(crate) fn snapshot(&self, now: Instant, down_after: Duration) -> PeerSnapshot {
        let knowledge = self.knowledge.lock();
        let report = knowledge.report.clone();
        let failure = knowledge.failure.clone();
        drop(knowledge);
        let is_trusted = failure.as_ref().is_none_or(|failure| failure.trust == Trust::Kept);
        let status = match &report {
            Some(report) if is_trusted && report.age(now) < down_after => report.status,
            _ => Status::Down,
        };
        let is_silent =
            status == Status::Down && report.as_ref().is_none_or(|report| report.status != status);
        let error = match failure {
            Some(failure) => Some(failure.reason),
            None if is_silent => Some(format!("peer {:?} has not answered yet", self.name).into()),
            None if status == Status::Down => {
                Some(format!("peer {:?} reports that it is down", self.name).into())
            }
            None => None,
        };
        let name = self.name.clone();
        let url = self.url.clone();
        PeerSnapshot { index: self.index, name, url, weight: self.weight, status, error, report }
    }

    pub(crate) fn report(&self) -> Option<Arc<ReceivedReport>> {
        self.knowledge.lock().report.clone()
    }

    /// Stores a valid report, unless a newer one is known.
    pub(crate) fn record_report(&self, report: ReceivedReport, source: ReportSource) {
        let mut knowledge = self.knowledge.lock();
        let is_newer = match &knowledge.report {
            None => true,
            Some(known) if known.boot == report.boot => known.sequence < report.sequence,
            Some(_) => source == ReportSource::Poll,
        };
        let is_current = is_newer || source == ReportSource::Poll;
        let recovered = if is_current { knowledge.failure.take() } else { None };
        if is_newer {
            knowledge.report = Some(Arc::new(report));
        }
        drop(knowledge);
        if recovered.is_some() {
            info!(peer = %self.name, "peer answers again");
        }
    }

    /// Stores the failure of a poll; it is logged if it differs from the last one.
    pub(crate) fn record_failure(&self, trust: Trust, reason: String) {
        let mut knowledge = self.knowledge.lock();
        let is_known = knowledge.failure.as_ref().is_some_and(|known| *known.reason == *reason);
        if is_known {
            return;
        }
        knowledge.failure = Some(Failure { trust, reason: reason.as_str().into() });
        drop(knowledge);
        warn!(peer = %self.name, "{reason}");
    }

    /// Records that a poll of this peer was served or rejected; returns true if that has changed.
    pub(crate) fn record_poll_rejected(&self, is_rejected: bool) -> bool {
        let mut knowledge = self.knowledge.lock();
        core::mem::replace(&mut knowledge.poll_rejected, is_rejected) != is_rejected
    }
}
