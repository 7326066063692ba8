//! Runs one actor cell: system messages first, then user messages, one at a time.
//!
//! Limits: a run handles at most the runtime's `messages_per_run` messages, or fewer if the worker's time slice
//! ends, then other cells get their turn. Guarantees: the system queue is checked before every user message,
//! so a stop, a suspension or a failure takes effect before the next one; messages taken out of the queue but
//! not handled stay in the cell, so none is lost or reordered. A custom invoker handles a batch as if it were one
//! message: the system queue is checked before the batch, and the run makes way for asked actors after it.

mod custom;
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
use crate::cell::{ActorCell, ActorPhase, CellRef, ColdState, RunnerState};
use crate::context::Context;
use crate::guardian::{ActorError, StopReason};
use crate::invoke::{ActorState, InvokeKind, InvokeResult, MessageInvoker, ResumeCondition, SuspendReason};
use crate::mailbox::QueueMailbox;
use crate::middleware::InvokeContext;
use crate::panic::catch_panic;
use crate::raw::run_permit::PermitState;
use crate::raw::state::{CLOSED, CellState, SUSPENDED, SYSTEM, USER, WAITERS, WOKEN};
use crate::raw::{clear_then_look, waker};
use crate::room_wait::CapacityWait;
use crate::stop::Termination;
use crate::sync::Ordering;
use crate::timer::TimerEvent;
use crate::timer_driver::coarse_us;
use crate::trace::{Envelope, SpanHandle};
use crate::worker_local::{PolledKind, SliceBudget, WorkerLocal};

/// Delay before retrying a run that the middleware rejected, or a wait for capacity that could not be registered.
const MIDDLEWARE_RETRY: Duration = Duration::from_millis(1);
/// Interval, in messages of a run, of the check for actors that are asked from outside the workers.
const ASKED_INTERVAL: usize = 8;

/// Runs one actor, on the worker that holds its run permit.
pub(crate) struct ActorCellInvoker<'a, A: Actor> {
    cell: &'a CellRef,
    body: &'a ActorCell<A>,
    runner: &'a mut RunnerState<A>,
    local: &'a WorkerLocal,
    capacity_wait: Option<Box<dyn CapacityWait>>,
    /// The span of the current message.
    trace: SpanHandle,
    handled: usize,
    /// Set while the middleware must still be notified of the end of the run.
    middleware_entered: bool,
    permit: PermitState,
}

impl<A: Actor> MessageInvoker for ActorCellInvoker<'_, A> {
    /// Handles at most `messages_max` user messages.
    ///
    /// Inlined, so that a caller that uses only the kind of the result pays for nothing else.
    #[inline(always)]
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult {
        let action = catch_panic(|| self.process_messages(messages_max)).unwrap_or_else(|panic| {
            // The panic may have interrupted the system queue, whose flag is then already cleared.
            self.state().set(SYSTEM);
            // Or it may have interrupted the poll of a future.
            drop(self.local.end_poll());
            NextAction::Fail(panic)
        });
        let result = match action {
            NextAction::Idle => self.finish_idle(),
            NextAction::Await => self.suspend_for_future(),
            NextAction::Yield => self.finish_with_permit(InvokeResult::Yielded),
            action => self.finish_run(action),
        };
        self.local.count_run(self.handled);
        result
    }

    fn actor_state(&self) -> ActorState {
        self.cell.state()
    }
}

/// Reason why message processing stopped; small, because every run returns one.
enum NextAction {
    /// There is nothing left to process.
    Idle,
    /// The budget or the slice is used up.
    Yield,
    /// The actor awaits its future.
    Await,
    /// The actor is suspended until the condition holds.
    Suspend(Box<(SuspendReason, ResumeCondition)>),
    /// The actor failed.
    Fail(ActorError),
    /// The actor stops after its children have terminated.
    Stop,
    /// Like `Stop`, because of this failure.
    StopFailed(ActorError),
    /// The last child has terminated, so the actor terminates too.
    Terminate,
}

/// Number of messages that were taken out of the queue before the middleware is called.
#[derive(Clone, Copy)]
enum TakenMessages {
    None,
    One,
}

impl NextAction {
    fn suspend(reason: SuspendReason, resume_on: ResumeCondition) -> Self {
        Self::Suspend(Box::new((reason, resume_on)))
    }
}

fn no_room_for_timer() -> NextAction {
    NextAction::Fail(ActorError::new("no room for another timer"))
}

/// The result of the run, or a further action to take first.
type ActionResult = ControlFlow<InvokeResult, NextAction>;

impl<'a, A: Actor> ActorCellInvoker<'a, A> {
    pub(crate) fn new(
        cell: &'a CellRef,
        body: &'a ActorCell<A>,
        runner: &'a mut RunnerState<A>,
        local: &'a WorkerLocal,
    ) -> Self {
        Self {
            cell,
            body,
            runner,
            local,
            capacity_wait: None,
            trace: SpanHandle::NONE,
            handled: 0,
            middleware_entered: false,
            permit: PermitState::KEPT,
        }
    }

    /// Runs the cell; returns the kind of the result and the state of the run permit.
    #[inline]
    pub(crate) fn invoke(mut self) -> (InvokeKind, PermitState) {
        let ready_us = self.body.header.ready_us.load(Ordering::Relaxed);
        let kind = if ready_us != 0 || self.local.should_time_run() {
            self.invoke_timed(ready_us)
        } else {
            self.invoke_batch(self.local.messages_per_run).kind()
        };
        (kind, self.permit)
    }

    /// Runs the cell and records its latency and duration.
    #[cold]
    fn invoke_timed(&mut self, ready_us: u32) -> InvokeKind {
        let core = self.local.core();
        let kind = self.body.header.kind;
        let started = core.now();
        if ready_us != 0 {
            self.body.header.ready_us.store(0, Ordering::Relaxed);
            let waited = coarse_us(started).wrapping_sub(ready_us);
            self.local.counters().latency(kind).record(Duration::from_micros(u64::from(waited)));
        }
        let ended = self.invoke_batch(self.local.messages_per_run).kind();
        self.local.counters().invoke_duration(kind).record(core.now().since(started));
        ended
    }

    /// Processes messages until there is a reason to stop.
    #[inline]
    fn process_messages(&mut self, messages_max: usize) -> NextAction {
        if self.runner.phase == ActorPhase::New
            && let Some(action) = self.start()
        {
            return action;
        }
        loop {
            let flags = self.state().flags_relaxed();
            if flags & (SYSTEM | WOKEN | WAITERS | SUSPENDED) != 0
                && let Some(action) = self.process_system(flags)
            {
                return action;
            }
            if self.handled >= messages_max || self.local.consume_budget() == SliceBudget::None {
                return NextAction::Yield;
            }
            if self.must_make_way() {
                return NextAction::Yield;
            }
            // Known at compile time for every actor type but one.
            if let Some(action) = self.try_custom_invoker(messages_max) {
                return action;
            }
            let Some(message) = self.next_message() else { return self.queue_is_empty() };
            if self.handled == 0
                && let Some(action) = self.before_invoke(TakenMessages::One)
            {
                self.requeue_front(message);
                return action;
            }
            self.trace = message.trace;
            match self.call_handler(message.message) {
                Ok(Flow::Continue) => {}
                handled => {
                    if let Some(action) = self.apply_flow(handled) {
                        return action;
                    }
                }
            }
        }
    }

    /// Reports whether the run should end early, because another actor was asked from outside the workers.
    #[inline]
    fn must_make_way(&self) -> bool {
        let is_check_due = self.handled % ASKED_INTERVAL == ASKED_INTERVAL - 1;
        is_check_due && self.local.core().coordinator.queues.has_asked()
    }

    /// Returns the action for an empty user queue: a closed mailbox has been drained.
    fn queue_is_empty(&self) -> NextAction {
        let is_closed = self.state().flags_relaxed() & CLOSED != 0;
        if is_closed { NextAction::Stop } else { NextAction::Idle }
    }

    fn start(&mut self) -> Option<NextAction> {
        self.runner.phase = ActorPhase::Running;
        let handled = self.call_hook(A::started)?;
        self.apply_flow(handled)
    }

    /// Takes the next user message from the private half, refilling it from the shared half when it is empty.
    #[inline]
    fn next_message(&mut self) -> Option<Envelope<A::Msg>> {
        let message = clear_then_look::pop_user(self.state(), &self.body.mailbox, &mut self.runner.private)?;
        message.trace.record_dequeued();
        Some(message)
    }

    /// Calls the middleware, if there is one, before the first message of a run; returns an action if the
    /// message must not be handled.
    #[inline]
    fn before_invoke(&mut self, taken: TakenMessages) -> Option<NextAction> {
        let middleware = self.runner.extra.as_deref_mut()?.middleware.as_mut()?;
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            messages: self.body.mailbox.stats().depth + taken as usize,
        };
        match catch_panic(|| middleware.before_invoke(&ctx)) {
            Ok(ControlFlow::Continue(())) => {
                self.middleware_entered = true;
                None
            }
            Ok(ControlFlow::Break(())) => {
                Some(NextAction::suspend(SuspendReason::RateLimit, ResumeCondition::After(MIDDLEWARE_RETRY)))
            }
            Err(panic) => Some(NextAction::Fail(panic)),
        }
    }

    /// Puts a message back, to be handled next.
    fn requeue_front(&mut self, message: Envelope<A::Msg>) {
        self.runner.private.push_front(message);
        self.body.mailbox.set_private_len(self.runner.private.len());
    }

    #[inline(always)]
    fn call_handler(&mut self, message: A::Msg) -> HandlerResult<A::Msg> {
        self.handled += 1;
        let Some(actor) = self.runner.actor.as_mut() else { return Ok(Flow::Continue) };
        let mut ctx = Context {
            cell: self.cell,
            body: self.body,
            extra: &mut self.runner.extra,
            local: self.local,
            full: &mut self.capacity_wait,
        };
        self.trace.within(|| actor.receive(message, &mut ctx))
    }

    /// Calls one of the actor's lifecycle methods.
    fn call_hook<R>(&mut self, call: impl FnOnce(&mut A, &mut Context<'_, A>) -> R) -> Option<R> {
        let actor = self.runner.actor.as_mut()?;
        let mut ctx = Context {
            cell: self.cell,
            body: self.body,
            extra: &mut self.runner.extra,
            local: self.local,
            full: &mut self.capacity_wait,
        };
        Some(call(actor, &mut ctx))
    }

    /// Applies a handler's result; `None` to continue with the next message.
    fn apply_flow(&mut self, handled: HandlerResult<A::Msg>) -> Option<NextAction> {
        match handled {
            Ok(Flow::Continue) => None,
            Ok(Flow::Yield) => Some(NextAction::Yield),
            Ok(Flow::Await(future)) => self.poll_future(future),
            Ok(Flow::Suspend(reason, condition)) => Some(NextAction::suspend(reason, condition)),
            Ok(Flow::Stop) => Some(NextAction::Stop),
            Err(error) => Some(NextAction::Fail(error)),
        }
    }

    /// Polls a future; its output is handled as the next message.
    fn poll_future(&mut self, mut future: MessageFuture<A::Msg>) -> Option<NextAction> {
        loop {
            let waker = waker::borrowed(self.cell);
            self.local.begin_poll(PolledKind::of::<A>(), &waker, self.extra().spare.take());
            let mut cx = core::task::Context::from_waker(&waker);
            let polled = self.trace.within(|| future.as_mut().poll(&mut cx));
            let (deadline, spare) = self.local.end_poll();
            let extra = self.extra();
            extra.spare = spare;
            let Poll::Ready(message) = polled else {
                extra.future = Some(future);
                if let Some(due) = deadline {
                    self.schedule_repoll(due);
                }
                return Some(NextAction::Await);
            };
            drop(future);
            if self.handled == 0
                && let Some(action) = self.before_invoke(TakenMessages::One)
            {
                let trace = core::mem::take(&mut self.trace);
                self.requeue_front(Envelope { message, trace });
                return Some(action);
            }
            match self.call_handler(message) {
                Ok(Flow::Await(next)) if self.local.consume_budget() == SliceBudget::Some => future = next,
                Ok(Flow::Await(next)) => {
                    self.extra().future = Some(next);
                    self.state().set(WOKEN);
                    return Some(NextAction::Await);
                }
                handled => return self.apply_flow(handled),
            }
        }
    }

    /// Sets a timer that wakes the cell when an ask in its future times out.
    ///
    /// A pending timer that is due earlier is kept, so that a task that asks continuously sets one timer per
    /// timeout and not one per ask.
    fn schedule_repoll(&mut self, due: Instant) {
        let timer_driver = &self.local.core().timer_driver;
        let repoll_timer = &mut self.runner.extra.get_or_insert_default().repoll_timer;
        if repoll_timer.is_some_and(|timer| timer.due <= due) {
            return;
        }
        if let Some(timer) = repoll_timer.take() {
            timer_driver.cancel(timer);
        }
        match timer_driver.insert(due, TimerEvent::Repoll(self.cell.clone())) {
            Ok(timer) => *repoll_timer = Some(timer),
            // The timing wheel is full: poll repeatedly rather than never.
            Err(_) => self.cell.raise_always(WOKEN),
        }
    }

    /// Suspends the actor until the waker of its future fires.
    #[inline]
    fn suspend_for_future(&mut self) -> InvokeResult {
        let slot = self.cell.number();
        let key = self.extra().next_key(slot);
        let reason = SuspendReason::AwaitExternal;
        let resume_on = ResumeCondition::ExternalSignal(key);
        let wait = self.trace.for_wait(self.cell, reason, resume_on);
        let trace = core::mem::take(&mut self.trace);
        let extra = self.extra();
        extra.wait = wait;
        extra.trace = trace;
        if self.runner.phase == ActorPhase::Running {
            self.runner.phase = ActorPhase::Waiting;
            self.body.header.awaits.store(1, Ordering::Relaxed);
        }
        self.finish(InvokeResult::Suspended { reason, resume_on })
    }

    /// Ends a suspension, if there is one.
    fn resume(&mut self) {
        if self.runner.phase != ActorPhase::Waiting {
            return;
        }
        self.runner.phase = ActorPhase::Running;
        let extra = self.extra();
        extra.waiting = None;
        extra.capacity_wait = None;
        extra.wait = SpanHandle::NONE;
        if let Some(timer) = extra.resume_timer.take() {
            self.local.core().timer_driver.cancel(timer);
        }
        self.body.header.awaits.store(0, Ordering::Relaxed);
        self.record_activity();
    }

    /// Records activity, for the receive timeout.
    #[inline]
    fn record_activity(&mut self) {
        let Some(extra) = self.runner.extra.as_deref_mut() else { return };
        if let Some(timeout) = &mut extra.receive_timeout {
            timeout.since = self.local.core().now();
        }
    }

    #[inline]
    fn finish_idle(&mut self) -> InvokeResult {
        QueueMailbox::<A::Msg>::shrink(&mut self.runner.private);
        self.finish(InvokeResult::Completed { ready_hint: false })
    }

    /// Ends the run with an action.
    ///
    /// An immediate restart may fail immediately, as often as its supervisor allows: hence a loop and not a
    /// recursion.
    #[cold]
    fn finish_run(&mut self, mut action: NextAction) -> InvokeResult {
        loop {
            let outcome = match action {
                NextAction::Idle => return self.finish_idle(),
                NextAction::Await => return self.suspend_for_future(),
                NextAction::Yield => return self.finish_with_permit(InvokeResult::Yielded),
                NextAction::Suspend(suspension) => self.suspend(suspension.0, suspension.1),
                NextAction::Fail(error) => self.fail(error),
                NextAction::Stop => return self.begin_stop(Termination::Stopped),
                NextAction::StopFailed(error) => {
                    return self.begin_stop(Termination::Failed { error, reason: StopReason::Directed });
                }
                NextAction::Terminate => return self.terminate(),
            };
            match outcome {
                ActionResult::Break(result) => return result,
                ActionResult::Continue(next) => action = next,
            }
        }
    }

    fn suspend(&mut self, reason: SuspendReason, resume_on: ResumeCondition) -> ActionResult {
        let is_waiting = match resume_on {
            ResumeCondition::After(delay) => {
                if !self.set_resume_timer(delay) {
                    return ActionResult::Continue(no_room_for_timer());
                }
                true
            }
            ResumeCondition::ExternalSignal(key) => {
                let early = &mut self.extra().early;
                let before = early.len();
                early.retain(|signalled| *signalled != key);
                let is_waiting = early.len() == before;
                if is_waiting {
                    self.body.mailbox.set_awaited_signal(key.0);
                }
                is_waiting
            }
            ResumeCondition::WhenCapacityAvailable => match self.capacity_wait.take() {
                Some(mut wait) => {
                    if !wait.register(&waker::for_cell(self.cell)) {
                        // Too many producers wait for that mailbox already: retry after a delay.
                        let later = ResumeCondition::After(MIDDLEWARE_RETRY);
                        return ActionResult::Continue(NextAction::suspend(reason, later));
                    }
                    self.extra().capacity_wait = Some(wait);
                    if !self.set_resume_timer(self.local.core().config.capacity_wait_max) {
                        return ActionResult::Continue(no_room_for_timer());
                    }
                    true
                }
                None => false,
            },
        };
        if !is_waiting {
            return ActionResult::Break(self.finish_with_permit(InvokeResult::Yielded));
        }
        self.begin_wait(reason, resume_on);
        if reason == SuspendReason::AwaitExternal {
            self.body.header.awaits.store(1, Ordering::Relaxed);
        }
        ActionResult::Break(self.finish(InvokeResult::Suspended { reason, resume_on }))
    }

    fn begin_wait(&mut self, reason: SuspendReason, resume_on: ResumeCondition) {
        self.runner.phase = ActorPhase::Waiting;
        let wait = self.trace.for_wait(self.cell, reason, resume_on);
        let extra = self.extra();
        extra.waiting = Some((reason, resume_on));
        extra.wait = wait;
    }

    /// Sets the timer that ends a suspension; returns `false` if the timing wheel is full.
    fn set_resume_timer(&mut self, delay: Duration) -> bool {
        let due = self.local.core().now() + delay;
        let timer = self.local.core().timer_driver.insert(due, TimerEvent::Resume(self.cell.clone())).ok();
        self.extra().resume_timer = timer;
        timer.is_some()
    }

    /// Returns the state flags to set when the permit is released.
    ///
    /// `USER` stays set if a suspended cell has private messages, so that it is runnable when it resumes.
    fn release_flags(&self) -> u32 {
        match self.runner.phase {
            ActorPhase::New | ActorPhase::Running => 0,
            ActorPhase::Waiting | ActorPhase::Failed | ActorPhase::Restarting | ActorPhase::Stopping => {
                if self.runner.private.is_empty() {
                    SUSPENDED
                } else {
                    SUSPENDED | USER
                }
            }
        }
    }

    /// Ends the run and keeps the run permit.
    #[inline]
    fn finish_with_permit(&mut self, result: InvokeResult) -> InvokeResult {
        self.end_run(result)
    }

    /// Ends the run; the run permit is released unless work has arrived meanwhile.
    #[inline]
    fn finish(&mut self, result: InvokeResult) -> InvokeResult {
        let result = self.end_run(result);
        self.permit = PermitState::release_with(self.release_flags());
        result
    }

    /// Does the work common to the end of every run.
    #[inline]
    fn end_run(&mut self, result: InvokeResult) -> InvokeResult {
        self.wake_waiters();
        if self.handled != 0 {
            self.record_activity();
        }
        self.after_invoke(result)
    }

    /// Wakes producers that wait for capacity.
    #[inline]
    fn wake_waiters(&mut self) {
        if self.runner.has_waiters || self.state().flags_relaxed() & WAITERS != 0 {
            self.wake_waiters_slow();
        }
    }

    #[cold]
    fn wake_waiters_slow(&mut self) {
        let low_watermark = self.cell.mailbox_options().low_watermark;
        let has_waiters = &mut self.runner.has_waiters;
        clear_then_look::wake_waiters(
            &self.cell.slot().state,
            &self.body.mailbox,
            has_waiters,
            low_watermark,
        );
    }

    /// Notifies the middleware of the result of a run that it let through.
    ///
    /// The result is passed by value: borrowing it would force it into memory even if no middleware reads it.
    #[inline]
    fn after_invoke(&mut self, result: InvokeResult) -> InvokeResult {
        if self.middleware_entered { self.notify_middleware(result) } else { result }
    }

    #[cold]
    fn notify_middleware(&mut self, result: InvokeResult) -> InvokeResult {
        self.middleware_entered = false;
        let Some(extra) = self.runner.extra.as_deref_mut() else { return result };
        let Some(middleware) = &mut extra.middleware else { return result };
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            messages: self.handled,
        };
        if catch_panic(|| middleware.after_invoke(&ctx, &result)).is_err() {
            // The result of the run stands; the broken middleware is only counted.
            self.local.core().hub.count_failure(self.body.header.kind);
        }
        result
    }

    fn state(&self) -> &'a CellState {
        let cell: &'a CellRef = self.cell;
        &cell.slot().state
    }

    fn extra(&mut self) -> &mut ColdState<A> {
        self.runner.extra.get_or_insert_default()
    }
}
