//! The context of a handler: spawning, supervision commands, death watch, timers and suspension.

use alloc::boxed::Box;
use alloc::vec::Vec;
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
use crate::room_wait::{CapacityWait, RoomWait};
use crate::stop::{StopMode, Termination};
use crate::system::{Core, SpawnError};
use crate::timer::{Repeat, TimerEvent, TimerId};
use crate::worker_local::WorkerLocal;

/// The maximum number of timers of one actor.
const TIMERS_MAX: usize = 1024;
/// The maximum number of actors that one actor watches.
const WATCHES_MAX: usize = 65_536;

/// A handler's access to its actor's cell and to the system.
pub struct Context<'a, A: Actor> {
    pub(crate) cell: &'a CellRef,
    pub(crate) body: &'a ActorCell<A>,
    pub(crate) extra: &'a mut Option<Box<ColdState<A>>>,
    pub(crate) local: &'a WorkerLocal,
    /// The wait for the mailbox that was last found full in this run.
    pub(crate) full: &'a mut Option<Box<dyn CapacityWait>>,
}

impl<A: Actor> Context<'_, A> {
    /// Returns the address of this actor.
    pub fn me(&self) -> ActorRef<A::Msg> {
        ActorRef::new(MailboxRef::for_cell(self.cell, self.body))
    }

    /// Returns the index of this actor.
    pub fn index(&self) -> MailboxIndex {
        self.cell.index()
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.local.core().now()
    }

    /// Spawns a child. It stops before this actor does, and this actor supervises it.
    pub fn spawn<C: Actor>(&mut self, props: &Props<C>) -> Result<ActorRef<C::Msg>, SpawnError> {
        let child = Core::spawn(self.local.shared_core(), props, None, Some(self.cell.clone()))?;
        self.adopt(child.cell());
        Ok(child)
    }

    /// Spawns a child from a value; see [`Props::of_values`].
    pub fn spawn_value<C: Actor>(
        &mut self,
        actor: C,
        props: &Props<C>,
    ) -> Result<ActorRef<C::Msg>, SpawnError> {
        let child = Core::spawn(self.local.shared_core(), props, Some(actor), Some(self.cell.clone()))?;
        self.adopt(child.cell());
        Ok(child)
    }

    /// Adds a child, and reserves capacity for the two system messages it may send: its failure and its termination.
    pub(crate) fn adopt(&mut self, child: &CellRef) {
        self.body.mailbox.reserve_system(2);
        self.extra().children.push(child.clone());
    }

    /// Returns the children that have not stopped.
    pub fn children(&self) -> Vec<MailboxIndex> {
        self.extra.iter().flat_map(|extra| extra.children.iter().map(CellRef::index)).collect()
    }

    /// Sends a command to a child; returns `false` if there is no such child.
    pub fn command(&mut self, child: MailboxIndex, command: SupervisionCommand) -> bool {
        let child = self.extra().children.iter().find(|cell| cell.index() == child);
        child.is_some_and(|child| child.tell_system(SystemMessage::Command(command)).is_ok())
    }

    /// Sends, or returns the message if the mailbox is full or closed.
    ///
    /// A full mailbox is remembered: if the handler then returns [`Flow::Suspend`](crate::Flow::Suspend) with
    /// `WhenCapacityAvailable`, the actor resumes once that mailbox is down to its low watermark, or with
    /// [`Signal::CapacityTimeout`](crate::Signal::CapacityTimeout) after
    /// [`capacity_wait_max`](crate::ActorSystemConfig::capacity_wait_max).
    pub fn try_tell<M: Send + 'static>(
        &mut self,
        to: &ActorRef<M>,
        message: M,
    ) -> Result<SendOutcome, SendError<M>> {
        let outcome = to.try_tell(message);
        if matches!(outcome, Err(SendError::Full(_))) {
            // Only the actor itself empties its own mailbox, and not while it is suspended.
            let is_other = !to.cell().is(self.cell);
            *self.full = is_other.then(|| Box::new(RoomWait::new(to.clone())) as Box<dyn CapacityWait>);
        }
        outcome
    }

    /// Watches another actor (death watch): its end is signalled once, as [`Signal::Terminated`](crate::Signal::Terminated).
    ///
    /// If it has already stopped, the signal is sent at once. Returns `false` past 65 536 watched actors.
    pub fn watch<M: Send + 'static>(&mut self, target: &ActorRef<M>) -> bool {
        let target = target.cell().clone();
        let extra = self.extra();
        if extra.watching.iter().any(|watched| watched.is(&target)) {
            return true;
        }
        if extra.watching.len() >= WATCHES_MAX {
            return false;
        }
        extra.watching.push(target.clone());
        self.body.mailbox.reserve_system(1);
        if target.tell_system(SystemMessage::Watch(self.cell.clone())).is_err() {
            let terminated = SystemMessage::Terminated { actor: target, termination: Termination::Unknown };
            // This cell is running, so its system queue is open.
            drop(self.cell.tell_system(terminated));
        }
        true
    }

    /// Stops watching an actor; a `Terminated` signal already on its way is not delivered.
    pub fn unwatch<M: Send + 'static>(&mut self, target: &ActorRef<M>) {
        let target = target.cell();
        self.extra().watching.retain(|watched| !watched.is(target));
        drop(target.tell_system(SystemMessage::Unwatch(self.cell.clone())));
    }

    /// Sets a timer that sends [`Signal::Timer`](crate::Signal::Timer) after `after`; replaces a timer with the same ID.
    ///
    /// Returns `false` past 1024 timers of one actor, or if the system's timing wheel is full.
    pub fn set_timer(&mut self, id: TimerId, after: Duration, repeat: Repeat) -> bool {
        self.cancel_timer(id);
        if self.extra().timers.len() >= TIMERS_MAX {
            return false;
        }
        let due = self.local.core().now() + after;
        let event = TimerEvent::Timer { cell: self.cell.clone(), id };
        let Ok(entry) = self.local.core().timer_driver.insert(due, event) else { return false };
        self.body.mailbox.reserve_system(1);
        self.extra().timers.push(Timer { id, entry, repeat });
        true
    }

    /// Cancels a timer; a signal already on its way is not delivered.
    pub fn cancel_timer(&mut self, id: TimerId) {
        let Some(extra) = self.extra.as_deref_mut() else { return };
        if let Some(index) = extra.timers.iter().position(|timer| timer.id == id) {
            let timer = extra.timers.swap_remove(index);
            self.local.core().timer_driver.cancel(timer.entry);
        }
    }

    /// Sends [`Signal::ReceiveTimeout`](crate::Signal::ReceiveTimeout) whenever no message was handled for `timeout`, at
    /// least a millisecond; `None` turns it off.
    ///
    /// Time spent awaiting a future does not count, and signals do not count as messages. Returns `false` if the
    /// system's timing wheel is full.
    pub fn set_receive_timeout(&mut self, timeout: Option<Duration>) -> bool {
        let timer_driver = &self.local.core().timer_driver;
        if let Some(previous) = self.extra.as_deref_mut().and_then(|extra| extra.receive_timeout.take()) {
            timer_driver.cancel(previous.entry);
        }
        let Some(timeout) = timeout else { return true };
        // A timeout of zero would fire continuously.
        let now = self.local.core().now();
        let timeout = timeout.max(Duration::from_millis(1));
        let Ok(entry) = timer_driver.insert(now + timeout, TimerEvent::ReceiveTimeout(self.cell.clone()))
        else {
            return false;
        };
        self.body.mailbox.reserve_system(1);
        self.extra().receive_timeout = Some(ReceiveTimeout { timeout, entry, since: now });
        true
    }

    /// Creates a key that identifies one wait, for [`ResumeCondition::ExternalSignal`](crate::ResumeCondition).
    pub fn signal_key(&mut self) -> SignalKey {
        let slot = self.cell.number();
        self.extra().next_key(slot)
    }

    /// Stops another actor.
    pub fn stop<M: Send + 'static>(&mut self, target: &ActorRef<M>, mode: StopMode) {
        target.stop(mode);
    }

    pub(crate) fn extra(&mut self) -> &mut ColdState<A> {
        self.extra.get_or_insert_default()
    }
}
