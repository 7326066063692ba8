//! Open transactions: an actor each, found by a signed id.
//!
//! Guarantees: a transaction runs one statement at a time; a second one is rejected before it reaches the actor. A
//! transaction that is idle for too long, or open for too long, is rolled back. How it ended is remembered for
//! [`REMEMBER_MAX`]. A statement whose client disconnects is cancelled; its transaction stays open, as failed on PostgreSQL,
//! unless the statement had ended it.
//!
//! Limits: one entry per slot of the scheduler; [`ENDED_MAX`] ended transactions.

mod actor;
mod ended;
mod tx_id;

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    ActorRef, ActorSystemConfig, ActorSystemRunner, Props, ReadyQueueScheduler, StartError,
};
use evenkeel_policy::id::TenantId;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::database::{Database, LentConnection, PoolNode};
use crate::datasource::{AccessMode, TransactionStatus};
use crate::error::SqlError;
use crate::held_slot::HeldSlot;
use crate::hrana::StreamState;
use crate::options::SqlLimits;
use crate::stats::{Activity, ActivityGuard};
use actor::{TransactionActor, TransactionMsg};
use ended::EndedTransactions;
use tx_id::TxIdSigner;
use tx_id::{TxId, TxIdIssuer};

/// Time for which the end of a transaction is remembered.
pub(crate) const REMEMBER_MAX: Duration = Duration::from_secs(300);
/// Ended transactions that are remembered; the oldest are forgotten first.
pub(crate) const ENDED_MAX: usize = 100_000;
/// Actors at once: a transaction needs a connection, so the scheduler limits them far below this.
const ACTORS_MAX: u32 = 1 << 16;
/// Time that an actor may take to handle a request to end its transaction.
const RECLAIM_WAIT_MAX: Duration = Duration::from_secs(1);
/// Time that an actor, which never blocks, may take to hand over its connection.
const CHECK_OUT_MAX: Duration = Duration::from_secs(10);

/// The way in which a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Commit,
    Rollback,
    /// A statement that should have ended it failed, and the database rolled it back.
    FailedCommit,
    IdleTimeout,
    TimeLimit,
    /// It was idle while others needed its place: above its tenant's share, or SQLite's only writer.
    Reclaimed,
    ConnectionLost,
    /// Its client disconnected without a way to continue it, or closed its stream.
    Abandoned,
    /// The statement that ended it did not finish, or nobody waited for it.
    UnknownOutcome,
    Shutdown,
}

impl fmt::Display for EndedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit => "it was committed",
            Self::Rollback => "it was rolled back",
            Self::FailedCommit => "the database rolled it back instead of committing it",
            Self::IdleTimeout => "it was idle for too long and was rolled back",
            Self::TimeLimit => "it was open for too long and was rolled back",
            Self::Reclaimed => {
                "it was idle while other requests waited for its connection, and was rolled back"
            }
            Self::ConnectionLost => "its connection was lost or had to be closed, so it was rolled back",
            Self::Abandoned => "its client disconnected or closed it, and it was rolled back",
            Self::UnknownOutcome => {
                "the statement that ended it did not finish or was not awaited, so its outcome is unknown"
            }
            Self::Shutdown => "the server was shut down, and it was rolled back",
        })
    }
}

/// All open transactions of this node.
pub(crate) struct Transactions {
    system: ReadyQueueScheduler,
    limits: SqlLimits,
    signer: TxIdSigner,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenTransaction>>>,
    /// Set by `drain` under the lock of `open`: no transaction is opened afterwards.
    draining: AtomicBool,
    ended: Mutex<EndedTransactions>,
    /// Signals that a transaction has ended.
    changed: Notify,
    /// Transactions that were asked to end, until their slots are free.
    reclaimed: Mutex<Vec<Reclaimed>>,
}

/// A transaction that was asked to end because others need its place.
struct Reclaimed {
    number: u64,
    pool: PoolNode,
    tenant: TenantId,
    held: Arc<HeldSlot>,
    requested_at: Instant,
}

/// The node that holds the connection of a transaction.
pub(crate) enum TransactionOwner {
    ThisNode(Arc<OpenTransaction>),
    /// Another node, by name; the transaction may have ended there.
    Peer(String),
}

/// An open transaction.
pub(crate) struct OpenTransaction {
    number: u64,
    pub(crate) tenant: TenantId,
    tenant_name: String,
    pub(crate) database: Arc<Database>,
    pub(crate) pool: PoolNode,
    held: Arc<HeldSlot>,
    actor: ActorRef<TransactionMsg>,
    /// Set while a request asks for or has the transaction's connection, until it is returned.
    busy: AtomicBool,
    /// Signals that the connection was returned, or that the transaction has ended.
    returned: Notify,
    /// Signals that the transaction must end although a statement runs.
    stopped: Notify,
    stopped_by: OnceLock<EndedBy>,
    idle_since: Mutex<Instant>,
    /// State of the Hrana stream that began it.
    pub(crate) stream: Mutex<StreamState>,
    _counted: ActivityGuard,
}

impl Transactions {
    pub(crate) fn start(
        limits: SqlLimits,
        node: &str,
        signing_key: &[u8; 32],
    ) -> Result<Arc<Self>, TransactionsError> {
        let runtime = TokioRuntime::current().ok_or(TransactionsError::NoRuntime)?;
        let config = ActorSystemConfig {
            workers_max: NonZeroUsize::MIN,
            actors_max: ACTORS_MAX,
            ..ActorSystemConfig::with_workers(NonZeroUsize::MIN)
        };
        let system = ActorSystemRunner::new(config).start(runtime)?;
        Ok(Arc::new(Self {
            system,
            limits,
            signer: TxIdSigner::new(node, signing_key).map_err(|_| TransactionsError::NoRandomness)?,
            next: AtomicU64::new(0),
            open: Mutex::default(),
            draining: AtomicBool::new(false),
            ended: Mutex::new(EndedTransactions::new(ENDED_MAX, REMEMBER_MAX)),
            changed: Notify::new(),
            reclaimed: Mutex::default(),
        }))
    }

    /// Registers a transaction that was begun on a connection; returns its id.
    pub(crate) fn open(
        self: &Arc<Self>,
        tenant: &Tenant,
        database: &Arc<Database>,
        access: AccessMode,
        lent: LentConnection,
    ) -> Result<String, ApiError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let held = lent.held.clone();
        let actor = TransactionActor::new(number, Arc::downgrade(self), lent, self.limits);
        let props = Props::of_values().label("transaction").build();
        let mut open = self.open.lock();
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::Draining);
        }
        let actor = self.system.spawn_value(actor, &props).map_err(|_| ApiError::Internal)?;
        let entry = OpenTransaction {
            number,
            tenant: tenant.id,
            tenant_name: tenant.settings.name.clone(),
            database: database.clone(),
            pool: database.pool(access),
            held,
            actor,
            busy: AtomicBool::new(false),
            returned: Notify::new(),
            stopped: Notify::new(),
            stopped_by: OnceLock::new(),
            idle_since: Mutex::new(Instant::now()),
            stream: Mutex::default(),
            _counted: database.stats.begin(Activity::Transaction),
        };
        open.insert(number, Arc::new(entry));
        Ok(self.signer.sign(number, tenant.name_hash))
    }

    /// Finds a transaction that this tenant may use.
    pub(crate) fn find(&self, id: &str, tenant: &Tenant) -> Result<TransactionOwner, SqlError> {
        let TxId { number, issuer, tenant_hash } = self.signer.verify(id).ok_or(SqlError::InvalidTxId)?;
        if tenant_hash != tenant.name_hash {
            return Err(SqlError::ForeignTransaction);
        }
        match issuer {
            TxIdIssuer::ThisProcess => {}
            TxIdIssuer::EarlierProcess => return Err(SqlError::UnknownTransaction),
            TxIdIssuer::Peer(node) => return Ok(TransactionOwner::Peer(node)),
        }
        let found = self.open.lock().get(&number).cloned();
        match found {
            Some(open) if open.tenant_name == tenant.settings.name => Ok(TransactionOwner::ThisNode(open)),
            Some(_) => Err(SqlError::ForeignTransaction),
            None => Err(self.ended_error(number)),
        }
    }

    /// Returns the way in which a transaction ended; `None` while it is open.
    pub(crate) fn end_of(&self, transaction: &OpenTransaction) -> Option<SqlError> {
        let is_open = self.open.lock().contains_key(&transaction.number);
        (!is_open).then(|| self.ended_error(transaction.number))
    }

    /// Rolls back a transaction that its client cannot continue.
    pub(crate) fn abandon(&self, transaction: &OpenTransaction) {
        transaction.actor.tell(TransactionMsg::End(EndedBy::Abandoned));
    }

    /// Finds a transaction of this node that this tenant may use.
    pub(crate) fn find_here(&self, id: &str, tenant: &Tenant) -> Result<Arc<OpenTransaction>, SqlError> {
        match self.find(id, tenant)? {
            TransactionOwner::ThisNode(open) => Ok(open),
            TransactionOwner::Peer(node) => Err(SqlError::UnknownOwner { node }),
        }
    }

    fn ended_error(&self, number: u64) -> SqlError {
        let ended_by = self.ended.lock().get(number, Instant::now());
        ended_by.map_or(SqlError::UnknownTransaction, SqlError::TransactionEnded)
    }

    /// Lends the connection of a transaction to a request.
    pub(crate) async fn check_out(
        self: &Arc<Self>,
        open: Arc<OpenTransaction>,
    ) -> Result<CheckedOut, SqlError> {
        if open.busy.swap(true, Ordering::AcqRel) {
            return Err(SqlError::TransactionBusy);
        }
        // Dropping the `CheckedOut` clears `busy`, even if this future is dropped before it reads the reply.
        let ask = open.actor.ask(|reply| TransactionMsg::CheckOut(open.clone(), reply));
        match ask.within(CHECK_OUT_MAX).await {
            Ok(Some(checked_out)) => Ok(checked_out),
            // It ended meanwhile, or its actor did not reply within `CHECK_OUT_MAX`.
            Ok(None) | Err(_) => Err(self.ended_error(open.number)),
        }
    }

    /// Lends the connection once a statement that is being cancelled has ended, until `deadline`.
    pub(crate) async fn check_out_recovered(
        self: &Arc<Self>,
        open: &Arc<OpenTransaction>,
        deadline: Instant,
    ) -> Result<CheckedOut, SqlError> {
        loop {
            let returned = open.returned.notified();
            tokio::pin!(returned);
            returned.as_mut().enable();
            match self.check_out(open.clone()).await {
                Err(SqlError::TransactionBusy) => {}
                result => return result,
            }
            if let Some(error) = self.end_of(open) {
                return Err(error);
            }
            let waited = tokio::time::timeout_at(deadline.into(), returned).await;
            waited.map_err(|_| SqlError::TransactionBusy)?;
        }
    }

    /// Moves a transaction from the open to the ended ones.
    fn close(&self, number: u64, ended_by: EndedBy) {
        let closed = self.open.lock().remove(&number);
        if let Some(open) = closed {
            open.returned.notify_waiters();
            self.ended.lock().insert(number, ended_by, Instant::now());
            self.changed.notify_waiters();
        }
    }

    /// Rolls back up to `count` transactions of a pool that were idle for `transaction_contended_idle_max`, longest idle
    /// first; of one tenant, or of all.
    pub(crate) fn reclaim(&self, pool: PoolNode, tenant: Option<TenantId>, count: u32) {
        let count = count.saturating_sub(self.count_reclaimed(pool, tenant));
        let idle_max = self.limits.transaction_contended_idle_max;
        let mut idle: Vec<_> = {
            let open = self.open.lock();
            let candidates = open.values().filter(|open| {
                open.pool == pool
                    && tenant.is_none_or(|tenant| open.tenant == tenant)
                    && !open.busy.load(Ordering::Acquire)
                    && idle_max <= open.idle_since.lock().elapsed()
            });
            candidates.cloned().collect()
        };
        idle.sort_by_key(|open| *open.idle_since.lock());
        for open in idle.into_iter().take(count as usize) {
            self.reclaimed.lock().push(Reclaimed {
                number: open.number,
                pool,
                tenant: open.tenant,
                held: open.held.clone(),
                requested_at: Instant::now(),
            });
            open.actor.tell(TransactionMsg::End(EndedBy::Reclaimed));
        }
    }

    /// Counts the transactions that were asked to end and still hold their slots.
    fn count_reclaimed(&self, pool: PoolNode, tenant: Option<TenantId>) -> u32 {
        let open = self.open.lock();
        let mut reclaimed = self.reclaimed.lock();
        // A transaction that is still open after a second ran a statement meanwhile and goes on.
        reclaimed.retain(|one| {
            one.held.is_held()
                && (one.requested_at.elapsed() < RECLAIM_WAIT_MAX || !open.contains_key(&one.number))
        });
        let matching =
            |one: &&Reclaimed| one.pool == pool && tenant.is_none_or(|tenant| one.tenant == tenant);
        u32::try_from(reclaimed.iter().filter(matching).count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Waits until every transaction has ended; rolls back those that are still open after `drain_max`.
    pub(crate) async fn drain(&self, drain_max: Duration) {
        {
            let _open = self.open.lock();
            self.draining.store(true, Ordering::Relaxed);
        }
        let all_ended = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.len() == 0 {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(drain_max, all_ended).await.is_ok() {
            return;
        }
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        for transaction in open {
            transaction.actor.tell(TransactionMsg::End(EndedBy::Shutdown));
        }
    }

    pub(crate) fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.system.metrics().write_prometheus(out)
    }
}

/// The connection of a transaction, lent to one request. Dropping it cancels a statement that still runs, then returns
/// the connection to the transaction.
pub(crate) struct CheckedOut {
    lent: Option<LentConnection>,
    /// The end to record if the connection is lost: unknown while a commit runs.
    pub(crate) ends_if_lost: EndedBy,
    pub(crate) open: Arc<OpenTransaction>,
    transactions: Arc<Transactions>,
}

impl CheckedOut {
    pub(crate) fn connection(&mut self) -> Option<&mut LentConnection> {
        self.lent.as_mut()
    }

    /// Ends the transaction, whose connection goes back to the pool.
    pub(crate) fn end(mut self, ended_by: EndedBy) {
        self.lent = None;
        self.transactions.close(self.open.number, ended_by);
        self.open.actor.tell(TransactionMsg::Ended);
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        let open = self.open.clone();
        let transactions = self.transactions.clone();
        let ended_by = self.ends_if_lost;
        if lent.is_clean {
            open.take_back(lent);
            return;
        }
        tokio::spawn(async move {
            let mut lent = lent;
            match lent.connection.recover().await {
                // The statement ended the transaction, such as a COMMIT whose client did not wait for its end.
                Ok(()) if lent.connection.transaction_status() == TransactionStatus::Idle => {
                    drop(lent);
                    transactions.close(open.number, EndedBy::UnknownOutcome);
                    open.actor.tell(TransactionMsg::Ended);
                }
                Ok(()) => open.take_back(lent),
                Err(_) => {
                    transactions.close(open.number, ended_by);
                    open.actor.tell(TransactionMsg::Ended);
                }
            }
        });
    }
}

impl OpenTransaction {
    /// Waits until the transaction must end although a statement runs, and returns the reason.
    pub(crate) async fn stopped(&self) -> EndedBy {
        loop {
            self.stopped.notified().await;
            if let Some(ended_by) = self.stopped_by.get() {
                return *ended_by;
            }
        }
    }

    /// Stops the running statement, because the transaction must end.
    fn stop(&self, ended_by: EndedBy) {
        // The first reason stays.
        let _ = self.stopped_by.set(ended_by);
        self.stopped.notify_one();
    }

    fn take_back(&self, mut lent: LentConnection) {
        lent.is_clean = true;
        *self.idle_since.lock() = Instant::now();
        self.actor.tell(TransactionMsg::Return(lent));
        // Cleared after `Return` is sent, so that the next `CheckOut` is queued behind it.
        self.busy.store(false, Ordering::Release);
        self.returned.notify_waiters();
    }
}

/// Error that prevents transactions from being served.
#[derive(Debug, thiserror::Error)]
pub enum TransactionsError {
    #[error("no Tokio runtime")]
    NoRuntime,
    #[error("the system's random number generator failed")]
    NoRandomness,
    #[error("could not start the actors of transactions")]
    Actors(#[from] StartError),
}
