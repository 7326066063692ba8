//! Runs one actor for a while: the system's messages first, then the user's, one at a time.
//!
//! Bound: at most [`RUN_MESSAGES_MAX`] user messages or the worker's slice, whichever ends first, then
//! others have their turn. The system lane is looked at before every user message, so a stop, a
//! suspension or a failure acts before the next one, and what was taken out of the lane stays in the
//! cell: nothing is lost or reordered.

mod ending;
mod failure;
mod system;

use core::ops::ControlFlow;
use core::task::Poll;
use core::time::Duration;

use crate::actor::{Actor, Awaiting, Flow, Handled};
use crate::cell::{Body, CellRef, Extra, Owner, Phase};
use crate::clock::{AWAITING, coarse_ms};
use crate::context::{Context, Full};
use crate::guardian::ActorError;
use crate::invoke::{ActorState, InvokeResult, MessageInvoker, ResumeCondition, SignalKey, SuspendReason};
use crate::mailbox::UserLane;
use crate::middleware::InvokeContext;
use crate::panic::catch;
use crate::raw::run::Right;
use crate::raw::state::{CLOSED, CellState, SIGNAL, SUSPENDED, SYSTEM, USER, WAITERS};
use crate::raw::waker;
use crate::stop::Ending;
use crate::sync::Ordering;
use crate::timer::Timed;
use crate::worker::{Local, SliceLeft};

/// User messages per run.
pub(crate) const RUN_MESSAGES_MAX: usize = 64;
/// How long a run that middleware held back waits to be tried again.
const HELD_BACK: Duration = Duration::from_millis(1);

/// Executes what waits for one actor, on the worker that holds its run right.
pub(crate) struct ActorCellInvoker<'a, A: Actor> {
    cell: &'a CellRef,
    body: &'a Body<A>,
    owner: &'a mut Owner<A>,
    local: &'a Local,
    full: Option<Full>,
    handled: usize,
    right: Right,
}

impl<A: Actor> MessageInvoker for ActorCellInvoker<'_, A> {
    /// Handles at most `messages_max` user messages.
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult {
        let step = if self.is_held_back() {
            Step::Suspend(SuspendReason::RateLimit, ResumeCondition::After(HELD_BACK))
        } else {
            catch(|| self.serve(messages_max)).unwrap_or_else(|panic| {
                // It may have come from the middle of the system lane, whose flag is then down.
                self.state().set(SYSTEM);
                Step::Fail(panic)
            })
        };
        let result = self.settle(step);
        self.local.counters().messages.add(self.handled as u64);
        result
    }

    fn actor_state(&self) -> ActorState {
        self.cell.state()
    }
}

/// Why serving stopped.
enum Step {
    /// Nothing is left that may be served.
    Idle,
    /// The budget or the slice is used up.
    Yield,
    /// The actor is not to be served until the condition holds.
    Suspend(SuspendReason, ResumeCondition),
    /// The actor failed.
    Fail(ActorError),
    /// The actor ends, as soon as its children have.
    Stop(Ending),
    /// The last child has ended; nothing keeps the actor.
    End,
}

impl<'a, A: Actor> ActorCellInvoker<'a, A> {
    pub(crate) fn new(
        cell: &'a CellRef,
        body: &'a Body<A>,
        owner: &'a mut Owner<A>,
        local: &'a Local,
    ) -> Self {
        Self { cell, body, owner, local, full: None, handled: 0, right: Right::Kept }
    }

    /// Runs the cell; tells how that ended and where the run right is.
    pub(crate) fn run(mut self) -> (InvokeResult, Right) {
        let result = self.invoke_batch(RUN_MESSAGES_MAX);
        (result, self.right)
    }

    /// Asks the middleware, if there is one; what the system has to say is never held back.
    fn is_held_back(&mut self) -> bool {
        if self.owner.extra.is_some() && self.body.head.idle.load(Ordering::Relaxed) != 0 {
            self.tell_active();
        }
        let Some(extra) = self.owner.extra.as_deref_mut() else { return false };
        let Some(middleware) = &mut extra.middleware else { return false };
        let urgent = self.cell.slot().state.flags() & (SYSTEM | SIGNAL) != 0;
        if urgent || self.owner.phase != Phase::Running {
            return false;
        }
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            messages: self.body.lane.stats().depth,
        };
        middleware.before_invoke(&ctx) == ControlFlow::Break(())
    }

    /// Serves until there is a reason not to.
    fn serve(&mut self, messages_max: usize) -> Step {
        if self.owner.phase == Phase::New
            && let Some(step) = self.start()
        {
            return step;
        }
        loop {
            let flags = self.state().glance();
            if flags & (SYSTEM | SIGNAL | WAITERS | SUSPENDED) != 0
                && let Some(step) = self.attend(flags)
            {
                return step;
            }
            if messages_max <= self.handled || self.local.spend() == SliceLeft::None {
                return Step::Yield;
            }
            let Some(message) = self.next() else {
                let drained = self.state().glance() & CLOSED != 0;
                return if drained { Step::Stop(Ending::Stopped) } else { Step::Idle };
            };
            match self.receive(message) {
                Ok(Flow::Continue) => {}
                handled => {
                    if let Some(step) = self.follow(handled) {
                        return step;
                    }
                }
            }
        }
    }

    fn start(&mut self) -> Option<Step> {
        self.owner.phase = Phase::Running;
        let handled = self.hook(|actor, ctx| actor.started(ctx))?;
        self.follow(handled)
    }

    /// Takes the next user message out of the private half, and fills that when it is empty.
    #[inline]
    fn next(&mut self) -> Option<A::Msg> {
        if self.owner.private.is_empty() {
            if self.state().glance() & USER == 0 {
                return None;
            }
            self.body.lane.take(&mut self.owner.private, &self.cell.slot().state);
        }
        let message = self.owner.private.pop_front();
        self.body.lane.tell_left(self.owner.private.len());
        message
    }

    #[inline]
    fn receive(&mut self, message: A::Msg) -> Handled<A::Msg> {
        self.handled += 1;
        let Some(actor) = self.owner.actor.as_mut() else { return Ok(Flow::Continue) };
        let mut ctx = Context {
            cell: self.cell,
            body: self.body,
            extra: &mut self.owner.extra,
            local: self.local,
            full: &mut self.full,
        };
        actor.receive(message, &mut ctx)
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
    fn follow(&mut self, handled: Handled<A::Msg>) -> Option<Step> {
        match handled {
            Ok(Flow::Continue) => None,
            Ok(Flow::Yield) => Some(Step::Yield),
            Ok(Flow::Await(future)) => self.wait_for(future),
            Ok(Flow::Suspend(reason, condition)) => Some(Step::Suspend(reason, condition)),
            Ok(Flow::Stop) => Some(Step::Stop(Ending::Stopped)),
            Err(error) => Some(Step::Fail(error)),
        }
    }

    /// Polls a future; its output is the next message.
    fn wait_for(&mut self, mut future: Awaiting<A::Msg>) -> Option<Step> {
        loop {
            let waker = waker::lend(self.cell);
            let polled = future.as_mut().poll(&mut core::task::Context::from_waker(&waker));
            let Poll::Ready(message) = polled else {
                self.extra().future = Some(future);
                return Some(self.await_signal());
            };
            drop(future);
            self.resume();
            match self.receive(message) {
                Ok(Flow::Await(next)) if self.local.spend() == SliceLeft::Some => future = next,
                Ok(Flow::Await(next)) => {
                    self.extra().future = Some(next);
                    self.state().set(SIGNAL);
                    return Some(self.await_signal());
                }
                handled => return self.follow(handled),
            }
        }
    }

    fn await_signal(&mut self) -> Step {
        let key = SignalKey(u64::from(self.cell.number()) << 32 | u64::from(self.extra().waits));
        Step::Suspend(SuspendReason::AwaitExternal, ResumeCondition::ExternalSignal(key))
    }

    /// Ends a suspension, if there is one.
    fn resume(&mut self) {
        if self.owner.phase != Phase::Waiting {
            return;
        }
        self.owner.phase = Phase::Running;
        let extra = self.extra();
        extra.waiting = None;
        if let Some(key) = extra.resume.take() {
            self.local.core().clock.cancel(key);
        }
        self.state().lower(SUSPENDED);
        self.tell_active();
    }

    /// Notes that the actor does something, for its receive timeout.
    fn tell_active(&self) {
        let head = &self.body.head;
        let timed = head.idle.load(Ordering::Relaxed) != 0;
        let now_ms = if timed { coarse_ms(self.local.core().now()) } else { 0 };
        head.active_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Ends the run for a reason.
    fn settle(&mut self, step: Step) -> InvokeResult {
        match step {
            Step::Idle => {
                UserLane::rest(&mut self.owner.private);
                self.finish(InvokeResult::Completed { ready_hint: false }, 0)
            }
            Step::Yield => self.keep(InvokeResult::Yielded),
            Step::Suspend(reason, condition) => self.suspend(reason, condition),
            Step::Fail(error) => self.fail(error),
            Step::Stop(how) => self.begin_stop(how),
            Step::End => self.terminate(),
        }
    }

    fn suspend(&mut self, reason: SuspendReason, resume_on: ResumeCondition) -> InvokeResult {
        let waits = match resume_on {
            ResumeCondition::After(span) => {
                let due = self.local.core().now() + span;
                match self.local.core().clock.insert(due, Timed::Resume(self.cell.clone())) {
                    Ok(key) => {
                        self.extra().resume = Some(key);
                        true
                    }
                    Err(_) => return self.fail(ActorError::new("no room for another timer")),
                }
            }
            ResumeCondition::ExternalSignal(key) => {
                let early = &mut self.extra().early;
                let before = early.len();
                early.retain(|signalled| *signalled != key);
                early.len() == before
            }
            ResumeCondition::WhenCapacityAvailable => match self.full.take() {
                // Too many wait there already: come back by yourself.
                Some(full) if !full(&waker::of(self.cell)) => {
                    return self.suspend(reason, ResumeCondition::After(HELD_BACK));
                }
                Some(_) => true,
                None => false,
            },
        };
        if !waits {
            return self.keep(InvokeResult::Yielded);
        }
        self.owner.phase = Phase::Waiting;
        self.extra().waiting = Some((reason, resume_on));
        if reason == SuspendReason::AwaitExternal {
            self.body.head.active_ms.store(AWAITING, Ordering::Relaxed);
        }
        let hold = SUSPENDED | self.held_user();
        self.finish(InvokeResult::Suspended { reason, resume_on }, hold)
    }

    /// What was taken out of the lane and not handled keeps the cell worth resuming.
    fn held_user(&self) -> u32 {
        if self.owner.private.is_empty() { 0 } else { USER }
    }

    /// Ends the run with the run right kept.
    fn keep(&mut self, result: InvokeResult) -> InvokeResult {
        self.wake_waiters();
        self.after_invoke(&result);
        result
    }

    /// Ends the run; the run right goes back unless something came up meanwhile.
    fn finish(&mut self, result: InvokeResult, hold: u32) -> InvokeResult {
        self.wake_waiters();
        self.after_invoke(&result);
        self.right = Right::Spent { hold };
        result
    }

    /// Lets producers go on that wait for room.
    fn wake_waiters(&mut self) {
        if self.state().glance() & WAITERS != 0 {
            self.state().lower(WAITERS);
            self.owner.awaited = true;
        }
        if self.owner.awaited {
            self.owner.awaited = self.body.lane.wake_waiters(self.body.spec.settings.mailbox.low_mark);
        }
    }

    fn after_invoke(&mut self, result: &InvokeResult) {
        let Some(extra) = self.owner.extra.as_deref_mut() else { return };
        let Some(middleware) = &mut extra.middleware else { return };
        let ctx = InvokeContext {
            actor: self.cell.index(),
            label: self.body.spec.settings.label.as_str(),
            now: self.local.core().now(),
            messages: self.handled,
        };
        middleware.after_invoke(&ctx, result);
    }

    fn state(&self) -> &'a CellState {
        let cell: &'a CellRef = self.cell;
        &cell.slot().state
    }

    fn extra(&mut self) -> &mut Extra<A> {
        self.owner.extra.get_or_insert_default()
    }
}
