//! Hand-over: a request for which this node has no room goes to a peer, and a request of a transaction goes to the node
//! that owns it.
//!
//! A ticket carries the request's authority to the peer: in the URL of a redirect that the client follows, or in a header
//! if this node forwards the request itself.
//!
//! Guarantees: with room, no peer is considered. A request takes at most [`HOPS_MAX`] hops and visits no node twice. A
//! forwarded request is never executed twice: if the peer may have executed it, its outcome is unknown; if the peer
//! certainly did not, it goes to another peer or waits here.

mod transfer;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_cluster::{Cluster, PeerSnapshot};
use evenkeel_pipeline::{PeerFigures, PeerId, RedirectDecision, RedirectMode, RedirectRequest};
use evenkeel_policy::score::{NodeStats, RequestKind, Status};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_telemetry::{HandoverFailure, Step};
use http::{HeaderMap, HeaderName, HeaderValue};

use self::transfer::{
    ForwardGuards, ForwardedRequest, HOPS_MAX, HopHistory, TransferError, forward, redirect,
};
use crate::api::SqlApi;
use crate::database::Database;
use crate::datasource::AccessMode;
use crate::error::SqlError;
use crate::idempotency;
use crate::received::ReceivedRequest;
use crate::stats::Activity;
use crate::transaction::{OpenTransaction, TransactionOwner};

/// Header with which a client chooses whether its request is redirected or forwarded.
const MODE: HeaderName = HeaderName::from_static("x-evenkeel-redirect");

/// A request that may be handed over to a peer.
#[derive(Clone, Copy)]
pub(crate) struct HandoverRequest<'a> {
    pub(crate) received: &'a ReceivedRequest,
    pub(crate) database: &'a Arc<Database>,
    pub(crate) kind: RequestKind,
    pub(crate) access: AccessMode,
    /// Time limit of the request.
    pub(crate) time_max: Duration,
    /// Mode that applies if the client chooses none.
    pub(crate) mode: RedirectMode,
}

/// A transaction of this node, or the response of the node that owns it.
pub(crate) enum FoundTransaction {
    Here(Arc<OpenTransaction>),
    Elsewhere(Response),
}

impl SqlApi {
    /// Hands a request over to a peer if this node has no room for it and the peer is better; `None` if it stays here.
    pub(crate) async fn hand_over(&self, request: HandoverRequest<'_>) -> Result<Option<Response>, SqlError> {
        let mode = mode_of(&request.received.headers)?.unwrap_or(request.mode);
        let Some(cluster) = &self.cluster else { return Ok(None) };
        // A repeat finds its stored response only on the node that stored it.
        if idempotency::key(&request.received.headers)?.is_some() {
            return Ok(None);
        }
        let Some(history) = HopHistory::of(request.received, cluster) else { return Ok(None) };
        let mut excluded = history.visited_peers(cluster);
        while let Some(peer) = self.choose_peer(cluster, request, mode, &excluded) {
            let sent = match mode {
                RedirectMode::ByClient => redirect(cluster, peer, request.received, &history),
                RedirectMode::Forward => {
                    let on_end = ForwardGuards {
                        _session: Some(request.database.stats.begin(Activity::HttpSession)),
                        _forwarded: Some(ForwardedRequest {
                            database: request.database.clone(),
                            scheduler: self.scheduler.clone(),
                            peer,
                            kind: request.kind,
                        }),
                    };
                    self.forward(cluster, peer, request.received, &history, request.time_max, on_end).await
                }
            };
            match sent {
                Ok(response) => return Ok(Some(response)),
                Err(TransferError::NotExecuted { reason }) => {
                    let node = &cluster.peers()[peer.0 as usize].name;
                    tracing::warn!(peer = %node, reason, "could not hand a request over; trying another node");
                    excluded.push(peer);
                }
                Err(TransferError::Lost { node, reason }) => return Err(SqlError::PeerLost { node, reason }),
            }
        }
        Ok(None)
    }

    /// Forwards a request and records the result.
    async fn forward(
        &self,
        cluster: &Cluster,
        peer: PeerId,
        received: &ReceivedRequest,
        history: &HopHistory,
        time_max: Duration,
        on_end: ForwardGuards,
    ) -> Result<Response, TransferError> {
        let started = self.scheduler.now();
        let sent = forward(cluster, peer, received, history, time_max, on_end).await;
        let step = match &sent {
            Ok(_) => Step::PeerAnswered { peer, after: self.scheduler.now().since(started) },
            Err(TransferError::NotExecuted { .. }) => {
                Step::PeerFailed { peer, failure: HandoverFailure::NotExecuted }
            }
            Err(TransferError::Lost { .. }) => {
                Step::PeerFailed { peer, failure: HandoverFailure::OutcomeUnknown }
            }
        };
        self.record(received, step);
        sent
    }

    /// Records a step of a request that is not in the pipeline.
    fn record(&self, received: &ReceivedRequest, step: Step) {
        let ids = &received.ids;
        self.scheduler.record_outside(ids.outside, received.tenant.id, ids.name(), step);
    }

    /// Asks the pipeline for a peer that should serve the request.
    fn choose_peer(
        &self,
        cluster: &Cluster,
        request: HandoverRequest<'_>,
        mode: RedirectMode,
        excluded: &[PeerId],
    ) -> Option<PeerId> {
        let database = request.database;
        let database_id = database.shared_id()?;
        let pool = database.pool(request.access);
        let ids = &request.received.ids;
        let tenant = request.received.tenant.id;
        let mut redirect = RedirectRequest {
            request: ids.outside,
            tenant,
            node: pool.node,
            model: pool.model,
            kind: request.kind,
            mode,
            own: database.session_counts(self.is_draining()),
            peers: &[],
            excluded,
        };
        // Most requests find room, and need neither the measurements of this node nor the figures of its peers.
        if self.scheduler.inspect(|pipeline| pipeline.has_room(&redirect)) {
            return None;
        }
        let peers: Vec<PeerFigures> =
            cluster.peers().iter().filter_map(|peer| self.figures(peer, database_id)).collect();
        if peers.is_empty() {
            return None;
        }
        redirect.own = self.node_stats(database);
        redirect.peers = &peers;
        let random = random_unit();
        let decision = self.scheduler.update(|pipeline, now| {
            pipeline.decide_redirect(now, &mut database.redirector.lock(), redirect, random)
        });
        match decision {
            RedirectDecision::ServeHere | RedirectDecision::Wait(_) => None,
            RedirectDecision::Redirect { peer, .. } => {
                self.scheduler.observer().request_log().set_name(ids.outside, tenant, ids.name());
                Some(peer)
            }
        }
    }

    /// Returns the latest figures of a peer for the database with this id.
    pub(crate) fn figures(&self, peer: &PeerSnapshot, database_id: &str) -> Option<PeerFigures> {
        let received = peer.report.as_ref()?;
        let pool = received.pools.iter().find(|pool| pool.database_id == database_id)?;
        // A peer that drains as a whole, or that is not believed, is no candidate whatever its figures say.
        let status = match peer.status {
            Status::Serving => pool.stats.status,
            Status::Draining | Status::Down => peer.status,
        };
        Some(PeerFigures {
            peer: PeerId(u32::try_from(peer.index).ok()?),
            weight: peer.weight,
            stats: NodeStats { status, ..pool.stats },
            measured_at: self.scheduler_time(received.received_at.into_std()),
        })
    }

    /// Finds a transaction of this node, or forwards the request to the node that owns it.
    pub(crate) async fn find_transaction(
        &self,
        tx_id: &str,
        received: &ReceivedRequest,
        time_max: Duration,
    ) -> Result<FoundTransaction, SqlError> {
        let node = match self.transactions.find(tx_id, &received.tenant)? {
            TransactionOwner::ThisNode(open) => {
                self.record(received, Step::InTransaction { node: open.pool.node });
                return Ok(FoundTransaction::Here(open));
            }
            TransactionOwner::Peer(node) => node,
        };
        let Some(cluster) = &self.cluster else { return Err(SqlError::UnknownTransaction) };
        let peer = cluster.peers().iter().position(|peer| *peer.name == *node);
        let peer = peer.ok_or_else(|| SqlError::UnknownOwner { node: node.clone() })?;
        let unreachable = |reason: String| SqlError::OwnerUnreachable { node: node.clone(), reason };
        let Some(history) = HopHistory::of(received, cluster) else {
            return Err(unreachable(format!("the request has taken {HOPS_MAX} hops")));
        };
        let session = self.databases.first().map(|database| database.stats.begin(Activity::HttpSession));
        let on_end = ForwardGuards { _session: session, _forwarded: None };
        let peer = PeerId(peer as u32);
        self.record(received, Step::SentToOwner { peer });
        match self.forward(cluster, peer, received, &history, time_max, on_end).await {
            Ok(response) => Ok(FoundTransaction::Elsewhere(response)),
            Err(TransferError::NotExecuted { reason }) => Err(unreachable(reason)),
            Err(TransferError::Lost { node, reason }) => Err(SqlError::PeerLost { node, reason }),
        }
    }
}

/// Reads the mode that the client chose.
fn mode_of(headers: &HeaderMap) -> Result<Option<RedirectMode>, ApiError> {
    match headers.get(MODE).map(HeaderValue::as_bytes) {
        None => Ok(None),
        Some(b"redirect") => Ok(Some(RedirectMode::ByClient)),
        Some(b"forward") => Ok(Some(RedirectMode::Forward)),
        Some(_) => Err(ApiError::invalid("X-Evenkeel-Redirect must be \"redirect\" or \"forward\"")),
    }
}

/// Draws a number in 0..1.
fn random_unit() -> f64 {
    let bits = RandomState::new().hash_one(0) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}
