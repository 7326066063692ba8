//! All queues of a gateway.

mod ownership;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use core::fmt;
use core::ops::Bound;
use core::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler, SpawnError, StartError};
use evenkeel_policy::setting::SettingOutOfRange;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use crate::id::QueueId;
use crate::message_ids::MessageIds;
use crate::namespace::Namespace;
use crate::queue::{Owner, Queue};
use crate::queue_actor::{ActorStopped, KnownQueues, Msg};
use crate::receipt::ReceiptSigner;
use crate::rejection::Rejection;
use crate::settings::{BadSetting, QueueSettings};
use crate::store::{QueueDescriptor, QueueRecord, Store, StoreError};
use crate::time::WallClock;

const NAME_MAX: usize = 80;
/// Actors that run at the same time, one per queue.
const ACTORS_MAX: u32 = 1 << 20;
/// All queue actors have the same label in metrics.
const ACTOR_LABELS_MAX: u16 = 1;
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// All queues of a gateway.
pub struct Queues {
    pub(crate) store: Arc<dyn Store>,
    system: ReadyQueueScheduler,
    signer: Arc<ReceiptSigner>,
    message_ids: Arc<MessageIds>,
    pub(crate) clock: WallClock,
    queues_max: usize,
    /// Notified when a queue was created, changed or removed.
    changes: watch::Sender<()>,
    table: RwLock<QueueTable>,
    /// The ids of the open queues, shared with the actors.
    known: KnownQueues,
    /// Receives a report from each actor that stops.
    stopped: UnboundedSender<ActorStopped>,
    /// Serializes creating, changing, removing and restarting queues.
    change_lock: tokio::sync::Mutex<()>,
    random: Mutex<u64>,
}

#[derive(Default)]
struct QueueTable {
    by_name: BTreeMap<Arc<str>, BTreeMap<Namespace, Queue>>,
    by_id: HashMap<QueueId, Queue>,
}

impl QueueTable {
    fn insert(&mut self, queue: &Queue) {
        let descriptor = queue.descriptor();
        let queues = self.by_name.entry(descriptor.name.as_str().into()).or_default();
        queues.insert(descriptor.namespace, queue.clone());
        self.by_id.insert(queue.id(), queue.clone());
    }

    /// Removes a queue's name.
    fn remove(&mut self, descriptor: &QueueDescriptor) {
        if let Some(queues) = self.by_name.get_mut(descriptor.name.as_str()) {
            queues.remove(&descriptor.namespace);
            if queues.is_empty() {
                self.by_name.remove(descriptor.name.as_str());
            }
        }
    }
}

impl Queues {
    /// Opens every stored queue, on the current Tokio runtime; reads the disk.
    pub async fn open(store: Arc<dyn Store>, queues_max: usize) -> Result<Arc<Self>, OpenError> {
        Self::open_with(store, queues_max, ActorSystemConfig::default()).await
    }

    /// Opens every stored queue like [`open`](Self::open), with these workers; the limits of actors and of their labels
    /// are not taken from `actors`.
    pub async fn open_with(
        store: Arc<dyn Store>,
        queues_max: usize,
        actors: ActorSystemConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let runtime = TokioRuntime::current().ok_or(OpenError::NoRuntime)?;
        let config = ActorSystemConfig { actors_max: ACTORS_MAX, labels_max: ACTOR_LABELS_MAX, ..actors };
        let system = ActorSystemRunner::new(config).start(runtime).map_err(OpenError::Actors)?;
        let seed = store.secret().iter().fold(1_u64, |seed, &byte| seed.wrapping_mul(257) ^ u64::from(byte));
        let (stopped, stopped_actors) = unbounded_channel();
        let queues = Arc::new(Self {
            signer: Arc::new(ReceiptSigner::new(&store.secret())),
            message_ids: Arc::new(MessageIds::new(&store.secret(), store.plain_ids_before())),
            system,
            clock: WallClock::start(),
            queues_max,
            changes: watch::Sender::new(()),
            table: RwLock::default(),
            change_lock: tokio::sync::Mutex::default(),
            random: Mutex::new(seed),
            known: KnownQueues::default(),
            stopped,
            store,
        });
        let records = queues.blocking(<dyn Store>::queues).await?;
        queues.open_all(records).await?;
        queues.table.read().by_id.values().for_each(Queue::start);
        tokio::spawn(ownership::restart_stopped(Arc::downgrade(&queues), stopped_actors));
        Ok(queues)
    }

    pub fn get(&self, namespace: Namespace, name: &str) -> Option<Queue> {
        self.table.read().by_name.get(name)?.get(&namespace).cloned()
    }

    pub fn by_id(&self, id: QueueId) -> Option<Queue> {
        self.table.read().by_id.get(&id).cloned()
    }

    /// Returns all queues, ordered by name, then by namespace.
    pub fn all(&self) -> Vec<Queue> {
        self.list("", None, usize::MAX, |_| true)
    }

    /// Lists the queues that are included and whose names start with `prefix`, ordered by name, then by namespace, after
    /// `after`, at most `max`.
    pub fn list(
        &self,
        prefix: &str,
        after: Option<ListPosition<'_>>,
        max: usize,
        is_included: impl Fn(&Queue) -> bool,
    ) -> Vec<Queue> {
        let table = self.table.read();
        let first = after.map_or(prefix, |after| after.name.max(prefix));
        let range = (Bound::Included(first), Bound::Unbounded);
        let names = table.by_name.range::<str, _>(range).take_while(|(name, _)| name.starts_with(prefix));
        let queues =
            names.flat_map(|(name, queues)| queues.iter().map(move |(namespace, q)| (name, namespace, q)));
        let later =
            queues.filter(|(name, namespace, _)| after.is_none_or(|after| after.precedes(name, **namespace)));
        later.map(|(_, _, queue)| queue).filter(|queue| is_included(queue)).take(max).cloned().collect()
    }

    /// Rejects another queue in a namespace that has `max` queues.
    pub fn check_room(&self, namespace: Namespace, max: usize) -> Result<(), CreateError> {
        let table = self.table.read();
        let queues = table.by_name.values().filter(|queues| queues.contains_key(&namespace)).count();
        if queues < max { Ok(()) } else { Err(CreateError::TooManyOfOwner { max }) }
    }

    /// Returns a receiver that is notified when a queue was created, changed or removed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Creates a queue, or returns the existing one of this name; `metadata` is opaque data of the calling API.
    pub async fn create(
        &self,
        namespace: Namespace,
        name: &str,
        settings: QueueSettings,
        metadata: String,
    ) -> Result<CreateResult, CreateError> {
        check_name(name)?;
        settings.check().map_err(CreateError::Setting)?;
        let _lock = self.change_lock.lock().await;
        if let Some(queue) = self.get(namespace, name) {
            return Ok(CreateResult::Existing(queue));
        }
        if self.queues_max <= self.table.read().by_id.len() {
            return Err(CreateError::TooMany { max: self.queues_max });
        }
        let now = self.clock.now().0;
        let descriptor = QueueDescriptor {
            name: name.into(),
            namespace,
            settings,
            created_at: now,
            changed_at: now,
            metadata,
        };
        let id = self.store_descriptor(None, descriptor.clone()).await.map_err(CreateError::Store)?;
        let opened = match self.open_all(vec![QueueRecord { id, descriptor }]).await {
            Ok(opened) => opened,
            Err(open_error) => {
                // Otherwise the next attempt would store a second queue of this name.
                if let Err(error) = self.delete(id).await {
                    tracing::error!(queue = id.0, %error, "could not delete a queue that failed to open");
                }
                return Err(CreateError::Open(open_error));
            }
        };
        opened.iter().for_each(Queue::start);
        let queue = opened.into_iter().next().ok_or(CreateError::Store(StoreError::NoQueue))?;
        Ok(CreateResult::Created(queue))
    }

    /// Changes the settings and metadata of a queue.
    pub async fn change(
        &self,
        queue: &Queue,
        settings: QueueSettings,
        metadata: String,
    ) -> Result<(), CreateError> {
        settings.check().map_err(CreateError::Setting)?;
        let _lock = self.change_lock.lock().await;
        let old = queue.descriptor();
        if old.settings.order != settings.order {
            return Err(CreateError::OrderIsFixed);
        }
        let changed_at = self.clock.now().0;
        let descriptor = QueueDescriptor { settings, metadata, changed_at, ..(*old).clone() };
        self.store_descriptor(Some(queue.id()), descriptor.clone()).await.map_err(CreateError::Store)?;
        self.replace_descriptor(queue, descriptor);
        self.changes.send_replace(());
        Ok(())
    }

    /// Moves a queue to another namespace, with its messages and leases, and changes its settings and metadata.
    pub async fn assign(
        &self,
        queue: &Queue,
        namespace: Namespace,
        settings: QueueSettings,
        metadata: String,
    ) -> Result<(), CreateError> {
        let _lock = self.change_lock.lock().await;
        let old = queue.descriptor();
        if self.get(namespace, &old.name).is_some_and(|other| other.id() != queue.id()) {
            return Err(CreateError::NameTaken);
        }
        let changed_at = self.clock.now().0;
        let descriptor = QueueDescriptor { namespace, settings, metadata, changed_at, ..(*old).clone() };
        self.store_descriptor(Some(queue.id()), descriptor.clone()).await.map_err(CreateError::Store)?;
        let mut table = self.table.write();
        table.remove(&old);
        self.replace_descriptor(queue, descriptor);
        table.insert(queue);
        drop(table);
        self.known.write().insert(queue.id(), namespace);
        self.changes.send_replace(());
        Ok(())
    }

    /// Publishes a stored descriptor to callers and to the queue's actor.
    fn replace_descriptor(&self, queue: &Queue, descriptor: QueueDescriptor) {
        let settings = Arc::new(descriptor.settings.in_queue(queue.id()));
        *queue.0.descriptor.write() = Arc::new(descriptor);
        // An actor that starts later reads the new settings.
        if let Owner::Active(owner) = &*queue.0.owner.borrow() {
            owner.actor.tell(Msg::Settings(settings));
        }
    }

    /// Deletes a queue and its messages.
    pub async fn remove(&self, id: QueueId) -> Result<(), Rejection> {
        let _lock = self.change_lock.lock().await;
        let queue = self.by_id(id).ok_or(Rejection::QueueDeleted)?;
        self.delete(id).await?;
        let mut table = self.table.write();
        table.remove(&queue.descriptor());
        table.by_id.remove(&id);
        self.known.write().remove(&id);
        if let Owner::Active(owner) = queue.0.owner.send_replace(Owner::Deleted) {
            owner.actor.tell(Msg::Close);
        }
        self.changes.send_replace(());
        Ok(())
    }

    async fn delete(&self, id: QueueId) -> Result<(), StoreError> {
        let (done, completed) = oneshot::channel();
        self.store.remove_queue(id, Box::new(move |result| drop(done.send(result))));
        completed.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Stops all actors, then syncs and closes the store.
    pub async fn shutdown(&self) {
        for queue in self.table.read().by_id.values() {
            queue.0.owner.send_replace(Owner::Stopping);
        }
        self.system.graceful_shutdown(SHUTDOWN_MAX).await;
        if let Err(error) = self
            .blocking(|store| {
                store.close();
                Ok(())
            })
            .await
        {
            tracing::error!(%error, "could not close the store cleanly");
        }
    }

    /// Writes the metrics of the actor system in Prometheus' text format.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.system.metrics().write_prometheus(out)
    }

    async fn store_descriptor(
        &self,
        id: Option<QueueId>,
        descriptor: QueueDescriptor,
    ) -> Result<QueueId, StoreError> {
        let (done, completed) = oneshot::channel();
        self.store.put_queue(id, descriptor, Box::new(move |id| drop(done.send(id))));
        completed.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Runs a blocking store operation on a thread for blocking work.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&*store)).await;
        done.unwrap_or_else(|error| Err(StoreError::Io(error.to_string())))
    }

    /// Draws two random numbers, seeded by the store's secret.
    fn draw(&self) -> (u64, u64) {
        let mut state = self.random.lock();
        let mut next = || {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
        };
        (next(), next())
    }
}

/// Position in a list of queues.
#[derive(Clone, Copy, Debug)]
pub struct ListPosition<'a> {
    pub name: &'a str,
    /// `None` is after every queue of this name.
    pub namespace: Option<Namespace>,
}

impl ListPosition<'_> {
    fn precedes(&self, name: &str, namespace: Namespace) -> bool {
        let is_later = || self.namespace.is_some_and(|position| position < namespace);
        self.name < name || self.name == name && is_later()
    }
}

/// Result of [`Queues::create`].
pub enum CreateResult {
    Created(Queue),
    /// A queue of that name exists; the caller compares its settings.
    Existing(Queue),
}

impl CreateResult {
    /// Returns the queue in either case.
    pub fn queue(self) -> Queue {
        match self {
            Self::Created(queue) | Self::Existing(queue) => queue,
        }
    }
}

fn check_name(name: &str) -> Result<(), CreateError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if (1..=NAME_MAX).contains(&name.len()) && is_plain { Ok(()) } else { Err(CreateError::Name) }
}

/// Error of opening queues.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("no Tokio runtime to run queues on")]
    NoRuntime,
    #[error("could not start the actor system for queues: {0}")]
    Actors(#[source] StartError),
    #[error("could not start a queue actor: {0}")]
    Spawn(#[source] SpawnError),
    #[error("queue settings are invalid: {0}")]
    Settings(#[source] SettingOutOfRange),
    /// A queue has more keys than the maximum.
    #[error("could not recover a queue: {0}")]
    Keys(#[source] Rejection),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Error of creating or changing a queue.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("a queue's name has 1 to {NAME_MAX} letters, digits, hyphens, underscores or dots")]
    Name,
    #[error(transparent)]
    Setting(BadSetting),
    #[error("the new owner has another queue of this name")]
    NameTaken,
    #[error("order is fixed when a queue is created")]
    OrderIsFixed,
    #[error("there are {max} queues, the maximum")]
    TooMany { max: usize },
    #[error("the owner has {max} queues, its maximum (queues_max of the tenant)")]
    TooManyOfOwner { max: usize },
    #[error(transparent)]
    Store(StoreError),
    /// The queue was stored, but could not be opened.
    #[error(transparent)]
    Open(OpenError),
}
