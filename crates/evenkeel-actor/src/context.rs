//! What a handler can do beside changing its actor.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::actor::Actor;
use crate::actor_ref::{ActorRef, SendError, SendOutcome};
use crate::cell::{ActorCell, CellRef, ColdState, ReceiveTimeout, Timer};
use crate::guardian::SupervisionCommand;
use crate::index::MailboxIndex;
use crate::invoke::SignalKey;
use crate::mailbox::SystemMessage;
use crate::props::Props;
use crate::raw::mailbox_ref::MailboxRef;
use crate::stop::{StopMode, Termination};
use crate::system::{Core, SpawnError};
use crate::timer::{Repeat, TimerEvent, TimerId};
use crate::worker_local::WorkerLocal;

/// At most this many timers of one actor.
const TIMERS_MAX: usize = 1024;
/// At most this many watches of one actor.
const WATCHES_MAX: usize = 65_536;

/// A handler's view of its own cell.
pub struct Context<'a, A: Actor> {
    pub(crate) cell: &'a CellRef,
    pub(crate) body: &'a ActorCell<A>,
    pub(crate) extra: &'a mut Option<Box<ColdState<A>>>,
    pub(crate) local: &'a WorkerLocal,
    /// The mailbox that was last found full in this run.
    pub(crate) full: &'a mut Option<CapacityWait>,
}

/// Who was found full, and how to wait for it.
pub(crate) type CapacityWait = Box<dyn Fn(&Waker) -> bool + Send>;

impl<A: Actor> Context<'_, A> {
    /// Names the actor itself.
    pub fn me(&self) -> ActorRef<A::Msg> {
        ActorRef::new(MailboxRef::for_cell(self.cell, self.body))
    }

    /// Names the actor's place in the registry.
    pub fn index(&self) -> MailboxIndex {
        self.cell.index()
    }

    /// Reads the clock.
    pub fn now(&self) -> Instant {
        self.local.core().now()
    }

    /// Makes a child; it ends before this actor does, and fails to it.
    pub fn spawn<C: Actor>(&mut self, props: &Props<C>) -> Result<ActorRef<C::Msg>, SpawnError> {
        let child = Core::spawn(self.local.shared_core(), props, None, Some(self.cell.clone()))?;
        self.adopt(child.cell());
        Ok(child)
    }

    /// Makes a child of a value; see [`Props::of_values`].
    pub fn spawn_value<C: Actor>(
        &mut self,
        actor: C,
        props: &Props<C>,
    ) -> Result<ActorRef<C::Msg>, SpawnError> {
        let child = Core::spawn(self.local.shared_core(), props, Some(actor), Some(self.cell.clone()))?;
        self.adopt(child.cell());
        Ok(child)
    }

    /// A failure and an end may come from a child.
    pub(crate) fn adopt(&mut self, child: &CellRef) {
        self.body.mailbox.reserve_system(2);
        self.extra().children.push(child.clone());
    }

    /// Names the children that have not ended.
    pub fn children(&self) -> Vec<MailboxIndex> {
        self.extra.iter().flat_map(|extra| extra.children.iter().map(CellRef::index)).collect()
    }

    /// Has a child do something; `false` when there is no such child.
    pub fn command(&mut self, child: MailboxIndex, command: SupervisionCommand) -> bool {
        let child = self.extra().children.iter().find(|known| known.index() == child);
        child.is_some_and(|child| child.tell_system(SystemMessage::Command(command)).is_ok())
    }

    /// Sends, and hands back what finds no place.
    ///
    /// A full mailbox is remembered: an actor that then returns
    /// [`Flow::Suspend`](crate::Flow::Suspend) with `WhenCapacityAvailable` goes on once it is down to
    /// its low mark.
    pub fn try_tell<M: Send + 'static>(
        &mut self,
        to: &ActorRef<M>,
        message: M,
    ) -> Result<SendOutcome, SendError<M>> {
        let sent = to.try_tell(message);
        if matches!(sent, Err(SendError::Full(_))) {
            let to = to.clone();
            // Nobody but the actor itself makes room in its own mailbox, and not while it waits.
            let is_other = !to.cell().is(self.cell);
            *self.full =
                is_other.then(|| Box::new(move |waker: &Waker| to.wait_for_room(waker)) as CapacityWait);
        }
        sent
    }

    /// Has the end of another actor told as [`Signal::Terminated`](crate::Signal::Terminated), once.
    ///
    /// One that has ended already is told at once. Refused past 65 536 watches.
    pub fn watch<M: Send + 'static>(&mut self, whom: &ActorRef<M>) -> bool {
        let whom = whom.cell().clone();
        let extra = self.extra();
        if extra.watching.iter().any(|watched| watched.is(&whom)) {
            return true;
        }
        if WATCHES_MAX <= extra.watching.len() {
            return false;
        }
        extra.watching.push(whom.clone());
        self.body.mailbox.reserve_system(1);
        if whom.tell_system(SystemMessage::Watch(self.cell.clone())).is_err() {
            let ended = SystemMessage::Terminated { actor: whom, termination: Termination::Unknown };
            // This cell is running, so its lane is open.
            drop(self.cell.tell_system(ended));
        }
        true
    }

    /// Takes a watch back; an end under way is not told.
    pub fn unwatch<M: Send + 'static>(&mut self, whom: &ActorRef<M>) {
        let whom = whom.cell();
        self.extra().watching.retain(|watched| !watched.is(whom));
        drop(whom.tell_system(SystemMessage::Unwatch(self.cell.clone())));
    }

    /// Has [`Signal::Timer`](crate::Signal::Timer) told after `after`; an id set before is set anew.
    ///
    /// Refused past 1024 timers of one actor, or when the system's wheel is full.
    pub fn set_timer(&mut self, id: TimerId, after: Duration, repeat: Repeat) -> bool {
        self.cancel_timer(id);
        if TIMERS_MAX <= self.extra().timers.len() {
            return false;
        }
        let due = self.local.core().now() + after;
        let timed = TimerEvent::Timer { cell: self.cell.clone(), id };
        let Ok(entry) = self.local.core().timer_driver.insert(due, timed) else { return false };
        self.body.mailbox.reserve_system(1);
        self.extra().timers.push(Timer { id, entry, repeat });
        true
    }

    /// Ends a timer; a firing under way is not told.
    pub fn cancel_timer(&mut self, id: TimerId) {
        let Some(extra) = self.extra.as_deref_mut() else { return };
        if let Some(at) = extra.timers.iter().position(|timer| timer.id == id) {
            let timer = extra.timers.swap_remove(at);
            self.local.core().timer_driver.cancel(timer.entry);
        }
    }

    /// Has [`Signal::ReceiveTimeout`](crate::Signal::ReceiveTimeout) told whenever no message was handled
    /// for `span`, a millisecond at least; `None` ends that.
    ///
    /// The wait for a future does not count, and what the system says is no message. Refused when the
    /// system's wheel is full.
    pub fn set_receive_timeout(&mut self, span: Option<Duration>) -> bool {
        let timer_driver = &self.local.core().timer_driver;
        if let Some(timeout) = self.extra.as_deref_mut().and_then(|extra| extra.receive_timeout.take()) {
            timer_driver.cancel(timeout.entry);
        }
        let Some(span) = span else { return true };
        // A timeout of nothing would be told all the time.
        let now = self.local.core().now();
        let span = span.max(Duration::from_millis(1));
        let Ok(entry) = timer_driver.insert(now + span, TimerEvent::ReceiveTimeout(self.cell.clone())) else {
            return false;
        };
        self.body.mailbox.reserve_system(1);
        self.extra().receive_timeout = Some(ReceiveTimeout { timeout: span, entry, since: now });
        true
    }

    /// Names a wait to come, for [`ResumeCondition::ExternalSignal`](crate::ResumeCondition).
    pub fn signal_key(&mut self) -> SignalKey {
        let slot = self.cell.number();
        self.extra().next_key(slot)
    }

    /// Asks another actor to end.
    pub fn stop<M: Send + 'static>(&mut self, whom: &ActorRef<M>, mode: StopMode) {
        whom.stop(mode);
    }

    pub(crate) fn extra(&mut self) -> &mut ColdState<A> {
        self.extra.get_or_insert_default()
    }
}
