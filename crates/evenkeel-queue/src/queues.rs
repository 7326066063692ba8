//! All queues of a gateway.

mod ownership;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use core::fmt;
use core::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, ReadyQueueScheduler, SpawnError, StartError};
use evenkeel_policy::setting::SettingOutOfRange;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use crate::id::QueueId;
use crate::queue::{Owner, Queue};
use crate::queue_actor::{ActorStopped, KnownQueues, Msg};
use crate::receipt::ReceiptSigner;
use crate::rejection::Rejection;
use crate::settings::{BadSetting, QueueSettings};
use crate::store::{QueueDescriptor, QueueRecord, Store, StoreError};
use crate::time::WallClock;

/// A queue's name is at most this long.
const NAME_MAX: usize = 80;
/// How long keepers may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// All queues of a gateway.
pub struct Queues {
    pub(crate) store: Arc<dyn Store>,
    system: ReadyQueueScheduler,
    seal: Arc<ReceiptSigner>,
    pub(crate) clock: WallClock,
    queues_max: usize,
    /// Told when a queue was made, changed or removed.
    changes: watch::Sender<()>,
    open: RwLock<QueueTable>,
    /// The ids of those that are open, for their keepers.
    known: KnownQueues,
    /// Whom keepers tell that they are no more.
    fallen: UnboundedSender<ActorStopped>,
    /// Held while a queue is made, removed or given another keeper, so that a name is given once.
    changing: tokio::sync::Mutex<()>,
    random: Mutex<u64>,
}

/// The queues that there are.
#[derive(Default)]
struct QueueTable {
    by_name: BTreeMap<Arc<str>, Queue>,
    by_id: HashMap<QueueId, Queue>,
}

impl Queues {
    /// Opens every queue in the store, on the Tokio runtime it is called in; reads the disk.
    pub async fn open(store: Arc<dyn Store>, queues_max: usize) -> Result<Arc<Self>, OpenError> {
        let runtime = TokioRuntime::current().ok_or(OpenError::NoRuntime)?;
        let config = ActorSystemConfig { actors_max: 1 << 20, ..ActorSystemConfig::default() };
        let system = ActorSystemRunner::new(config).start(runtime).map_err(OpenError::Actors)?;
        let seed = store.secret().iter().fold(1_u64, |seed, &byte| seed.wrapping_mul(257) ^ u64::from(byte));
        let (fallen, falls) = unbounded_channel();
        let queues = Arc::new(Self {
            seal: Arc::new(ReceiptSigner::new(&store.secret())),
            system,
            clock: WallClock::start(),
            queues_max,
            changes: watch::Sender::new(()),
            open: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
            random: Mutex::new(seed),
            known: KnownQueues::default(),
            fallen,
            store,
        });
        let records = queues.blocking(<dyn Store>::queues).await?;
        queues.open_all(records).await?;
        queues.open.read().by_id.values().for_each(Queue::begin);
        tokio::spawn(ownership::restart_stopped(Arc::downgrade(&queues), falls));
        Ok(queues)
    }

    /// Finds a queue.
    pub fn get(&self, name: &str) -> Option<Queue> {
        self.open.read().by_name.get(name).cloned()
    }

    /// Finds a queue by its id.
    pub fn by_id(&self, id: QueueId) -> Option<Queue> {
        self.open.read().by_id.get(&id).cloned()
    }

    /// Lists queues whose names begin so, in order, after `after`, at most `max`.
    pub fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Vec<Queue> {
        let open = self.open.read();
        let matching = open.by_name.iter().filter(|(name, _)| name.starts_with(prefix));
        let later = matching.filter(|(name, _)| after.is_none_or(|after| after < &***name));
        later.map(|(_, queue)| queue.clone()).take(max).collect()
    }

    /// Has whoever holds this told when a queue was made, changed or removed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Makes a queue, or finds it; `notes` are the door's.
    pub async fn create(
        &self,
        name: &str,
        settings: QueueSettings,
        notes: String,
    ) -> Result<CreateResult, CreateError> {
        check_name(name)?;
        settings.check().map_err(CreateError::Setting)?;
        let _changing = self.changing.lock().await;
        if let Some(queue) = self.get(name) {
            return Ok(CreateResult::Existing(queue));
        }
        if self.queues_max <= self.open.read().by_id.len() {
            return Err(CreateError::TooMany { max: self.queues_max });
        }
        let now = self.clock.now().0;
        let body = QueueDescriptor { name: name.into(), settings, created_at: now, changed_at: now, notes };
        let id = self.put(None, body.clone()).await.map_err(CreateError::Store)?;
        let opened = match self.open_all(vec![QueueRecord { id, body }]).await {
            Ok(opened) => opened,
            Err(why) => {
                // Left behind, it would be there twice after a second try.
                if let Err(error) = self.erase(id).await {
                    tracing::error!(queue = id.0, %error, "a queue that could not be opened stays in the store");
                }
                return Err(CreateError::Open(why));
            }
        };
        opened.iter().for_each(Queue::begin);
        let queue = opened.into_iter().next().ok_or(CreateError::Store(StoreError::NoQueue))?;
        Ok(CreateResult::Created(queue))
    }

    /// Changes what a queue is, beside its messages.
    pub async fn change(
        &self,
        queue: &Queue,
        settings: QueueSettings,
        notes: String,
    ) -> Result<(), CreateError> {
        settings.check().map_err(CreateError::Setting)?;
        let _changing = self.changing.lock().await;
        let old = queue.body();
        if old.settings.order != settings.order {
            return Err(CreateError::OrderIsFixed);
        }
        let body = QueueDescriptor { settings, notes, changed_at: self.clock.now().0, ..(*old).clone() };
        self.put(Some(queue.id()), body.clone()).await.map_err(CreateError::Store)?;
        let settings = Arc::new(body.settings.clone());
        *queue.0.body.write() = Arc::new(body);
        // Whoever keeps it next reads them with the queue.
        if let Owner::Active(kept) = &*queue.0.owner.borrow() {
            kept.keeper.tell(Msg::Settings(settings));
        }
        self.changes.send_replace(());
        Ok(())
    }

    /// Removes a queue and its messages.
    pub async fn remove(&self, name: &str) -> Result<(), Rejection> {
        let _changing = self.changing.lock().await;
        let queue = self.get(name).ok_or(Rejection::QueueDeleted)?;
        self.erase(queue.id()).await?;
        let mut open = self.open.write();
        open.by_name.remove(name);
        open.by_id.remove(&queue.id());
        self.known.write().remove(&queue.id());
        if let Owner::Active(kept) = queue.0.owner.send_replace(Owner::Deleted) {
            kept.keeper.tell(Msg::Close);
        }
        self.changes.send_replace(());
        Ok(())
    }

    async fn erase(&self, id: QueueId) -> Result<(), StoreError> {
        let (done, answered) = oneshot::channel();
        self.store.remove_queue(id, Box::new(move |result| drop(done.send(result))));
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Ends all keepers, then closes the store: everything written so far is on disk.
    pub async fn shutdown(&self) {
        for queue in self.open.read().by_id.values() {
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
            tracing::error!(%error, "store was not closed in order");
        }
    }

    async fn put(&self, id: Option<QueueId>, body: QueueDescriptor) -> Result<QueueId, StoreError> {
        let (done, answered) = oneshot::channel();
        self.store.put_queue(id, body, Box::new(move |id| drop(done.send(id))));
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Reads the disk where nobody else waits.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&*store)).await;
        done.unwrap_or_else(|error| Err(StoreError::Io(error.to_string())))
    }

    /// Draws numbers nobody outside knows: they come from the store's secret.
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

/// A queue that was asked for.
pub enum CreateResult {
    /// It was made.
    Created(Queue),
    /// There was one of that name; whether it is like the one wished for is the door's to say.
    Existing(Queue),
}

impl CreateResult {
    /// Takes the queue either way.
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

/// Why queues could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// There is no Tokio runtime here.
    NoRuntime,
    /// The actor system did not start.
    Actors(StartError),
    /// A keeper could not be made.
    Spawn(SpawnError),
    /// A queue's settings contradict each other.
    Book(SettingOutOfRange),
    /// A queue has more keys than it may.
    Keys(Rejection),
    /// The store could not be read.
    Store(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => f.write_str("no Tokio runtime to run queues on"),
            Self::Actors(error) => write!(f, "actors of queues did not start: {error}"),
            Self::Spawn(error) => write!(f, "queue has no keeper: {error}"),
            Self::Book(error) => write!(f, "queue is set up wrongly: {error}"),
            Self::Keys(error) => write!(f, "queue cannot be read: {error}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Why a queue was not made.
#[derive(Debug)]
pub enum CreateError {
    /// Its name is not one.
    Name,
    /// A setting is out of bounds.
    Setting(BadSetting),
    /// In which order it delivers was decided when it was made.
    OrderIsFixed,
    /// There are as many queues as there may be.
    TooMany {
        /// How many there may be.
        max: usize,
    },
    /// It was not written down.
    Store(StoreError),
    /// It was written down and could not be opened.
    Open(OpenError),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                write!(f, "a queue's name has 1 to {NAME_MAX} letters, digits, hyphens, underscores or dots")
            }
            Self::Setting(error) => error.fmt(f),
            Self::OrderIsFixed => f.write_str("order is fixed when a queue is made"),
            Self::TooMany { max } => write!(f, "there are {max} queues, which is the most"),
            Self::Store(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CreateError {}
