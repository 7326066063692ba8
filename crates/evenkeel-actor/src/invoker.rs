//! Runs one actor for a while: the system's messages first, then the user's, one at a time.
//!
//! Bound: as many user messages as the runtime gives a run or the worker's slice, whichever ends first,
//! then others have their turn. The system lane is looked at before every user message, so a stop, a
//! suspension or a failure acts before the next one, and what was taken out of the lane stays in the
//! cell: nothing is lost or reordered.

mod failure;
#[cfg(feature = "patterns")]
mod stash;
mod system_messages;
mod termination;

use alloc::boxed::Box;
use core::ops::ControlFlow;
use core::task::Poll;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::actor::{Actor, Flow, HandlerResult, MessageFuture};
use crate::cell::{ActorCell, CellRef, ColdState, Phase, RunnerState};
use crate::context::{CapacityWait, Context};
use crate::guardian::{ActorError, StopReason};
use crate::invoke::{ActorState, InvokeKind, InvokeResult, MessageInvoker, ResumeCondition, SuspendReason};
use crate::mailbox::QueueMailbox;
use crate::middleware::InvokeContext;
use crate::panic::catch;
use crate::raw::run_permit::PermitState;
use crate::raw::state::{CLOSED, CellState, SIGNAL, SUSPENDED, SYSTEM, USER, WAITERS};
use crate::raw::waker;
use crate::stop::Termination;
use crate::sync::Ordering;
use crate::timer::TimerEvent;
use crate::timer_driver::coarse_us;
use crate::trace::{Envelope, SpanHandle};
use crate::worker_local::{SliceBudget, WorkerLocal};

/// How long a run that middleware held back waits to be tried again.
const MIDDLEWARE_RETRY: Duration = Duration::from_millis(1);

/// Executes what waits for one actor, on the worker that holds its run right.
pub(crate) struct ActorCellInvoker<'a, A: Actor> {
    cell: &'a CellRef,
    body: &'a ActorCell<A>,
    owner: &'a mut RunnerState<A>,
    local: &'a WorkerLocal,
    full: Option<CapacityWait>,
    /// The span of the message at hand.
    trace: SpanHandle,
    handled: usize,
    /// Whether the middleware is to be told how the run ends.
    surrounded: bool,
    right: PermitState,
}

impl<A: Actor> MessageInvoker for ActorCellInvoker<'_, A> {
    /// Handles at most `messages_max` user messages.
    ///
    /// Inlined, so that a caller who looks only at how the run ended pays for nothing else of the result.
    #[inline(always)]
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult {
        let step = catch(|| self.serve(messages_max)).unwrap_or_else(|panic| {
            // It may have come from the middle of the system lane, whose flag is then down.
            self.state().set(SYSTEM);
            // Or from the future's poll.
            drop(self.local.end_poll());
            NextAction::Fail(panic)
        });
        let result = match step {
            NextAction::Idle => self.finish_idle(),
            NextAction::Await => self.suspend_for_future(),
            NextAction::Yield => self.finish_with_permit(InvokeResult::Yielded),
            step => self.finish_run(step),
        };
        self.local.count_run(self.handled);
        result
    }

    fn actor_state(&self) -> ActorState {
        self.cell.state()
    }
}

/// Why serving stopped; small, because every run returns one.
enum NextAction {
    /// Nothing is left that may be served.
    Idle,
    /// The budget or the slice is used up.
    Yield,
    /// The actor waits for its future.
    Await,
    /// The actor is not to be served until the condition holds.
    Suspend(Box<(SuspendReason, ResumeCondition)>),
    /// The actor failed.
    Fail(ActorError),
    /// The actor ends, as soon as its children have.
    Stop,
    /// The same, for this failure.
    GiveUp(ActorError),
    /// The last child has ended; nothing keeps the actor.
    End,
}

impl NextAction {
    fn suspend(reason: SuspendReason, resume_on: ResumeCondition) -> Self {
        Self::Suspend(Box::new((reason, resume_on)))
    }
}

/// How a run ended, or what to do first.
type ActionResult = ControlFlow<InvokeResult, NextAction>;

impl<'a, A: Actor> ActorCellInvoker<'a, A> {
    pub(crate) fn new(
        cell: &'a CellRef,
        body: &'a ActorCell<A>,
        owner: &'a mut RunnerState<A>,
        local: &'a WorkerLocal,
    ) -> Self {
        Self {
            cell,
            body,
            owner,
            local,
            full: None,
            trace: SpanHandle::NONE,
            handled: 0,
            surrounded: false,
            right: PermitState::KEPT,
        }
    }

    /// Runs the cell; tells how that ended and where the run right is.
    #[inline]
    pub(crate) fn run(mut self) -> (InvokeKind, PermitState) {
        let ready_us = self.body.head.ready_us.load(Ordering::Relaxed);
        let kind = if ready_us != 0 || self.local.times_run() {
            self.run_timed(ready_us)
        } else {
            self.invoke_batch(self.local.messages_per_run).kind()
        };
        (kind, self.right)
    }

    /// Runs the cell with the clock in hand.
    #[cold]
    fn run_timed(&mut self, ready_us: u32) -> InvokeKind {
        let core = self.local.core();
        let kind = self.body.head.kind;
        let began = core.now();
        if ready_us != 0 {
            self.body.head.ready_us.store(0, Ordering::Relaxed);
            let waited = coarse_us(began).wrapping_sub(ready_us);
            self.local.counters().latency(kind).record(Duration::from_micros(u64::from(waited)));
        }
        let ended = self.invoke_batch(self.local.messages_per_run).kind();
        self.local.counters().invoke_duration(kind).record(core.now().since(began));
        ended
    }

    /// Serves until there is a reason not to.
    #[inline]
    fn serve(&mut self, messages_max: usize) -> NextAction {
        if self.owner.phase == Phase::New
            && let Some(step) = self.start()
        {
            return step;
        }
        loop {
            let flags = self.state().flags_relaxed();
            if flags & (SYSTEM | SIGNAL | WAITERS | SUSPENDED) != 0
                && let Some(step) = self.process_system(flags)
            {
                return step;
            }
            if messages_max <= self.handled || self.local.consume_budget() == SliceBudget::None {
                return NextAction::Yield;
            }
            let Some(message) = self.next() else {
                let drained = self.state().flags_relaxed() & CLOSED != 0;
                return if drained { NextAction::Stop } else { NextAction::Idle };
            };
            if self.handled == 0
                && let Some(step) = self.open_run()
            {
                self.put_back(message);
                return step;
            }
            self.trace = message.trace;
            match self.receive(message.message) {
                Ok(Flow::Continue) => {}
                handled => {
                    if let Some(step) = self.apply_flow(handled) {
                        return step;
                    }
                }
            }
        }
    }

    fn start(&mut self) -> Option<NextAction> {
        self.owner.phase = Phase::Running;
        let handled = self.hook(A::started)?;
        self.apply_flow(handled)
    }

    /// Takes the next user message out of the private half, and fills that when it is empty.
    #[inline]
    fn next(&mut self) -> Option<Envelope<A::Msg>> {
        let message = self.next_waiting()?;
        message.trace.record_dequeued();
        Some(message)
    }

    #[inline]
    fn next_waiting(&mut self) -> Option<Envelope<A::Msg>> {
        if let Some(message) = self.owner.private.pop_front() {
            self.body.lane.tell_left(self.owner.private.len());
            return Some(message);
        }
        // Once the lane is closed, nobody may be waited for who has put a message in and has yet to raise
        // the flag.
        if self.state().flags_relaxed() & (USER | CLOSED) == 0 {
            return None;
        }
        self.body.lane.take(&mut self.owner.private, &self.cell.slot().state)
    }

    /// Asks the middleware, if there is one, before the first message of a run; a step if that is not
    /// to be handled.
    #[inline]
    fn open_run(&mut self) -> Option<NextAction> {
        let middleware = self.owner.extra.as_deref_mut()?.middleware.as_mut()?;
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            // The one at hand waited too.
            messages: self.body.lane.stats().depth + 1,
        };
        match catch(|| middleware.before_invoke(&ctx)) {
            Ok(ControlFlow::Continue(())) => {
                self.surrounded = true;
                None
            }
            Ok(ControlFlow::Break(())) => {
                Some(NextAction::suspend(SuspendReason::RateLimit, ResumeCondition::After(MIDDLEWARE_RETRY)))
            }
            Err(panic) => Some(NextAction::Fail(panic)),
        }
    }

    /// Makes a message the next one again.
    fn put_back(&mut self, message: Envelope<A::Msg>) {
        self.owner.private.push_front(message);
        self.body.lane.tell_left(self.owner.private.len());
    }

    #[inline(always)]
    fn receive(&mut self, message: A::Msg) -> HandlerResult<A::Msg> {
        self.handled += 1;
        let Some(actor) = self.owner.actor.as_mut() else { return Ok(Flow::Continue) };
        let mut ctx = Context {
            cell: self.cell,
            body: self.body,
            extra: &mut self.owner.extra,
            local: self.local,
            full: &mut self.full,
        };
        self.trace.within(|| actor.receive(message, &mut ctx))
    }

    /// Calls one of the actor's other methods.
    fn hook<R>(&mut self, call: impl FnOnce(&mut A, &mut Context<'_, A>) -> R) -> Option<R> {
        let actor = self.owner.actor.as_mut()?;
        let mut ctx = Context {
            cell: self.cell,
            body: self.body,
            extra: &mut self.owner.extra,
            local: self.local,
            full: &mut self.full,
        };
        Some(call(actor, &mut ctx))
    }

    /// Does what a handler wants; `None` to go on.
    fn apply_flow(&mut self, handled: HandlerResult<A::Msg>) -> Option<NextAction> {
        match handled {
            Ok(Flow::Continue) => None,
            Ok(Flow::Yield) => Some(NextAction::Yield),
            Ok(Flow::Await(future)) => self.wait_for(future),
            Ok(Flow::Suspend(reason, condition)) => Some(NextAction::suspend(reason, condition)),
            Ok(Flow::Stop) => Some(NextAction::Stop),
            Err(error) => Some(NextAction::Fail(error)),
        }
    }

    /// Polls a future; its output is the next message.
    fn wait_for(&mut self, mut future: MessageFuture<A::Msg>) -> Option<NextAction> {
        loop {
            let waker = waker::lend(self.cell);
            self.local.begin_poll(&waker, self.extra().spare.take());
            let mut cx = core::task::Context::from_waker(&waker);
            let polled = self.trace.within(|| future.as_mut().poll(&mut cx));
            let (expires, spare) = self.local.end_poll();
            let extra = self.extra();
            extra.spare = spare;
            let Poll::Ready(message) = polled else {
                extra.future = Some(future);
                if let Some(due) = expires {
                    self.schedule_repoll(due);
                }
                return Some(NextAction::Await);
            };
            drop(future);
            if self.handled == 0
                && let Some(step) = self.open_run()
            {
                let trace = core::mem::take(&mut self.trace);
                self.put_back(Envelope { message, trace });
                return Some(step);
            }
            match self.receive(message) {
                Ok(Flow::Await(next)) if self.local.consume_budget() == SliceBudget::Some => future = next,
                Ok(Flow::Await(next)) => {
                    self.extra().future = Some(next);
                    self.state().set(SIGNAL);
                    return Some(NextAction::Await);
                }
                handled => return self.apply_flow(handled),
            }
        }
    }

    /// Has the clock wake the cell when a question in its future expires.
    ///
    /// An entry that is there and comes no later is left as it is, so that a task that asks all day
    /// sets one timer per deadline and not one per question.
    fn schedule_repoll(&mut self, due: Instant) {
        let clock = &self.local.core().clock;
        let expiry = &mut self.owner.extra.get_or_insert_default().expiry;
        if expiry.is_some_and(|alarm| alarm.due <= due) {
            return;
        }
        if let Some(alarm) = expiry.take() {
            clock.cancel(alarm);
        }
        match clock.insert(due, TimerEvent::Expire(self.cell.clone())) {
            Ok(alarm) => *expiry = Some(alarm),
            // No room in the wheel: keep looking, rather than never.
            Err(_) => self.cell.announce(SIGNAL),
        }
    }

    /// Suspends the actor until the waker of its future fires; the future is the wait.
    #[inline]
    fn suspend_for_future(&mut self) -> InvokeResult {
        let slot = self.cell.number();
        let key = self.extra().next_key(slot);
        let reason = SuspendReason::AwaitExternal;
        let resume_on = ResumeCondition::ExternalSignal(key);
        let wait = self.trace.for_wait(self.cell, reason, resume_on);
        let trace = core::mem::take(&mut self.trace);
        let extra = self.extra();
        (extra.wait, extra.trace) = (wait, trace);
        if self.owner.phase == Phase::Running {
            self.owner.phase = Phase::Waiting;
            self.body.head.awaits.store(1, Ordering::Relaxed);
        }
        self.finish(InvokeResult::Suspended { reason, resume_on })
    }

    /// Ends a suspension, if there is one.
    fn resume(&mut self) {
        if self.owner.phase != Phase::Waiting {
            return;
        }
        self.owner.phase = Phase::Running;
        let extra = self.extra();
        extra.waiting = None;
        extra.wait = SpanHandle::NONE;
        if let Some(alarm) = extra.resume.take() {
            self.local.core().clock.cancel(alarm);
        }
        self.body.head.awaits.store(0, Ordering::Relaxed);
        self.record_active();
    }

    /// Notes that the actor does something, for its receive timeout.
    #[inline]
    fn record_active(&mut self) {
        let Some(extra) = self.owner.extra.as_deref_mut() else { return };
        if let Some(idle) = &mut extra.idle {
            idle.since = self.local.core().now();
        }
    }

    #[inline]
    fn finish_idle(&mut self) -> InvokeResult {
        QueueMailbox::<A::Msg>::shrink(&mut self.owner.private);
        self.finish(InvokeResult::Completed { ready_hint: false })
    }

    /// Ends the run for a reason.
    ///
    /// A restart at once may fail at once, as often as its supervisor allows: a loop, not a recursion.
    #[cold]
    fn finish_run(&mut self, mut step: NextAction) -> InvokeResult {
        loop {
            let settled = match step {
                NextAction::Idle => return self.finish_idle(),
                NextAction::Await => return self.suspend_for_future(),
                NextAction::Yield => return self.finish_with_permit(InvokeResult::Yielded),
                NextAction::Suspend(wish) => self.suspend(wish.0, wish.1),
                NextAction::Fail(error) => self.fail(error),
                NextAction::Stop => return self.begin_stop(Termination::Stopped),
                NextAction::GiveUp(error) => {
                    return self.begin_stop(Termination::Failed { error, reason: StopReason::Directed });
                }
                NextAction::End => return self.terminate(),
            };
            match settled {
                ActionResult::Break(result) => return result,
                ActionResult::Continue(next) => step = next,
            }
        }
    }

    fn suspend(&mut self, reason: SuspendReason, resume_on: ResumeCondition) -> ActionResult {
        let waits = match resume_on {
            ResumeCondition::After(span) => {
                let due = self.local.core().now() + span;
                match self.local.core().clock.insert(due, TimerEvent::Resume(self.cell.clone())) {
                    Ok(alarm) => {
                        self.extra().resume = Some(alarm);
                        true
                    }
                    Err(_) => {
                        return ActionResult::Continue(NextAction::Fail(ActorError::new(
                            "no room for another timer",
                        )));
                    }
                }
            }
            ResumeCondition::ExternalSignal(key) => {
                let early = &mut self.extra().early;
                let before = early.len();
                early.retain(|signalled| *signalled != key);
                let waits = early.len() == before;
                if waits {
                    self.body.lane.await_signal(key.0);
                }
                waits
            }
            ResumeCondition::WhenCapacityAvailable => match self.full.take() {
                // Too many wait there already: come back by yourself.
                Some(full) if !full(&waker::of(self.cell)) => {
                    let later = ResumeCondition::After(MIDDLEWARE_RETRY);
                    return ActionResult::Continue(NextAction::suspend(reason, later));
                }
                Some(_) => true,
                None => false,
            },
        };
        if !waits {
            return ActionResult::Break(self.finish_with_permit(InvokeResult::Yielded));
        }
        self.owner.phase = Phase::Waiting;
        let wait = self.trace.for_wait(self.cell, reason, resume_on);
        let extra = self.extra();
        (extra.waiting, extra.wait) = (Some((reason, resume_on)), wait);
        if reason == SuspendReason::AwaitExternal {
            self.body.head.awaits.store(1, Ordering::Relaxed);
        }
        ActionResult::Break(self.finish(InvokeResult::Suspended { reason, resume_on }))
    }

    /// What the state is to say of the user lane once nobody runs the cell.
    ///
    /// What was taken out of the lane and not handled keeps a suspended cell worth resuming.
    fn release_flags(&self) -> u32 {
        match self.owner.phase {
            Phase::New | Phase::Running => 0,
            Phase::Waiting | Phase::Failed | Phase::Restarting | Phase::Stopping => {
                if self.owner.private.is_empty() { SUSPENDED } else { SUSPENDED | USER }
            }
        }
    }

    /// Ends the run with the run right kept.
    #[inline]
    fn finish_with_permit(&mut self, result: InvokeResult) -> InvokeResult {
        self.close_run(result)
    }

    /// Ends the run; the run right goes back unless something came up meanwhile.
    #[inline]
    fn finish(&mut self, result: InvokeResult) -> InvokeResult {
        let result = self.close_run(result);
        self.right = PermitState::spent(self.release_flags());
        result
    }

    /// Does what every run ends with.
    #[inline]
    fn close_run(&mut self, result: InvokeResult) -> InvokeResult {
        self.wake_waiters();
        if self.handled != 0 {
            self.record_active();
        }
        self.after_invoke(result)
    }

    /// Lets producers go on that wait for room.
    #[inline]
    fn wake_waiters(&mut self) {
        if self.owner.awaited || self.state().flags_relaxed() & WAITERS != 0 {
            self.wake_those();
        }
    }

    #[cold]
    fn wake_those(&mut self) {
        if self.state().flags_relaxed() & WAITERS != 0 {
            self.state().lower(WAITERS);
            self.owner.awaited = true;
        }
        self.owner.awaited = self.body.lane.wake_waiters(self.cell.mailbox().low_mark);
    }

    /// Tells the middleware that let the run's messages through how it ended.
    ///
    /// By value: a result that is lent has to be made in memory, also where nobody looks at it.
    #[inline]
    fn after_invoke(&mut self, result: InvokeResult) -> InvokeResult {
        if self.surrounded { self.tell_middleware(result) } else { result }
    }

    #[cold]
    fn tell_middleware(&mut self, result: InvokeResult) -> InvokeResult {
        self.surrounded = false;
        let Some(extra) = self.owner.extra.as_deref_mut() else { return result };
        let Some(middleware) = &mut extra.middleware else { return result };
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            messages: self.handled,
        };
        if catch(|| middleware.after_invoke(&ctx, &result)).is_err() {
            // What became of the run is settled; that its middleware is broken is told.
            self.local.core().hub.count_failure(self.body.head.kind);
        }
        result
    }

    fn state(&self) -> &'a CellState {
        let cell: &'a CellRef = self.cell;
        &cell.slot().state
    }

    fn extra(&mut self) -> &mut ColdState<A> {
        self.owner.extra.get_or_insert_default()
    }
}
