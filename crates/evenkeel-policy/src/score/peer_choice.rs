//! Reasons of the decision to hand a request over to a peer, and their text for logs and dashboards.
//!
//! Limits: storing and formatting a reason allocates nothing.

use core::fmt;
use core::time::Duration;

use super::choice_reason::ScoreBreakdown;
use super::gate::Gate;
use super::node::Status;

/// Reason why a peer is no candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerGate {
    /// Its last figures are older than `down_after`.
    #[error("no figures for {} ms, counts as {}", age.as_millis(), Status::Down)]
    Silent {
        /// Age of its figures.
        age: Duration,
    },
    /// Its figures close a gate.
    #[error(transparent)]
    Closed(#[from] Gate),
}

/// Reason why a gateway has no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoRoomReason {
    /// It accepts no new work.
    NotServing(Status),
    /// It serves as many requests as it may.
    SessionsFull,
    /// Every connection is in use, or requests that arrived earlier wait for the free ones.
    ConnectionsFull,
    /// Every transaction place is in use, or requests that arrived earlier wait for the free ones.
    TransactionsFull,
}

impl fmt::Display for NoRoomReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServing(status) => write!(f, "this gateway is {status}"),
            Self::SessionsFull => f.write_str("too many requests are in progress here"),
            Self::ConnectionsFull => f.write_str("no database connection is free for this request"),
            Self::TransactionsFull => f.write_str("no transaction place is free for this request"),
        }
    }
}

/// Reason why no peer was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoPeerReason {
    /// There is no peer, or every peer is excluded.
    NoPeer,
    /// Every peer is gated.
    AllGated {
        /// Number of peers.
        peers: usize,
    },
    /// No open peer scores better than this gateway.
    NoneBetter {
        /// Score of this gateway.
        own_score: f64,
        /// Best score of an open peer.
        best_score: f64,
    },
    /// The only better peers have stale figures or are full by estimate, and the budget for those is spent.
    BudgetSpent,
}

impl fmt::Display for NoPeerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeer => f.write_str("there is no peer to hand over to"),
            Self::AllGated { peers: 1 } => f.write_str("the only peer is full, slow, failing or down"),
            Self::AllGated { peers } => write!(f, "all {peers} peers are full, slow, failing or down"),
            Self::NoneBetter { own_score, best_score } => {
                write!(f, "no peer scores better than this gateway: {best_score:.2} against {own_score:.2}")
            }
            Self::BudgetSpent => {
                f.write_str("the budget for peers with stale figures or full by estimate is spent")
            }
        }
    }
}

/// Reason why a request was handed over to a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedirectReason {
    /// Shortage at this gateway.
    pub no_room: NoRoomReason,
    /// Score of the peer and its result in the draw.
    pub breakdown: ScoreBreakdown,
    /// Score of this gateway.
    pub own_score: f64,
    /// Age of the peer's figures.
    pub age: Duration,
}

impl fmt::Display for RedirectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { no_room, breakdown, own_score, age } = self;
        let age_ms = age.as_millis();
        write!(f, "{no_room}; {breakdown}; own score {own_score:.2}, figures {age_ms} ms old")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::{LatencyBasis, Limits, RequestKind};
    use alloc::string::ToString;

    #[test]
    fn each_reason_is_a_plain_sentence() {
        let sub_scores = Limits::default().sub_scores(&crate::score::tests::example_node());
        let breakdown = ScoreBreakdown {
            request: RequestKind::Query,
            score: 0.82,
            sub_scores,
            latency: LatencyBasis::Absolute,
            position: 1,
            open: 2,
            drawn_from: 2,
            chance: 0.6,
        };
        let reason = RedirectReason {
            no_room: NoRoomReason::ConnectionsFull,
            breakdown,
            own_score: 0.5,
            age: Duration::from_millis(120),
        };
        assert_eq!(
            reason.to_string(),
            "no database connection is free for this request; best of 2 by score 0.82, drawn from 2 with a chance of 60 %: \
             db free 0.80, http free 0.75, tx free 0.90, latency 0.50, errors 0.80, timeouts 0.75, waiting 0.90, \
             idle 0.10, uptime 0.50; own score 0.50, figures 120 ms old"
        );
        let no_room = [
            (NoRoomReason::NotServing(Status::Draining), "this gateway is DRAINING"),
            (NoRoomReason::SessionsFull, "too many requests are in progress here"),
            (NoRoomReason::TransactionsFull, "no transaction place is free for this request"),
        ];
        for (reason, text) in no_room {
            assert_eq!(reason.to_string(), text);
        }
        let no_peer = [
            (NoPeerReason::NoPeer, "there is no peer to hand over to"),
            (NoPeerReason::AllGated { peers: 1 }, "the only peer is full, slow, failing or down"),
            (NoPeerReason::AllGated { peers: 3 }, "all 3 peers are full, slow, failing or down"),
            (
                NoPeerReason::NoneBetter { own_score: 0.5, best_score: 0.4 },
                "no peer scores better than this gateway: 0.40 against 0.50",
            ),
            (
                NoPeerReason::BudgetSpent,
                "the budget for peers with stale figures or full by estimate is spent",
            ),
        ];
        for (reason, text) in no_peer {
            assert_eq!(reason.to_string(), text);
        }
        let silent = PeerGate::Silent { age: Duration::from_millis(3_500) };
        assert_eq!(silent.to_string(), "no figures for 3500 ms, counts as DOWN");
        assert_eq!(PeerGate::from(Gate::DbFull).to_string(), "every database connection is in use");
    }
}
