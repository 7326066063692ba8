//! All queues of a gateway.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use core::fmt;
use core::num::NonZeroUsize;
use core::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    ActorRef, ActorSystemConfig, ActorSystemRunner, MailboxOptions, Props, ReadyQueueScheduler, SpawnError,
    StartError,
};
use evenkeel_policy::setting::SettingOutOfRange;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::book::{Book, KeptState};
use crate::id::{KeyId, QueueId};
use crate::job::Notes;
use crate::keeper::{Gauge, Keeper, Msg};
use crate::queue::{Owner, Queue, Shared};
use crate::receipt::Seal;
use crate::rejection::Rejection;
use crate::settings::{BadSetting, QueueSettings};
use crate::store::{QueueBody, QueueRecord, Store, StoreError, Tail};
use crate::time::WallClock;

/// More places than the writer's queue and all questions take together, so that no tail is refused.
const MAILBOX: NonZeroUsize = NonZeroUsize::new(1 << 19).expect("2¹⁹ is not zero");
/// A queue's name is at most this long.
const NAME_MAX: usize = 80;
/// How long keepers may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// All queues of a gateway.
pub struct Queues {
    pub(crate) store: Arc<dyn Store>,
    system: ReadyQueueScheduler,
    seal: Arc<Seal>,
    pub(crate) clock: WallClock,
    queues_max: usize,
    /// Told when a queue was made, changed or removed.
    changes: watch::Sender<()>,
    open: RwLock<BTreeMap<Arc<str>, Queue>>,
    /// Held while a queue is made or removed, so that a name is given once.
    changing: tokio::sync::Mutex<()>,
    random: Mutex<u64>,
}

impl Queues {
    /// Opens every queue in the store, on the Tokio runtime it is called in; reads the disk.
    pub async fn open(store: Arc<dyn Store>, queues_max: usize) -> Result<Arc<Self>, OpenError> {
        let runtime = TokioRuntime::current().ok_or(OpenError::NoRuntime)?;
        let config = ActorSystemConfig { actors_max: 1 << 20, ..ActorSystemConfig::default() };
        let system = ActorSystemRunner::new(config).start(runtime).map_err(OpenError::Actors)?;
        let seed = store.secret().iter().fold(1_u64, |seed, &byte| seed.wrapping_mul(257) ^ u64::from(byte));
        let queues = Arc::new(Self {
            seal: Arc::new(Seal::new(&store.secret())),
            system,
            clock: WallClock::start(),
            queues_max,
            changes: watch::Sender::new(()),
            open: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
            random: Mutex::new(seed),
            store,
        });
        let records = queues.blocking(<dyn Store>::queues).await?;
        for record in records {
            queues.open_one(record).await?;
        }
        queues.open.read().values().for_each(Queue::begin);
        Ok(queues)
    }

    /// Finds a queue.
    pub fn get(&self, name: &str) -> Option<Queue> {
        self.open.read().get(name).cloned()
    }

    /// Finds a queue by its id.
    pub fn by_id(&self, id: QueueId) -> Option<Queue> {
        self.open.read().values().find(|queue| queue.id() == id).cloned()
    }

    /// Lists queues whose names begin so, in order, after `after`, at most `max`.
    pub fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Vec<Queue> {
        let open = self.open.read();
        let matching = open.iter().filter(|(name, _)| name.starts_with(prefix));
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
    ) -> Result<Created, CreateError> {
        check_name(name)?;
        settings.check().map_err(CreateError::Setting)?;
        let _changing = self.changing.lock().await;
        if let Some(queue) = self.get(name) {
            return Ok(Created::Found(queue));
        }
        if self.queues_max <= self.open.read().len() {
            return Err(CreateError::TooMany { max: self.queues_max });
        }
        let now = self.clock.now().0;
        let body = QueueBody { name: name.into(), settings, created_at: now, changed_at: now, notes };
        let id = self.put(None, body.clone()).await.map_err(CreateError::Store)?;
        let queue = self.open_one(QueueRecord { id, body }).await.map_err(CreateError::Open)?;
        queue.begin();
        Ok(Created::New(queue))
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
        let body = QueueBody { settings, notes, changed_at: self.clock.now().0, ..(*old).clone() };
        self.put(Some(queue.id()), body.clone()).await.map_err(CreateError::Store)?;
        let settings = Arc::new(body.settings.clone());
        *queue.0.body.write() = Arc::new(body);
        queue.0.owner.read().keeper.tell(Msg::Settings(settings));
        self.changes.send_replace(());
        Ok(())
    }

    /// Removes a queue and its messages.
    pub async fn remove(&self, name: &str) -> Result<(), Rejection> {
        let _changing = self.changing.lock().await;
        let queue = self.get(name).ok_or(Rejection::Gone)?;
        let (done, answered) = oneshot::channel();
        self.store.remove_queue(queue.id(), Box::new(move |result| drop(done.send(result))));
        answered.await.unwrap_or(Err(StoreError::Closed))?;
        self.open.write().remove(name);
        self.changes.send_replace(());
        queue.0.owner.read().keeper.tell(Msg::Close);
        Ok(())
    }

    /// Ends all keepers, then closes the store: everything written so far is on disk.
    pub async fn shutdown(&self) {
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

    async fn put(&self, id: Option<QueueId>, body: QueueBody) -> Result<QueueId, StoreError> {
        let (done, answered) = oneshot::channel();
        self.store.put_queue(id, body, Box::new(move |id| drop(done.send(id))));
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Reads a queue's book and has a keeper keep it.
    async fn open_one(&self, record: QueueRecord) -> Result<Queue, OpenError> {
        let QueueRecord { id, body } = record;
        let (gauge, clock) = (Arc::<Gauge>::default(), self.clock);
        let (settings, secret, random) = (body.settings.clone(), self.draw(), self.draw().0);
        let store = self.store.clone();
        let (epoch, book) = self
            .blocking(move |store| {
                let epoch = store.claim(id)?;
                let (keys, states) = (store.keys(id)?, store.state(id)?);
                Ok((epoch, read_book(epoch, &settings, secret, &keys, states, clock)))
            })
            .await?;
        let book = book?;
        let keeper = Keeper {
            queue: id,
            epoch,
            settings: Arc::new(body.settings.clone()),
            store,
            clock,
            book,
            gauge: gauge.clone(),
            waiting: VecDeque::new(),
            timer: None,
            random,
            refilling: 0,
            arrived: (0, 0),
        };
        gauge.show(keeper.book.totals());
        let props = Props::of_values().mailbox(MailboxOptions::bounded(MAILBOX)).label(&*body.name);
        let keeper = self.system.spawn_value(keeper, &props.build()).map_err(OpenError::Spawn)?;
        self.store.tail(id, Some(tail_to(keeper.clone(), id)));
        let name: Arc<str> = body.name.as_str().into();
        let queue = Queue(Arc::new(Shared {
            id,
            store: self.store.clone(),
            seal: self.seal.clone(),
            clock,
            gauge,
            body: RwLock::new(Arc::new(body)),
            owner: RwLock::new(Owner { keeper, epoch }),
            asks: AtomicU64::new(0),
            notes: Notes::default(),
        }));
        self.open.write().insert(name, queue.clone());
        self.changes.send_replace(());
        Ok(queue)
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
pub enum Created {
    /// It was made.
    New(Queue),
    /// There was one of that name; whether it is like the one wished for is the door's to say.
    Found(Queue),
}

impl Created {
    /// Takes the queue either way.
    pub fn queue(self) -> Queue {
        match self {
            Self::New(queue) | Self::Found(queue) => queue,
        }
    }
}

fn tail_to(keeper: ActorRef<Msg>, queue: QueueId) -> Tail {
    Arc::new(move |appended| {
        if let Err(error) = keeper.try_tell(Msg::Tail(appended)) {
            // What was written is found at the next start; a queue that was removed has nobody to tell.
            tracing::debug!(queue = queue.0, %error, "nobody was told of messages");
        }
    })
}

fn read_book(
    epoch: crate::id::Epoch,
    settings: &QueueSettings,
    secret: (u64, u64),
    keys: &[crate::book::KeptKey],
    states: Vec<KeptState>,
    clock: WallClock,
) -> Result<Book, OpenError> {
    let mut book = Book::new(epoch, settings, secret).map_err(OpenError::Book)?;
    let mut by_key: HashMap<KeyId, Vec<KeptState>> = HashMap::new();
    for state in states {
        by_key.entry(state.key).or_default().push(state);
    }
    let now = clock.now();
    for kept in keys {
        let states = by_key.remove(&kept.key).unwrap_or_default();
        book.resume(now, kept, &states).map_err(OpenError::Keys)?;
    }
    Ok(book)
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
            Self::TooMany { max } => write!(f, "there are {max} queues, which is the most"),
            Self::Store(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CreateError {}
