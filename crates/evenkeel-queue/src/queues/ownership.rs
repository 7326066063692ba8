//! Ownership of queues: starts the actor of each queue, and restarts one that stopped unexpectedly.
//!
//! Each new owner gets a higher owner epoch from the store. The epoch is a fencing token: writes of an earlier owner
//! are rejected.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Instant;

use core::num::NonZeroUsize;
use core::time::Duration;

use evenkeel_actor::{ActorRef, MailboxOptions, Props};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::{OpenError, Queues};
use crate::id::{KeyId, QueueId};
use crate::job_status::JobStatusTable;
use crate::message::AppendedMessage;
use crate::queue::{ActiveOwner, Owner, Queue, QueueInner, RestartBackoff};
use crate::queue_actor::{
    ActorStopped, AtomicCountAndBytes, DeadLetterMoves, DropNotifier, Msg, QueueActor, SharedQueueTotals,
};
use crate::queue_state::{QueueState, StoredKey, StoredMessage};
use crate::store::{AppendListener, Ownership, QueueRecord, Store};
use crate::time::UnixMillis;

/// Mailbox capacity: more than the store's write queue and all requests together, so that no append is rejected.
const MAILBOX: NonZeroUsize = NonZeroUsize::new(1 << 19).expect("2¹⁹ is not zero");
/// Label of all queue actors in metrics, because clients choose the names and the number of queues.
const ACTOR_LABEL: &str = "queue";
/// Delay before the next attempt to restart a queue that could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Forwards appended messages to the queue actor; buffers them until it has started.
struct AppendForwarder {
    queue: QueueId,
    gauge: Arc<SharedQueueTotals>,
    mailbox: Arc<AtomicCountAndBytes>,
    target: Mutex<ForwardTarget>,
}

enum ForwardTarget {
    /// Messages appended while the queue is being recovered.
    Buffer(Vec<AppendedMessage>),
    Actor(ActorRef<Msg>),
}

impl AppendForwarder {
    fn new(queue: QueueId, gauge: Arc<SharedQueueTotals>) -> Arc<Self> {
        let target = Mutex::new(ForwardTarget::Buffer(Vec::new()));
        Arc::new(Self { queue, gauge, mailbox: Arc::default(), target })
    }

    fn listener(self: &Arc<Self>) -> AppendListener {
        let forwarder = self.clone();
        Arc::new(move |appended| forwarder.on_appended(appended))
    }

    fn on_appended(&self, appended: Vec<AppendedMessage>) {
        self.gauge.move_to_mailbox(&appended, &self.mailbox);
        match &mut *self.target.lock() {
            ForwardTarget::Buffer(buffer) => buffer.extend(appended),
            ForwardTarget::Actor(actor) => self.forward(actor, appended),
        }
    }

    /// Forwards the buffered messages and all later ones to the actor.
    fn connect(&self, actor: ActorRef<Msg>) {
        let mut target = self.target.lock();
        if let ForwardTarget::Buffer(buffer) = &mut *target {
            self.forward(&actor, core::mem::take(buffer));
        }
        *target = ForwardTarget::Actor(actor);
    }

    fn forward(&self, actor: &ActorRef<Msg>, appended: Vec<AppendedMessage>) {
        if let Err(error) = actor.try_tell(Msg::Appended(appended)) {
            // The next actor reads the messages from the store; a deleted queue has none.
            tracing::debug!(queue = self.queue.0, %error, "queue actor is gone, appended messages stay stored");
        }
    }
}

impl Queues {
    /// Takes ownership of queues in one write, recovers each, and starts their actors.
    pub(super) async fn open_all(&self, records: Vec<QueueRecord>) -> Result<Vec<Queue>, OpenError> {
        let queues: Vec<Queue> = records.into_iter().map(|record| self.handle(record)).collect();
        let owned = self.take_ownership(&queues).await?;
        for (queue, (forwarder, ownership)) in queues.iter().zip(owned) {
            self.start_actor(queue, &forwarder, ownership).await?;
            self.table.write().insert(queue);
            self.known.write().insert(queue.id(), queue.descriptor().namespace);
        }
        self.changes.send_replace(());
        Ok(queues)
    }

    fn handle(&self, record: QueueRecord) -> Queue {
        Queue(Arc::new(QueueInner {
            id: record.id,
            store: self.store.clone(),
            known: self.known.clone(),
            signer: self.signer.clone(),
            message_ids: self.message_ids.clone(),
            clock: self.clock,
            gauge: Arc::default(),
            descriptor: RwLock::new(Arc::new(record.descriptor)),
            owner: watch::Sender::new(Owner::Restarting),
            requests: AtomicU64::new(0),
            job_statuses: JobStatusTable::default(),
            rule_lock: Arc::default(),
            restarts: Mutex::new(RestartBackoff::default()),
        }))
    }

    async fn take_ownership(
        &self,
        queues: &[Queue],
    ) -> Result<Vec<(Arc<AppendForwarder>, Ownership)>, OpenError> {
        let forwarders: Vec<Arc<AppendForwarder>> =
            queues.iter().map(|queue| AppendForwarder::new(queue.id(), queue.0.gauge.clone())).collect();
        if forwarders.is_empty() {
            return Ok(Vec::new());
        }
        let listeners = forwarders.iter().map(|forwarder| (forwarder.queue, forwarder.listener())).collect();
        let owned = self.blocking(move |store| store.take_ownership(listeners)).await?;
        Ok(forwarders.into_iter().zip(owned).collect())
    }

    /// Recovers a queue's state and starts its actor.
    async fn start_actor(
        &self,
        queue: &Queue,
        forwarder: &AppendForwarder,
        ownership: Ownership,
    ) -> Result<(), OpenError> {
        let id = queue.id();
        let descriptor = queue.descriptor();
        let secret = self.draw();
        let random = self.draw().0;
        let clock = self.clock;
        let Ownership { epoch, listen_from } = ownership;
        let read = move |store: &dyn Store| {
            Ok((store.read_keys(id, listen_from)?, store.read_delivery_states(id, listen_from)?))
        };
        let (keys, messages) = self.blocking(read).await?;
        let settings = descriptor.settings.in_queue(id);
        let state = QueueState::new(epoch, &settings, secret).map_err(OpenError::Settings)?;
        let state = restore_state(state, clock.now(), &keys, messages)?;
        let unused_keys = keys.iter().filter(|stored| stored.count == 0 && stored.rule.is_empty());
        let stopped = ActorStopped { queue: id, epoch };
        let actor = QueueActor {
            queue: id,
            epoch,
            settings: Arc::new(settings),
            store: self.store.clone(),
            known: self.known.clone(),
            clock,
            state,
            gauge: queue.0.gauge.clone(),
            mailbox: forwarder.mailbox.clone(),
            waiting: VecDeque::new(),
            timer_due: None,
            random,
            prefetching: 0,
            dead_letter_moves: DeadLetterMoves::default(),
            appended: (0, 0),
            unused_keys: unused_keys.map(|stored| stored.key).collect(),
            _drop_notifier: DropNotifier { stopped, sender: self.stopped.clone() },
        };
        queue.0.gauge.replace_actor(actor.state.totals(), forwarder.mailbox.clone());
        let props = Props::of_values().mailbox(MailboxOptions::bounded(MAILBOX)).label(ACTOR_LABEL);
        let props = props.trace_label(descriptor.name.as_str()).build();
        let actor = self.system.spawn_value(actor, &props).map_err(OpenError::Spawn)?;
        forwarder.connect(actor.clone());
        queue.0.owner.send_if_modified(|owner| match owner {
            Owner::Restarting | Owner::Active(_) => {
                *owner = Owner::Active(ActiveOwner { actor, epoch });
                true
            }
            Owner::Deleted | Owner::Stopping => false,
        });
        Ok(())
    }

    /// Restarts the actor of a queue; returns `false` if that failed and must be repeated.
    async fn restart_queue(&self, stopped: ActorStopped) -> bool {
        let _lock = self.change_lock.lock().await;
        let Some(queue) = self.by_id(stopped.queue).filter(|queue| queue.mark_stopped(stopped.epoch)) else {
            return true;
        };
        let name = &queue.descriptor().name;
        match self.reopen(&queue).await {
            Ok(()) => {
                queue.0.restarts.lock().restarts += 1;
                queue.start();
                tracing::info!(queue = %name, "queue actor restarted");
                true
            }
            Err(error) => {
                tracing::error!(queue = %name, %error, "could not restart the queue actor, retrying in 1 s");
                false
            }
        }
    }

    async fn reopen(&self, queue: &Queue) -> Result<(), OpenError> {
        for (forwarder, ownership) in self.take_ownership(core::slice::from_ref(queue)).await? {
            self.start_actor(queue, &forwarder, ownership).await?;
        }
        Ok(())
    }
}

/// Restarts queue actors that stop unexpectedly, until the queues are dropped.
pub(super) async fn restart_stopped(
    queues: Weak<Queues>,
    mut stopped_actors: UnboundedReceiver<ActorStopped>,
) {
    while let Some(stopped) = stopped_actors.recv().await {
        let Some(all) = queues.upgrade() else { return };
        let Some(queue) = all.by_id(stopped.queue) else { continue };
        if !queue.mark_stopped(stopped.epoch) {
            continue;
        }
        let delay = queue.0.restarts.lock().next_delay(Instant::now());
        let name = &queue.descriptor().name;
        tracing::error!(queue = %name, ?delay, "queue actor stopped unexpectedly, restarting");
        // In a task of its own, so that its backoff does not delay the restart of other queues.
        tokio::spawn(restart_one(queues.clone(), stopped, delay));
    }
}

async fn restart_one(queues: Weak<Queues>, stopped: ActorStopped, mut delay: Duration) {
    loop {
        tokio::time::sleep(delay).await;
        let Some(all) = queues.upgrade() else { return };
        if all.restart_queue(stopped).await {
            return;
        }
        delay = RETRY_DELAY;
    }
}

fn restore_state(
    mut state: QueueState,
    now: UnixMillis,
    keys: &[StoredKey],
    messages: Vec<StoredMessage>,
) -> Result<QueueState, OpenError> {
    // If the clock was set back, stored times lie in the future. The clock was set back at least by the time until the
    // latest of them, so leases and delays are shortened by that.
    let latest =
        messages.iter().map(|message| message.first_delivered_at.unwrap_or(message.meta.sent_at)).max();
    let set_back = latest.map_or(Duration::ZERO, |latest| latest.since(now));
    let mut by_key: HashMap<KeyId, Vec<StoredMessage>> = HashMap::new();
    for message in messages {
        by_key.entry(message.key).or_default().push(message.earlier_by(set_back));
    }
    // Rules first, so that each key finds its own rule and its tenant's.
    for stored in keys.iter().filter(|stored| !stored.rule.is_empty()) {
        state.set_rule(now, stored.key, &stored.name, stored.rule);
    }
    for stored in keys {
        let messages = by_key.remove(&stored.key).unwrap_or_default();
        state.resume(now, stored, &messages).map_err(OpenError::Keys)?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, Seq};
    use crate::message::MessageMeta;
    use crate::queue_state::{DeliveryCount, StoredState};
    use crate::rule::KeyRule;
    use crate::settings::QueueSettings;
    use evenkeel_policy::cost::Cost;

    #[test]
    fn a_clock_that_was_set_back_extends_neither_leases_nor_delays() {
        const YEAR_MS: u64 = 365 * 24 * 3_600_000;
        let settings = QueueSettings::default();
        let meta = |seq| MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(YEAR_MS),
            size: 1,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: None,
        };
        let message = |seq, state| StoredMessage {
            key: KeyId(0),
            meta: meta(seq),
            deliveries: DeliveryCount { attempts: 1, released: 0 },
            first_delivered_at: Some(UnixMillis(YEAR_MS + 1_000)),
            state,
        };
        let until = UnixMillis(YEAR_MS + 31_000);
        let messages = vec![
            message(1, StoredState::Leased { until, epoch: Epoch(1) }),
            message(2, StoredState::Delayed { until }),
        ];
        let stored = StoredKey {
            key: KeyId(0),
            name: "a".into(),
            rule: KeyRule::default(),
            requested_weight: None,
            first: Seq(1),
            last: Seq(2),
            count: 2,
            bytes: 2,
            expiring: Vec::new(),
        };
        let state = QueueState::new(Epoch(2), &settings, (1, 2)).unwrap();
        let mut state = restore_state(state, UnixMillis(5_000), &[stored], messages).unwrap();
        assert_eq!(state.expire_leases(UnixMillis(34_999), 10).len(), 0);
        assert_eq!(
            state.expire_leases(UnixMillis(35_000), 10).len(),
            2,
            "a lease or delay was extended by the clock change"
        );
    }
}
