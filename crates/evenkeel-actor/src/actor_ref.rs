//! Reference to an actor, typed by the messages it handles: tell, send, ask, stop and signal.

use core::fmt;
use core::future::poll_fn;
use core::marker::PhantomData;
use core::task::Poll;
use core::time::Duration;

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::hub::OverflowReason;
use crate::index::MailboxIndex;
use crate::invoke::{ActorState, SignalKey};
use crate::mailbox::{OverflowStrategy, PushResult, QueueMailbox, SystemMessage};
use crate::raw::mailbox_ref::MailboxRef;
use crate::raw::oneshot::{self, Receiver};
use crate::raw::state::USER;
use crate::reply::{AskError, AskFuture, Reply};
use crate::room_wait::RoomWait;
use crate::stop::StopMode;
use crate::system::Core;
use crate::trace::{Envelope, SpanHandle, record_signal};

/// Default timeout of an ask.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Reference to an actor that handles messages of type `M`.
///
/// It outlives the actor: a message to an actor that has terminated is returned or dead-lettered.
pub struct ActorRef<M> {
    mailbox_ref: MailboxRef<M>,
    _messages: PhantomData<fn(M)>,
}

/// Outcome of an accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The message is queued.
    Queued,
    /// The message is queued, and the oldest one was dead-lettered.
    Displaced,
    /// The message was dead-lettered by the mailbox's overflow strategy.
    Discarded,
}

/// Error of a rejected message; contains the message.
#[derive(PartialEq, Eq, thiserror::Error)]
pub enum SendError<M> {
    /// The mailbox is full.
    #[error("mailbox is full")]
    Full(M),
    /// The actor has terminated or no longer accepts messages.
    #[error("actor no longer accepts messages")]
    Closed(M),
    /// The host runtime was dropped before the actor system.
    #[error("the runtime of the actor system was dropped")]
    HostGone(M),
    /// There is no memory to enlarge the mailbox; its actor fails and loses its queued messages.
    #[error("the mailbox failed: out of memory")]
    MailboxFailed(M),
}

impl<M: Send + 'static> ActorRef<M> {
    pub(crate) fn new(mailbox_ref: MailboxRef<M>) -> Self {
        Self { mailbox_ref, _messages: PhantomData }
    }

    #[inline]
    pub(crate) fn mailbox(&self) -> &QueueMailbox<M> {
        self.mailbox_ref.mailbox()
    }

    #[inline]
    pub(crate) fn cell(&self) -> &CellRef {
        self.mailbox_ref.cell()
    }

    /// Sends without waiting (fire and forget): a message that is not accepted is dead-lettered with the
    /// reason.
    #[inline]
    pub fn tell(&self, message: M) {
        match self.mailbox().try_push_fast(Envelope::seal(message, self.cell())) {
            None => self.cell().raise(USER),
            Some(message) => self.tell_or_dead_letter(message),
        }
    }

    #[cold]
    pub(crate) fn tell_or_dead_letter(&self, message: Envelope<M>) {
        match self.push_or_overflow(message, |cell| cell.raise(USER)) {
            Ok(_) => {}
            Err(SendError::Full(message)) => self.dead_letter(message, DeadLetterReason::Full),
            Err(SendError::MailboxFailed(message)) => {
                self.dead_letter(message, DeadLetterReason::MailboxFailed);
            }
            Err(SendError::Closed(message) | SendError::HostGone(message)) => {
                self.dead_letter_rejected(message);
            }
        }
    }

    #[cold]
    fn dead_letter_rejected(&self, message: Envelope<M>) {
        self.dead_letter(message, self.cell().core().closed_reason());
    }

    /// Sends without waiting; returns a message that is not accepted.
    #[inline]
    pub fn try_tell(&self, message: M) -> Result<SendOutcome, SendError<M>> {
        self.try_tell_then(message, |cell| cell.raise(USER))
    }

    #[inline(always)]
    pub(crate) fn try_tell_then(
        &self,
        message: M,
        raise: impl FnOnce(&CellRef),
    ) -> Result<SendOutcome, SendError<M>> {
        match self.mailbox().try_push_fast(Envelope::seal(message, self.cell())) {
            None => {
                raise(self.cell());
                Ok(SendOutcome::Queued)
            }
            Some(message) => self.push_or_overflow(message, raise).map_err(SendError::unseal),
        }
    }

    #[cold]
    fn push_or_overflow(
        &self,
        message: Envelope<M>,
        raise: impl FnOnce(&CellRef),
    ) -> Result<SendOutcome, SendError<Envelope<M>>> {
        match self.mailbox().push_slow(message) {
            PushResult::Queued => {
                raise(self.cell());
                Ok(SendOutcome::Queued)
            }
            PushResult::Displaced(oldest) => {
                raise(self.cell());
                self.dead_letter(oldest, DeadLetterReason::DroppedOldest);
                Ok(SendOutcome::Displaced)
            }
            PushResult::Closed(message) => Err(self.closed(message)),
            PushResult::Full(message) => self.apply_overflow(message),
            PushResult::OutOfMemory(message) => Err(self.out_of_memory(message)),
        }
    }

    /// Fails the actor, whose mailbox cannot grow.
    fn out_of_memory(&self, message: Envelope<M>) -> SendError<Envelope<M>> {
        // An actor that has terminated needs no mailbox.
        drop(self.cell().tell_system(SystemMessage::MailboxOutOfMemory));
        SendError::MailboxFailed(message)
    }

    fn closed(&self, message: Envelope<M>) -> SendError<Envelope<M>> {
        SendError::closed(self.cell().core(), message)
    }

    fn apply_overflow(&self, message: Envelope<M>) -> Result<SendOutcome, SendError<Envelope<M>>> {
        let reason = match self.cell().mailbox_options().overflow {
            OverflowStrategy::DropNewest => DeadLetterReason::DroppedNewest,
            OverflowStrategy::DeadLetter => DeadLetterReason::Overflow,
            OverflowStrategy::DropOldest | OverflowStrategy::BlockProducer | OverflowStrategy::Reject => {
                self.cell().core().hub.count_overflow(self.cell().header().kind, OverflowReason::Rejected);
                return Err(SendError::Full(message));
            }
        };
        self.dead_letter(message, reason);
        Ok(SendOutcome::Discarded)
    }

    #[cold]
    fn dead_letter(&self, Envelope { message, trace }: Envelope<M>, reason: DeadLetterReason) {
        trace.record_dead_lettered(reason);
        self.cell().core().dead_letter(self.cell(), message, reason);
    }

    /// Sends, waiting for capacity if the mailbox is full; for producers outside actors, and for actors whose messages flow
    /// one way.
    ///
    /// Waits under every overflow strategy, not only under [`OverflowStrategy::BlockProducer`], except under
    /// [`OverflowStrategy::DropOldest`]: there it dead-letters the oldest message and does not wait. Ends early with
    /// [`SendError::Closed`] when the actor stops, and with [`SendError::Full`] when too many producers wait already, or, with
    /// `std`, after [`capacity_wait_max`](crate::ActorSystemConfig::capacity_wait_max) if an actor awaits it directly in its
    /// future ([`Flow::Await`](crate::Flow::Await)).
    pub async fn send(&self, message: M) -> Result<SendOutcome, SendError<M>> {
        match self.mailbox().try_push_fast(Envelope::seal(message, self.cell())) {
            None => {
                self.cell().raise(USER);
                Ok(SendOutcome::Queued)
            }
            Some(message) => self.send_or_wait(message).await,
        }
    }

    async fn send_or_wait(&self, message: Envelope<M>) -> Result<SendOutcome, SendError<M>> {
        let mut unsent = Some(message);
        // Dropped with the future, which gives up the place among the waiting producers.
        let mut wait = None;
        poll_fn(|cx| {
            let Some(message) = unsent.take() else { return Poll::Pending };
            let cell = self.cell();
            match self.mailbox().push(message) {
                PushResult::Full(message) => {
                    let wait = wait.get_or_insert_with(|| {
                        cell.core().hub.count_overflow(cell.header().kind, OverflowReason::Blocked);
                        RoomWait::new(self)
                    });
                    if !wait.register(cx.waker()) || wait.is_over(cx.waker()) {
                        return Poll::Ready(Err(SendError::Full(message).unseal()));
                    }
                    unsent = Some(message);
                    Poll::Pending
                }
                PushResult::Queued => {
                    cell.raise(USER);
                    Poll::Ready(Ok(SendOutcome::Queued))
                }
                PushResult::Displaced(oldest) => {
                    cell.raise(USER);
                    self.dead_letter(oldest, DeadLetterReason::DroppedOldest);
                    Poll::Ready(Ok(SendOutcome::Displaced))
                }
                PushResult::Closed(message) => Poll::Ready(Err(self.closed(message).unseal())),
                PushResult::OutOfMemory(message) => Poll::Ready(Err(self.out_of_memory(message).unseal())),
            }
        })
        .await
    }

    /// Asks: passes a reply channel to `request`, sends the message that it returns, and waits for the reply.
    ///
    /// The message is sent immediately; the wait times out after [`ASK_TIMEOUT`] unless [`AskFuture::within`]
    /// sets another timeout.
    pub fn ask<T: Send + 'static>(&self, request: impl FnOnce(Reply<T>) -> M) -> AskFuture<'_, T> {
        let trace = SpanHandle::for_ask(self.cell());
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(sender, trace.clone());
        let sent = trace.within(|| self.try_tell_then(request(reply), |cell| cell.raise_awaited(USER)));
        ask_future(sent, receiver, self.cell(), trace)
    }

    /// Returns the generational index (slot and generation) that identifies the actor in its system.
    pub fn index(&self) -> MailboxIndex {
        self.cell().index()
    }

    /// Returns the actor's current state.
    pub fn state(&self) -> ActorState {
        self.cell().state()
    }

    /// Counts the queued messages.
    pub fn depth(&self) -> usize {
        self.mailbox().stats().depth
    }

    /// Reports whether the mailbox has reached its high watermark, so that a sender can slow down.
    pub fn is_above_high_watermark(&self) -> bool {
        self.depth() >= self.cell().mailbox_options().high_watermark
    }

    /// Stops the actor; its children stop first.
    pub fn stop(&self, mode: StopMode) {
        self.cell().stop(mode);
    }

    /// Sends a signal with this key, which ends the actor's wait for it.
    pub fn signal(&self, key: SignalKey) {
        record_signal(self.cell(), key);
        drop(self.cell().tell_system(SystemMessage::Signal(key)));
    }

    /// Reports whether both refer to the same actor.
    pub fn is(&self, other: &Self) -> bool {
        self.cell().is(other.cell())
    }
}

/// Creates the future of an ask from the result of sending the request.
///
/// `target` is the asked actor or, for a router, its pool actor; the future reaches the actor system through it.
pub(crate) fn ask_future<M, T>(
    sent: Result<SendOutcome, SendError<M>>,
    receiver: Receiver<T>,
    target: &CellRef,
    trace: SpanHandle,
) -> AskFuture<'_, T> {
    match sent {
        Ok(SendOutcome::Queued | SendOutcome::Displaced) => {
            AskFuture::new(receiver, target, ASK_TIMEOUT, trace)
        }
        // A dead-lettered request gets no reply.
        Ok(SendOutcome::Discarded) => AskFuture::rejected(receiver, target, AskError::Discarded),
        Err(SendError::Full(_)) => AskFuture::rejected(receiver, target, AskError::Full),
        Err(SendError::Closed(_)) => AskFuture::rejected(receiver, target, AskError::Closed),
        Err(SendError::HostGone(_)) => AskFuture::rejected(receiver, target, AskError::HostGone),
        Err(SendError::MailboxFailed(_)) => AskFuture::rejected(receiver, target, AskError::MailboxFailed),
    }
}

impl<M> Clone for ActorRef<M> {
    fn clone(&self) -> Self {
        Self { mailbox_ref: self.mailbox_ref.clone(), _messages: PhantomData }
    }
}

impl<M: Send + 'static> fmt::Debug for ActorRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorRef({})", self.index())
    }
}

impl<M> SendError<Envelope<M>> {
    /// Takes the message out of its envelope, to be returned to its sender.
    fn unseal(self) -> SendError<M> {
        match self {
            Self::Full(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::Full(message)
            }
            Self::Closed(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::Closed(message)
            }
            Self::HostGone(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::HostGone(message)
            }
            Self::MailboxFailed(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::MailboxFailed(message)
            }
        }
    }
}

impl<M> SendError<M> {
    /// Returns the error for a message to a closed mailbox.
    pub(crate) fn closed(core: &Core, message: M) -> Self {
        if core.is_host_gone() { Self::HostGone(message) } else { Self::Closed(message) }
    }

    /// Returns the message.
    pub fn into_message(self) -> M {
        match self {
            Self::Full(message)
            | Self::Closed(message)
            | Self::HostGone(message)
            | Self::MailboxFailed(message) => message,
        }
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(_)",
            Self::Closed(_) => "Closed(_)",
            Self::HostGone(_) => "HostGone(_)",
            Self::MailboxFailed(_) => "MailboxFailed(_)",
        })
    }
}

#[cfg(test)]
#[cfg(feature = "test")]
mod tests {
    use super::*;
    use crate::runtime::RuntimeHandle;
    use crate::runtime::test::TestRuntime;
    use crate::sync::{Arc, AtomicU32, Ordering};
    use crate::{
        Actor, ActorSystemRunner, Context, Flow, HandlerResult, MailboxOptions, Props, ReadyQueueScheduler,
    };
    use core::future::Future;
    use core::num::NonZeroUsize;

    #[test]
    fn a_drained_actor_handles_a_message_whose_sender_has_not_raised_the_flag_yet() {
        let (runtime, _system, actor, handled) = counter();
        assert!(matches!(
            actor.mailbox_ref.mailbox().push(Envelope::seal((), actor.cell())),
            PushResult::Queued
        ));
        actor.stop(StopMode::Drained);
        runtime.run_until_idle();
        actor.cell().raise(USER);
        assert_eq!((handled.load(Ordering::Relaxed), actor.state()), (1, ActorState::Stopped));
    }

    #[test]
    fn a_shutdown_waits_for_a_message_whose_sender_has_not_raised_the_flag_yet() {
        let (runtime, system, actor, handled) = counter();
        assert!(matches!(
            actor.mailbox_ref.mailbox().push(Envelope::seal((), actor.cell())),
            PushResult::Queued
        ));
        let sender = async {
            runtime.handle().sleep_until(runtime.now() + Duration::from_millis(5)).await;
            actor.cell().raise(USER);
        };
        let mut shutdown = core::pin::pin!(system.graceful_shutdown(Duration::from_secs(1)));
        let mut sender = core::pin::pin!(sender);
        let mut sent = false;
        let ended = runtime.block_on(poll_fn(|cx| {
            sent = sent || sender.as_mut().poll(cx).is_ready();
            shutdown.as_mut().poll(cx)
        }));
        assert!(ended.drained);
        assert_eq!(handled.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_report_of_a_failed_mailbox_that_arrives_after_it_was_emptied_is_ignored() {
        let (runtime, system, actor, handled) = counter();
        actor.tell(());
        drop(actor.cell().tell_system(SystemMessage::MailboxOutOfMemory));
        runtime.run_until_idle();
        assert_eq!((handled.load(Ordering::Relaxed), system.dead_letters_total()), (1, 0));
    }

    #[test]
    fn an_ask_that_displaces_a_message_queues_its_actor_as_asked() {
        let room_for_one = MailboxOptions::bounded(NonZeroUsize::MIN).overflow(OverflowStrategy::DropOldest);
        let (_runtime, system, actor, _handled) = counter_with(room_for_one);
        // The sender of this message has not raised the flag yet, so the actor is not queued.
        assert!(matches!(actor.mailbox().push(Envelope::seal((), actor.cell())), PushResult::Queued));
        let _ask = actor.ask(|_: Reply<()>| ());
        assert_eq!(system.dead_letters_total(), 1);
        assert!(system.core().coordinator.queues.has_asked());
    }

    struct Counter(Arc<AtomicU32>);

    impl Actor for Counter {
        type Msg = ();

        fn receive(&mut self, _message: (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Flow::Continue)
        }
    }

    /// Creates a counting actor in an idle system.
    fn counter() -> (TestRuntime, ReadyQueueScheduler, ActorRef<()>, Arc<AtomicU32>) {
        counter_with(MailboxOptions::default())
    }

    /// Creates a counting actor with this mailbox in an idle system.
    fn counter_with(
        mailbox: MailboxOptions,
    ) -> (TestRuntime, ReadyQueueScheduler, ActorRef<()>, Arc<AtomicU32>) {
        let runtime = TestRuntime::new(0);
        let system = ActorSystemRunner::default().start(runtime.handle()).unwrap();
        let handled = Arc::new(AtomicU32::new(0));
        let count = handled.clone();
        let props = Props::new(move || Counter(count.clone())).mailbox(mailbox).build();
        let actor = system.spawn(&props).unwrap();
        runtime.run_until_idle();
        (runtime, system, actor, handled)
    }
}
