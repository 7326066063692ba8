//! Hand-over: a request for which this node has no room goes to a peer, and a request of a transaction goes to the node
//! that owns it.
//!
//! A ticket carries the request's authority to the peer: in the URL of a redirect that the client follows, or in a header
//! if this node forwards the request itself.
//!
//! Guarantees: with room, no peer is considered. A request takes at most [`HOPS_MAX`] hops and visits no node twice. A
//! forwarded request is never executed twice: if the peer may have executed it, its outcome is unknown.

mod transfer;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_cluster::{Cluster, PeerSnapshot, PoolReport};
use evenkeel_pipeline::{PeerFigures, PeerId, RedirectDecision, RedirectMode, RedirectRequest};
use evenkeel_policy::score::{NodeStats, RequestKind, Status};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_telemetry::{HandoverFailure, Step};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use self::transfer::{ForwardGuards, ForwardedRequest, HOPS_MAX, Transfer, TransferError};
use crate::api::SqlApi;
use crate::database::Database;
use crate::datasource::AccessMode;
use crate::error::SqlError;
use crate::idempotency;
use crate::received::ReceivedRequest;
use crate::stats::Activity;
use crate::transaction::{OpenTransaction, TransactionOwner};

/// Header that selects redirect or forward.
const MODE: HeaderName = HeaderName::from_static("x-evenkeel-redirect");

/// A request that may be handed over to a peer.
#[derive(Clone, Copy)]
pub(crate) struct HandoverRequest<'a> {
    pub(crate) received: &'a ReceivedRequest,
    pub(crate) database: &'a Arc<Database>,
    pub(crate) kind: RequestKind,
    pub(crate) access: AccessMode,
    pub(crate) deadline: Instant,
    /// Default mode.
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
        let HandoverRequest { received, database, kind, .. } = request;
        received.check_database(database)?;
        let mode = mode_of(&received.headers)?.unwrap_or(request.mode);
        let (Some(cluster), Some(database_id)) = (&self.cluster, database.shared_id()) else {
            return Ok(None);
        };
        // A repeat finds its stored response only on the node that stored it.
        if idempotency::key(&received.headers)?.is_some() || self.has_room(request) {
            return Ok(None);
        }
        let Some(transfer) = Transfer::new(cluster, received, database_id, request.deadline) else {
            return Ok(None);
        };
        let mut excluded = transfer.visited_peers();
        while let Some(peer) = self.choose_peer(cluster, request, mode, &excluded) {
            let sent = match mode {
                RedirectMode::ByClient => transfer.redirect(peer),
                RedirectMode::Forward => {
                    let guards = ForwardGuards {
                        _session: Some(database.stats.begin(Activity::HttpSession)),
                        _forwarded: is_end_seen(kind).then(|| ForwardedRequest {
                            database: database.clone(),
                            scheduler: self.scheduler.clone(),
                            peer,
                            kind,
                        }),
                    };
                    self.forward(&transfer, peer, received, guards).await
                }
            };
            match sent {
                Ok(response) => return Ok(Some(response)),
                Err(TransferError::NotExecuted { reason }) => {
                    let node = &cluster.peers()[peer.0 as usize].name;
                    // Not a warning: the cluster warns once when a peer fails, and this happens for every request.
                    tracing::debug!(peer = %node, reason, "could not hand a request over; trying another node");
                    excluded.push(peer);
                }
                Err(TransferError::OutcomeUnknown { node, reason }) => {
                    return Err(SqlError::PeerLost { node, reason });
                }
            }
        }
        Ok(None)
    }

    /// Forwards a request and records the result.
    async fn forward(
        &self,
        transfer: &Transfer<'_>,
        peer: PeerId,
        received: &ReceivedRequest,
        guards: ForwardGuards,
    ) -> Result<Response, TransferError> {
        let started = self.scheduler.now();
        let sent = transfer.forward(peer, guards).await;
        let step = match &sent {
            Ok(_) => Step::PeerAnswered { peer, after: self.scheduler.now().since(started) },
            Err(TransferError::NotExecuted { .. }) => {
                Step::PeerFailed { peer, failure: HandoverFailure::NotExecuted }
            }
            Err(TransferError::OutcomeUnknown { .. }) => {
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

    /// Reports whether this node can serve a request at once. It needs neither measurements nor the figures of peers.
    fn has_room(&self, request: HandoverRequest<'_>) -> bool {
        let own = request.database.session_counts(self.is_draining());
        let redirect = redirect_request(request, request.mode, own);
        self.scheduler.inspect(|pipeline| pipeline.has_room(&redirect))
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
        // A client cannot go elsewhere if it finds the peer unreachable; this node can.
        let is_reachable = |peer: &&PeerSnapshot| mode == RedirectMode::Forward || peer.error.is_none();
        let snapshots = cluster.peers();
        let reachable = snapshots.iter().filter(is_reachable);
        let peers: Vec<PeerFigures> = reachable.filter_map(|peer| self.figures(peer, database)).collect();
        if peers.is_empty() {
            return None;
        }
        let counted_mode = if is_end_seen(request.kind) { mode } else { RedirectMode::ByClient };
        let redirect = RedirectRequest {
            peers: &peers,
            excluded,
            ..redirect_request(request, counted_mode, self.node_stats(database))
        };
        let random = random_unit();
        let decision = self.scheduler.update(|pipeline, now| {
            pipeline.decide_redirect(now, &mut database.redirector.lock(), redirect, random)
        });
        match decision {
            RedirectDecision::ServeHere | RedirectDecision::Wait(_) => None,
            RedirectDecision::Redirect { peer, .. } => {
                let ids = &request.received.ids;
                let tenant = request.received.tenant.id;
                self.scheduler.observer().request_log().set_name(ids.outside, tenant, ids.name());
                Some(peer)
            }
        }
    }

    /// Returns the latest figures of a peer for a database, which must have the same datasource name there.
    pub(crate) fn figures(&self, peer: &PeerSnapshot, database: &Database) -> Option<PeerFigures> {
        let database_id = database.shared_id()?;
        let received = peer.report.as_ref()?;
        let is_same =
            |pool: &&PoolReport| pool.database_id == database_id && pool.name == database.options.name;
        let pool = received.pools.iter().find(is_same)?;
        // A peer that drains as a whole, or that is not believed, is no candidate whatever its figures say.
        let status = match peer.status {
            Status::Serving => pool.stats.status,
            Status::Draining | Status::Down => peer.status,
        };
        Some(PeerFigures {
            peer: PeerId(u32::try_from(peer.index).ok()?),
            weight: peer.weight,
            stats: NodeStats { status, ..pool.stats },
            measured_at: self.scheduler_time(received.measured_at.into_std()),
        })
    }

    /// Finds a transaction of this node, or forwards the request to the node that owns it.
    ///
    /// A request of an open transaction is exempt from the rate limit. One that is forwarded although its transaction has
    /// ended is not: it costs two nodes.
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
        let response = self.forward_to_owner(&node, received, time_max).await?;
        if response.status() == StatusCode::GONE {
            received.take_request()?;
        }
        Ok(FoundTransaction::Elsewhere(response))
    }

    async fn forward_to_owner(
        &self,
        node: &str,
        received: &ReceivedRequest,
        time_max: Duration,
    ) -> Result<Response, SqlError> {
        let Some(cluster) = &self.cluster else { return Err(SqlError::UnknownTransaction) };
        let peer = cluster.peers().iter().position(|peer| *peer.name == *node);
        let peer = peer.ok_or_else(|| SqlError::UnknownOwner { node: node.to_owned() })?;
        let peer = PeerId(peer as u32);
        let unreachable = |reason: String| SqlError::OwnerUnreachable { node: node.to_owned(), reason };
        let Some(transfer) = Transfer::new(cluster, received, "", Instant::now() + time_max) else {
            return Err(unreachable(format!("the request has taken {HOPS_MAX} hops")));
        };
        self.record(received, Step::SentToOwner { peer });
        match self.forward(&transfer, peer, received, ForwardGuards::default()).await {
            Ok(response) => Ok(response),
            Err(TransferError::NotExecuted { reason }) => Err(unreachable(reason)),
            Err(TransferError::OutcomeUnknown { node, reason }) => Err(SqlError::PeerLost { node, reason }),
        }
    }
}

/// Returns the input of the pipeline's decision, without peers.
fn redirect_request(request: HandoverRequest<'_>, mode: RedirectMode, own: NodeStats) -> RedirectRequest<'_> {
    let pool = request.database.pool(request.access);
    RedirectRequest {
        request: request.received.ids.outside,
        tenant: request.received.tenant.id,
        node: pool.node,
        model: pool.model,
        kind: request.kind,
        mode,
        own,
        peers: &[],
        excluded: &[],
    }
}

/// Reports whether a forwarded request is over when its response is: a transaction goes on after its begin.
fn is_end_seen(kind: RequestKind) -> bool {
    kind != RequestKind::BeginTx
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
