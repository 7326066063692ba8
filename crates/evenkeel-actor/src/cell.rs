//! Actor cell: everything that the runtime stores for one actor.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
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
use crate::raw::run_permit::{InvokeCell, PermitCell};
use crate::raw::slab::{Occupant, Slab, SlotRef};
use crate::raw::state::{CLOSED, DEAD, SUSPENDED, SYSTEM};
use crate::room_wait::CapacityWait;
#[cfg(feature = "patterns")]
use crate::stash::Stash;
use crate::stop::{StopMode, Termination};
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::system::Core;
use crate::timer::{Repeat, TimerEntry, TimerId};
use crate::trace::{Envelope, SpanHandle};

/// A reference to a cell of any type.
pub(crate) type CellRef = SlotRef<CellEntry>;

/// The mailboxes of a system, indexed by [`MailboxIndex`].
pub(crate) type MailboxRegistry = Slab<CellEntry>;

impl MailboxRegistry {
    /// Counts the failure of a mailbox, whose owner then gets an empty one or terminates.
    pub(crate) fn record_mailbox_failure(&self, cell: &CellRef) {
        cell.core().hub.count_mailbox_failure(cell.header().kind);
    }
}

/// The occupant of a slot: one actor cell.
pub(crate) struct CellEntry {
    pub(crate) body: Box<dyn AnyCell>,
    /// Declared last, so that it is dropped last: it may hold the slab that holds this slot.
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

/// Operations on a cell of any actor type.
pub(crate) trait AnyCell: InvokeCell {
    fn header(&self) -> &CellHeader;
    fn settings(&self) -> &Settings;
    fn stats(&self) -> MailboxQueueStats;
    fn system_stats(&self) -> MailboxQueueStats;
    fn push_system(&self, message: SystemMessage) -> Result<(), SystemMessage>;
    fn close(&self);
    /// Takes the reference to the parent, before the cell is dropped.
    fn take_parent(&mut self) -> Option<CellRef>;
    /// Returns the type of the messages and its name.
    fn message_type(&self) -> (TypeId, &'static str);
    /// Returns the address of the mailbox, for references that know its type.
    fn mailbox(&self) -> NonNull<()>;
}

/// The part of a cell that does not depend on the actor's type.
pub(crate) struct CellHeader {
    pub(crate) parent: Option<CellRef>,
    pub(crate) kind: KindId,
    /// Nonzero while the actor awaits a future or an external signal; a shutdown waits for it.
    pub(crate) awaits: AtomicU32,
    /// Time when the cell was scheduled, in coarse microseconds; zero unless it is being timed.
    pub(crate) ready_us: AtomicU32,
    /// Number of stashed messages; a shutdown waits until they are unstashed.
    pub(crate) stashed: AtomicU32,
}

/// An actor cell: mailbox, runner state, header and specification.
pub(crate) struct ActorCell<A: Actor> {
    pub(crate) mailbox: QueueMailbox<A::Msg>,
    pub(crate) runner: PermitCell<RunnerState<A>>,
    pub(crate) header: CellHeader,
    pub(crate) spec: Arc<Spec<A>>,
}

/// State that only the worker holding the run permit may access.
pub(crate) struct RunnerState<A: Actor> {
    /// The private half of the user queue.
    pub(crate) private: VecDeque<Envelope<A::Msg>>,
    pub(crate) actor: Option<A>,
    /// State that few actors need, allocated on first use.
    pub(crate) extra: Option<Box<ColdState<A>>>,
    pub(crate) phase: ActorPhase,
    /// Set while producers are known to wait for capacity.
    pub(crate) has_waiters: bool,
}

/// Life-cycle phase of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActorPhase {
    /// Not started.
    New,
    Running,
    /// Suspended at its own request.
    Waiting,
    /// Suspended by a failure; the end of the backoff restarts it, unless its supervisor resumes it first.
    Failed,
    /// Waiting for its children to terminate before the factory creates a new value.
    Restarting,
    /// Waiting for its children to terminate before it terminates.
    Stopping,
}

/// State that few actors need, allocated on first use.
pub(crate) struct ColdState<A: Actor> {
    pub(crate) future: Option<MessageFuture<A::Msg>>,
    /// A waker of this cell whose reference was transferred back, to be reused for the next wait.
    pub(crate) spare: Option<Waker>,
    /// The span of the message whose handler returned the future.
    pub(crate) trace: SpanHandle,
    /// The span of the current wait.
    pub(crate) wait: SpanHandle,
    pub(crate) waiting: Option<(SuspendReason, ResumeCondition)>,
    /// The actor's place among the producers of the full mailbox that it waits for.
    pub(crate) capacity_wait: Option<Box<dyn CapacityWait>>,
    /// Signals that arrived before the actor waited for them.
    pub(crate) early: VecDeque<SignalKey>,
    pub(crate) waits: u32,
    pub(crate) children: Vec<CellRef>,
    pub(crate) watchers: Vec<CellRef>,
    pub(crate) watching: Vec<CellRef>,
    pub(crate) timers: Vec<Timer>,
    pub(crate) receive_timeout: Option<ReceiveTimeout>,
    /// The timer that ends a suspension or a restart backoff.
    pub(crate) resume_timer: Option<TimerEntry>,
    /// The timer that re-polls the future when an ask in it times out.
    pub(crate) repoll_timer: Option<TimerEntry>,
    pub(crate) history: RestartHistory,
    pub(crate) failure: Option<ActorError>,
    /// The shortest delay before the actor restarts or resumes, set by a custom invoker.
    pub(crate) retry_after: Option<Duration>,
    /// Messages for the actor that arrived while it could not handle them; at most one per watch, child and
    /// timer.
    pub(crate) deferred: VecDeque<SystemMessage>,
    pub(crate) termination: Option<Termination>,
    pub(crate) middleware: Option<Box<dyn MiddlewareChain>>,
    #[cfg(feature = "patterns")]
    pub(crate) stash: Option<Box<Stash<A::Msg>>>,
}

/// A timer set by an actor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub(crate) id: TimerId,
    pub(crate) entry: TimerEntry,
    pub(crate) repeat: Repeat,
}

/// The receive timeout of an actor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveTimeout {
    pub(crate) timeout: Duration,
    pub(crate) entry: TimerEntry,
    /// Time when the actor last handled a message or ended a wait.
    pub(crate) since: Instant,
}

impl<A: Actor> ColdState<A> {
    /// Creates the key of the actor's next wait.
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
            capacity_wait: None,
            early: VecDeque::new(),
            waits: 0,
            children: Vec::new(),
            watchers: Vec::new(),
            watching: Vec::new(),
            timers: Vec::new(),
            receive_timeout: None,
            resume_timer: None,
            repoll_timer: None,
            history: RestartHistory::default(),
            failure: None,
            retry_after: None,
            deferred: VecDeque::new(),
            termination: None,
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
            mailbox: QueueMailbox::new(mailbox),
            runner: PermitCell::new(RunnerState {
                private: VecDeque::new(),
                actor: Some(actor),
                extra,
                phase: ActorPhase::New,
                has_waiters: false,
            }),
            header: CellHeader {
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
    fn header(&self) -> &CellHeader {
        &self.header
    }

    fn settings(&self) -> &Settings {
        &self.spec.settings
    }

    fn stats(&self) -> MailboxQueueStats {
        self.mailbox.stats()
    }

    fn system_stats(&self) -> MailboxQueueStats {
        self.mailbox.system_stats()
    }

    fn push_system(&self, message: SystemMessage) -> Result<(), SystemMessage> {
        let redundant = self.mailbox.push_system_by(message, SystemMessage::enqueue_coalescing)?;
        // Dropped after the lock is released: it may hold the last reference to a cell.
        drop(redundant);
        Ok(())
    }

    fn take_parent(&mut self) -> Option<CellRef> {
        self.header.parent.take()
    }

    fn message_type(&self) -> (TypeId, &'static str) {
        (TypeId::of::<A::Msg>(), type_name::<A::Msg>())
    }

    fn mailbox(&self) -> NonNull<()> {
        NonNull::from(&self.mailbox).cast()
    }

    fn close(&self) {
        wake_all(self.mailbox.close());
    }
}

impl CellRef {
    pub(crate) fn core(&self) -> &Core {
        &self.occupant().core
    }

    pub(crate) fn header(&self) -> &CellHeader {
        self.occupant().body.header()
    }

    pub(crate) fn index(&self) -> MailboxIndex {
        MailboxIndex { slot: self.number(), generation: self.generation() }
    }

    /// Sends a system message to the cell; `Err` once it has terminated.
    pub(crate) fn tell_system(&self, message: SystemMessage) -> Result<(), SystemMessage> {
        self.occupant().body.push_system(message)?;
        self.raise(SYSTEM);
        Ok(())
    }

    /// Stops the cell; does nothing if it has terminated.
    pub(crate) fn stop(&self, mode: StopMode) {
        drop(self.tell_system(SystemMessage::Stop(mode)));
    }

    /// Returns the options of the mailbox.
    pub(crate) fn mailbox_options(&self) -> &MailboxOptions {
        self.core().mailbox_of(self.occupant().body.settings())
    }

    /// Reports whether the actor awaits a future or an external signal.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.header().awaits.load(Ordering::Relaxed) != 0
    }

    /// Reports whether the actor has stashed messages.
    pub(crate) fn has_stashed(&self) -> bool {
        self.header().stashed.load(Ordering::Relaxed) != 0
    }

    /// Returns the actor's current state.
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
        f.debug_struct("CellHeader").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn a_cell_header_takes_24_bytes() {
        assert_eq!(size_of::<CellHeader>(), 24);
    }
}
