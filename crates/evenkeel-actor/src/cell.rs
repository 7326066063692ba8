//! A cell: what the system keeps of one actor, seen from outside and from its worker.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
#[cfg(feature = "patterns")]
use core::any::{TypeId, type_name};
use core::fmt;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::actor::{Actor, MessageFuture};
use crate::executor::Lifecycle;
use crate::guardian::{ActorError, RestartHistory};
use crate::hub::KindId;
use crate::ignore_panic::wake_all;
use crate::index::MailboxIndex;
use crate::invoke::{ActorState, ResumeCondition, SignalKey, SuspendReason};
use crate::mailbox::{MailboxOptions, MailboxQueueStats, QueueMailbox, SystemMessage};
use crate::middleware::MiddlewareChain;
use crate::props::{Settings, Spec};
use crate::raw::run_permit::{PermitCell, Run};
use crate::raw::slab::{Occupant, Slab, SlotRef};
use crate::raw::state::{CLOSED, DEAD, SUSPENDED, SYSTEM};
#[cfg(feature = "patterns")]
use crate::stash::Stash;
use crate::stop::{StopMode, Termination};
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::system::Core;
use crate::timer::{Repeat, TimerEntry, TimerId};
use crate::trace::{Envelope, SpanHandle};

/// A reference to a cell of any type.
pub(crate) type CellRef = SlotRef<CellEntry>;

/// Who lives in a slot.
pub(crate) struct CellEntry {
    pub(crate) body: Box<dyn AnyCell>,
    /// Dropped last: it may hold the slab that holds the slot.
    pub(crate) core: Arc<Core>,
}

impl Occupant for CellEntry {
    fn slab(&self) -> &Slab<Self> {
        &self.core.slab
    }

    fn take_next(&mut self) -> Option<CellRef> {
        self.body.take_parent()
    }
}

/// What a cell of any type offers.
pub(crate) trait AnyCell: Run {
    fn head(&self) -> &CellHeader;
    fn settings(&self) -> &Settings;
    fn stats(&self) -> MailboxQueueStats;
    fn system_stats(&self) -> MailboxQueueStats;
    fn push_system(&self, message: SystemMessage) -> Result<(), SystemMessage>;
    fn close(&self);
    /// Gives up the reference to the parent; for the end.
    fn take_parent(&mut self) -> Option<CellRef>;
    /// The type of the messages, and its name.
    #[cfg(feature = "patterns")]
    fn takes(&self) -> (TypeId, &'static str);
    /// Where the user lane lies, for references that know its type.
    fn lane(&self) -> NonNull<()>;
}

/// The part of a cell that does not depend on the type of its actor.
pub(crate) struct CellHeader {
    pub(crate) parent: Option<CellRef>,
    pub(crate) kind: KindId,
    /// Whether the actor waits for a future or for a signal from outside; then it is not done.
    pub(crate) awaits: AtomicU32,
    /// When the cell was scheduled, in coarse microseconds; zero unless that is timed.
    pub(crate) ready_us: AtomicU32,
    /// Messages the actor has put aside; until they are taken back, it is not done.
    pub(crate) stashed: AtomicU32,
}

/// What a cell consists of.
pub(crate) struct ActorCell<A: Actor> {
    pub(crate) lane: QueueMailbox<A::Msg>,
    pub(crate) owner: PermitCell<RunnerState<A>>,
    pub(crate) head: CellHeader,
    pub(crate) spec: Arc<Spec<A>>,
}

/// What belongs to whoever runs the cell.
pub(crate) struct RunnerState<A: Actor> {
    /// The private half of the user lane.
    pub(crate) private: VecDeque<Envelope<A::Msg>>,
    pub(crate) actor: Option<A>,
    /// What few actors need.
    pub(crate) extra: Option<Box<ColdState<A>>>,
    pub(crate) phase: Phase,
    /// Whether somebody is known to wait for room.
    pub(crate) awaited: bool,
}

/// Where an actor is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not started.
    New,
    Running,
    /// Suspended, by itself.
    Waiting,
    /// Suspended by a failure; the next resume makes a new value.
    Failed,
    /// Its children end before a new value is made.
    Restarting,
    /// Its children end before it does.
    Stopping,
}

/// What few actors need, made when first needed.
pub(crate) struct ColdState<A: Actor> {
    pub(crate) future: Option<MessageFuture<A::Msg>>,
    /// A waker of this cell that came back, for the next wait.
    pub(crate) spare: Option<Waker>,
    /// The span of the message whose handler returned the future.
    pub(crate) trace: SpanHandle,
    /// The span of the wait under way.
    pub(crate) wait: SpanHandle,
    pub(crate) waiting: Option<(SuspendReason, ResumeCondition)>,
    /// Signals that came before the wait they end.
    pub(crate) early: VecDeque<SignalKey>,
    pub(crate) waits: u32,
    pub(crate) children: Vec<CellRef>,
    pub(crate) watchers: Vec<CellRef>,
    pub(crate) watching: Vec<CellRef>,
    pub(crate) timers: Vec<Timer>,
    pub(crate) idle: Option<ReceiveTimeout>,
    /// The end of a suspension, or of the wait before a restart.
    pub(crate) resume: Option<TimerEntry>,
    /// When the clock has the future looked at again, for what expires in it.
    pub(crate) expiry: Option<TimerEntry>,
    pub(crate) history: RestartHistory,
    pub(crate) failure: Option<ActorError>,
    /// What came for the value while it could not be told; at most one for each watch, child and timer.
    pub(crate) deferred: VecDeque<SystemMessage>,
    pub(crate) ending: Option<Termination>,
    pub(crate) middleware: Option<Box<dyn MiddlewareChain>>,
    #[cfg(feature = "patterns")]
    pub(crate) stash: Option<Box<Stash<A::Msg>>>,
}

/// A timer an actor has set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub(crate) id: TimerId,
    pub(crate) alarm: TimerEntry,
    pub(crate) repeat: Repeat,
}

/// A receive timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveTimeout {
    pub(crate) span: Duration,
    pub(crate) alarm: TimerEntry,
    /// When the actor last handled a message, or ceased to wait.
    pub(crate) since: Instant,
}

impl<A: Actor> ColdState<A> {
    /// Names the next wait of the actor in this slot.
    pub(crate) fn next_key(&mut self, slot: u32) -> SignalKey {
        self.waits = self.waits.wrapping_add(1);
        SignalKey(u64::from(slot) << 32 | u64::from(self.waits))
    }
}

impl<A: Actor> Default for ColdState<A> {
    fn default() -> Self {
        Self {
            future: None,
            spare: None,
            trace: SpanHandle::NONE,
            wait: SpanHandle::NONE,
            waiting: None,
            early: VecDeque::new(),
            waits: 0,
            children: Vec::new(),
            watchers: Vec::new(),
            watching: Vec::new(),
            timers: Vec::new(),
            idle: None,
            resume: None,
            expiry: None,
            history: RestartHistory::default(),
            failure: None,
            deferred: VecDeque::new(),
            ending: None,
            middleware: None,
            #[cfg(feature = "patterns")]
            stash: None,
        }
    }
}

impl<A: Actor> ActorCell<A> {
    pub(crate) fn new(
        spec: Arc<Spec<A>>,
        mailbox: &MailboxOptions,
        actor: A,
        middleware: Option<Box<dyn MiddlewareChain>>,
        kind: KindId,
        parent: Option<CellRef>,
    ) -> Self {
        let extra = middleware
            .map(|middleware| Box::new(ColdState { middleware: Some(middleware), ..ColdState::default() }));
        Self {
            lane: QueueMailbox::new(mailbox),
            owner: PermitCell::new(RunnerState {
                private: VecDeque::new(),
                actor: Some(actor),
                extra,
                phase: Phase::New,
                awaited: false,
            }),
            head: CellHeader {
                parent,
                kind,
                awaits: AtomicU32::new(0),
                ready_us: AtomicU32::new(0),
                stashed: AtomicU32::new(0),
            },
            spec,
        }
    }
}

impl<A: Actor> AnyCell for ActorCell<A> {
    fn head(&self) -> &CellHeader {
        &self.head
    }

    fn settings(&self) -> &Settings {
        &self.spec.settings
    }

    fn stats(&self) -> MailboxQueueStats {
        self.lane.stats()
    }

    fn system_stats(&self) -> MailboxQueueStats {
        self.lane.system_stats()
    }

    fn push_system(&self, message: SystemMessage) -> Result<(), SystemMessage> {
        let pointless = self.lane.push_system_by(message, SystemMessage::enqueue_coalescing)?;
        // After the lock: it may be the last that refers to a cell.
        drop(pointless);
        Ok(())
    }

    fn take_parent(&mut self) -> Option<CellRef> {
        self.head.parent.take()
    }

    #[cfg(feature = "patterns")]
    fn takes(&self) -> (TypeId, &'static str) {
        (TypeId::of::<A::Msg>(), type_name::<A::Msg>())
    }

    fn lane(&self) -> NonNull<()> {
        NonNull::from(&self.lane).cast()
    }

    fn close(&self) {
        wake_all(self.lane.close());
    }
}

impl CellRef {
    pub(crate) fn core(&self) -> &Core {
        &self.occupant().core
    }

    pub(crate) fn head(&self) -> &CellHeader {
        self.occupant().body.head()
    }

    pub(crate) fn index(&self) -> MailboxIndex {
        MailboxIndex { slot: self.number(), generation: self.generation() }
    }

    /// Tells the cell something the system has to say; `Err` once it has ended.
    pub(crate) fn tell_system(&self, message: SystemMessage) -> Result<(), SystemMessage> {
        self.occupant().body.push_system(message)?;
        self.raise(SYSTEM);
        Ok(())
    }

    /// Asks the cell to stop; nothing happens once it has.
    pub(crate) fn stop(&self, mode: StopMode) {
        // An actor that has ended needs no telling.
        drop(self.tell_system(SystemMessage::Stop(mode)));
    }

    /// What the mailbox holds, and what happens beyond.
    pub(crate) fn mailbox(&self) -> &MailboxOptions {
        self.core().mailbox_of(self.occupant().body.settings())
    }

    /// Whether the actor waits for a future, or for a signal from outside.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.head().awaits.load(Ordering::Relaxed) != 0
    }

    /// Whether the actor has put messages aside.
    pub(crate) fn has_stashed(&self) -> bool {
        self.head().stashed.load(Ordering::Relaxed) != 0
    }

    /// Tells what the actor is doing.
    pub(crate) fn state(&self) -> ActorState {
        let flags = self.slot().state.flags();
        match flags {
            _ if flags & DEAD != 0 => ActorState::Stopped,
            _ if flags & CLOSED != 0 || self.core().lifecycle() != Lifecycle::Running => ActorState::Stopping,
            _ if flags & SUSPENDED != 0 => ActorState::Suspended,
            _ => ActorState::Running,
        }
    }
}

impl fmt::Debug for CellHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn what_every_cell_says_of_itself_takes_24_bytes() {
        assert_eq!(size_of::<CellHeader>(), 24);
    }
}
