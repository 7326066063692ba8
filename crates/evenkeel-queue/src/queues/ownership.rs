//! How queues get their keepers: all at a start, one when it is made, another when one fell.

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
use crate::queue_actor::{ActorStopped, AtomicTotals, DropNotifier, Msg, QueueActor, QueueGauge};
use crate::queue_state::{QueueState, StoredKey, StoredMessage};
use crate::store::{AppendListener, Ownership, QueueRecord};
use crate::time::UnixMillis;

/// More places than the writer's queue and all questions take together, so that no tail is refused.
const MAILBOX: NonZeroUsize = NonZeroUsize::new(1 << 19).expect("2¹⁹ is not zero");
/// How long to wait before a queue that could not be read is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where a queue's messages are told: set aside until its keeper is there, then to it.
struct AppendForwarder {
    queue: QueueId,
    gauge: Arc<QueueGauge>,
    mail: Arc<AtomicTotals>,
    to: Mutex<ForwardTarget>,
}

enum ForwardTarget {
    /// What was told while the queue was read.
    Early(Vec<AppendedMessage>),
    Keeper(ActorRef<Msg>),
}

impl AppendForwarder {
    fn new(queue: QueueId, gauge: Arc<QueueGauge>) -> Arc<Self> {
        let to = Mutex::new(ForwardTarget::Early(Vec::new()));
        Arc::new(Self { queue, gauge, mail: Arc::default(), to })
    }

    fn tail(self: &Arc<Self>) -> AppendListener {
        let ear = self.clone();
        Arc::new(move |appended| ear.on_appended(appended))
    }

    fn on_appended(&self, appended: Vec<AppendedMessage>) {
        self.gauge.arrive(&appended, &self.mail);
        match &mut *self.to.lock() {
            ForwardTarget::Early(early) => early.extend(appended),
            ForwardTarget::Keeper(keeper) => self.tell(keeper, appended),
        }
    }

    /// Has a keeper told what was set aside, and everything from here on.
    fn connect(&self, keeper: ActorRef<Msg>) {
        let mut to = self.to.lock();
        if let ForwardTarget::Early(early) = &mut *to {
            self.tell(&keeper, core::mem::take(early));
        }
        *to = ForwardTarget::Keeper(keeper);
    }

    fn tell(&self, keeper: &ActorRef<Msg>, appended: Vec<AppendedMessage>) {
        if let Err(error) = keeper.try_tell(Msg::Appended(appended)) {
            // What was written is read by the next keeper; a queue that was removed has nobody to tell.
            tracing::debug!(queue = self.queue.0, %error, "nobody was told of messages");
        }
    }
}

impl Queues {
    /// Becomes the owner of queues in one write, reads each, and has keepers keep them.
    pub(super) async fn open_all(&self, records: Vec<QueueRecord>) -> Result<Vec<Queue>, OpenError> {
        let queues: Vec<Queue> = records.into_iter().map(|record| self.handle(record)).collect();
        let claimed = self.claim(&queues).await?;
        for (queue, (ear, claimed)) in queues.iter().zip(claimed) {
            self.start_actor(queue, &ear, claimed).await?;
            let mut open = self.open.write();
            open.by_name.insert(queue.body().name.as_str().into(), queue.clone());
            open.by_id.insert(queue.id(), queue.clone());
            self.known.write().insert(queue.id());
        }
        self.changes.send_replace(());
        Ok(queues)
    }

    fn handle(&self, record: QueueRecord) -> Queue {
        Queue(Arc::new(QueueInner {
            id: record.id,
            store: self.store.clone(),
            seal: self.seal.clone(),
            clock: self.clock,
            gauge: Arc::default(),
            body: RwLock::new(Arc::new(record.body)),
            owner: watch::Sender::new(Owner::Restarting),
            asks: AtomicU64::new(0),
            notes: JobStatusTable::default(),
            ruling: Arc::default(),
            falls: Mutex::new(RestartBackoff::default()),
        }))
    }

    async fn claim(&self, queues: &[Queue]) -> Result<Vec<(Arc<AppendForwarder>, Ownership)>, OpenError> {
        let ears: Vec<Arc<AppendForwarder>> =
            queues.iter().map(|queue| AppendForwarder::new(queue.id(), queue.0.gauge.clone())).collect();
        if ears.is_empty() {
            return Ok(Vec::new());
        }
        let tails = ears.iter().map(|ear| (ear.queue, ear.tail())).collect();
        let claimed = self.blocking(move |store| store.take_ownership(tails)).await?;
        Ok(ears.into_iter().zip(claimed).collect())
    }

    /// Reads a queue's book and has a keeper keep it.
    async fn start_actor(
        &self,
        queue: &Queue,
        ear: &AppendForwarder,
        claimed: Ownership,
    ) -> Result<(), OpenError> {
        let id = queue.id();
        let body = queue.body();
        let secret = self.draw();
        let random = self.draw().0;
        let clock = self.clock;
        let Ownership { epoch, told_from } = claimed;
        let (keys, states) =
            self.blocking(move |store| Ok((store.keys(id, told_from)?, store.state(id, told_from)?))).await?;
        let book = QueueState::new(epoch, &body.settings, secret).map_err(OpenError::Book)?;
        let book = restore_state(book, clock.now(), &keys, states)?;
        let unused = keys.iter().filter(|kept| kept.count == 0 && kept.rule.is_empty());
        let fallen = ActorStopped { queue: id, epoch };
        let keeper = QueueActor {
            queue: id,
            epoch,
            settings: Arc::new(body.settings.clone()),
            store: self.store.clone(),
            known: self.known.clone(),
            clock,
            book,
            gauge: queue.0.gauge.clone(),
            mail: ear.mail.clone(),
            waiting: VecDeque::new(),
            timer: None,
            random,
            refilling: 0,
            arrived: (0, 0),
            unused: unused.map(|kept| kept.key).collect(),
            _vigil: DropNotifier { fallen, tell: self.fallen.clone() },
        };
        queue.0.gauge.transfer_to(keeper.book.totals(), ear.mail.clone());
        let props = Props::of_values().mailbox(MailboxOptions::bounded(MAILBOX)).label(&*body.name);
        let keeper = self.system.spawn_value(keeper, &props.build()).map_err(OpenError::Spawn)?;
        ear.connect(keeper.clone());
        queue.0.owner.send_if_modified(|owner| match owner {
            Owner::Restarting | Owner::Active(_) => {
                *owner = Owner::Active(ActiveOwner { keeper, epoch });
                true
            }
            Owner::Deleted | Owner::Stopping => false,
        });
        Ok(())
    }

    /// Has another keeper keep a queue whose keeper fell; `false` when that is to be tried again.
    async fn restart_queue(&self, fallen: ActorStopped) -> bool {
        let _changing = self.changing.lock().await;
        let Some(queue) = self.by_id(fallen.queue).filter(|queue| queue.mark_stopped(fallen.epoch)) else {
            return true;
        };
        match self.keep_again(&queue).await {
            Ok(()) => {
                queue.0.falls.lock().replaced += 1;
                queue.begin();
                tracing::info!(queue = fallen.queue.0, "the queue has another keeper");
                true
            }
            Err(why) => {
                tracing::error!(queue = fallen.queue.0, %why, "the queue has no keeper, trying again");
                false
            }
        }
    }

    async fn keep_again(&self, queue: &Queue) -> Result<(), OpenError> {
        for (ear, claimed) in self.claim(core::slice::from_ref(queue)).await? {
            self.start_actor(queue, &ear, claimed).await?;
        }
        Ok(())
    }
}

/// Has queues kept on whose keepers fell, as long as there are queues.
pub(super) async fn restart_stopped(queues: Weak<Queues>, mut falls: UnboundedReceiver<ActorStopped>) {
    while let Some(fallen) = falls.recv().await {
        let Some(all) = queues.upgrade() else { return };
        let Some(queue) = all.by_id(fallen.queue) else { continue };
        if !queue.mark_stopped(fallen.epoch) {
            continue;
        }
        let pause = queue.0.falls.lock().add(Instant::now());
        tracing::error!(
            queue = fallen.queue.0,
            ?pause,
            "the keeper of a queue fell, another takes its place"
        );
        // One at a time would have queues wait for each other's disk.
        tokio::spawn(replace_one(queues.clone(), fallen, pause));
    }
}

async fn replace_one(queues: Weak<Queues>, fallen: ActorStopped, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(all) = queues.upgrade() else { return };
        if all.restart_queue(fallen).await {
            return;
        }
        pause = RETRY_AFTER;
    }
}

fn restore_state(
    mut book: QueueState,
    now: UnixMillis,
    keys: &[StoredKey],
    states: Vec<StoredMessage>,
) -> Result<QueueState, OpenError> {
    // What was written lies ahead when the clock was set back meanwhile; what lasts must not last that much longer.
    let seen = states.iter().map(|state| state.first_delivered_at.unwrap_or(state.header.sent_at)).max();
    let set_back = seen.map_or(Duration::ZERO, |seen| seen.since(now));
    let mut by_key: HashMap<KeyId, Vec<StoredMessage>> = HashMap::new();
    for state in states {
        by_key.entry(state.key).or_default().push(state.sooner(set_back));
    }
    // Before the first lane is made, so that each finds its own and its tenant's.
    for kept in keys.iter().filter(|kept| !kept.rule.is_empty()) {
        book.set_rule(now, kept.key, &kept.name, kept.rule);
    }
    for kept in keys {
        let states = by_key.remove(&kept.key).unwrap_or_default();
        book.resume(now, kept, &states).map_err(OpenError::Keys)?;
    }
    Ok(book)
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
    fn a_clock_that_was_set_back_prolongs_no_lease_and_no_delay() {
        const YEAR_MS: u64 = 365 * 24 * 3_600_000;
        let settings = QueueSettings::default();
        let header = |seq| MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(YEAR_MS),
            size: 1,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: None,
        };
        let state = |seq, standing| StoredMessage {
            key: KeyId(0),
            header: header(seq),
            delivered: DeliveryCount { attempts: 1, taken_back: 0 },
            first_delivered_at: Some(UnixMillis(YEAR_MS + 1_000)),
            standing,
        };
        let until = UnixMillis(YEAR_MS + 31_000);
        let states = vec![
            state(1, StoredState::Leased { until, epoch: Epoch(1) }),
            state(2, StoredState::Delayed { until }),
        ];
        let kept = StoredKey {
            key: KeyId(0),
            name: "a".into(),
            rule: KeyRule::default(),
            wished_weight: None,
            first: Seq(1),
            last: Seq(2),
            count: 2,
            bytes: 2,
            expiring: Vec::new(),
        };
        let book = QueueState::new(Epoch(2), &settings, (1, 2)).unwrap();
        let mut book = restore_state(book, UnixMillis(5_000), &[kept], states).unwrap();
        assert_eq!(book.expire_leases(UnixMillis(34_999), 10).len(), 0);
        assert_eq!(book.expire_leases(UnixMillis(35_000), 10).len(), 2, "they last a year longer");
    }
}
