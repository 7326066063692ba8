//! The address of an actor, by the type of its messages.

use core::fmt;
use core::future::poll_fn;
use core::marker::PhantomData;
use core::task::{Poll, Waker};
use core::time::Duration;

use crate::cell::CellRef;
use crate::dead_letters::DeadLetterReason;
use crate::hub::OverflowReason;
use crate::index::MailboxIndex;
use crate::invoke::{ActorState, SignalKey};
use crate::mailbox::{OverflowStrategy, PushResult, SystemMessage};
use crate::raw::mailbox_ref::MailboxRef;
use crate::raw::oneshot::{self, Receiver};
use crate::raw::state::USER;
use crate::reply::{AskError, AskFuture, Reply};
use crate::stop::StopMode;
use crate::trace::{Envelope, SpanHandle, record_signal};

/// How long a question waits unless it says otherwise.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of an actor that takes messages of type `M`.
///
/// It outlives the actor: what is sent to one that has ended comes back, or becomes a dead letter.
pub struct ActorRef<M> {
    lane: MailboxRef<M>,
    takes: PhantomData<fn(M)>,
}

/// What became of a message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It waits for its turn.
    Queued,
    /// It waits for its turn; the oldest that did became a dead letter.
    Displaced,
    /// It became a dead letter, as the mailbox's overflow strategy says.
    Discarded,
}

/// Why a message was not taken, with the message.
#[derive(PartialEq, Eq)]
pub enum SendError<M> {
    /// The mailbox is full.
    Full(M),
    /// The actor has ended, or takes nothing more.
    Closed(M),
}

impl<M: Send + 'static> ActorRef<M> {
    pub(crate) fn new(lane: MailboxRef<M>) -> Self {
        Self { lane, takes: PhantomData }
    }

    /// Has `waker` woken when the mailbox is down to its low mark; `false` when too many wait.
    pub(crate) fn wait_for_room(&self, waker: &Waker) -> bool {
        self.lane.lane().wait_for_room(waker, &self.cell().slot().state)
    }

    #[cfg(feature = "patterns")]
    pub(crate) fn lane(&self) -> &crate::mailbox::QueueMailbox<M> {
        self.lane.lane()
    }

    #[inline]
    pub(crate) fn cell(&self) -> &CellRef {
        self.lane.cell()
    }

    /// Sends and forgets: what finds no place becomes a dead letter, with the reason.
    #[inline]
    pub fn tell(&self, message: M) {
        match self.lane.lane().try_push_fast(Envelope::seal(message, self.cell())) {
            None => self.cell().raise(USER),
            Some(message) => self.tell_or_dead_letter(message),
        }
    }

    #[cold]
    pub(crate) fn tell_or_dead_letter(&self, message: Envelope<M>) {
        match self.push_hard(message) {
            Ok(_) => {}
            Err(SendError::Full(message)) => self.dead_letter(message, DeadLetterReason::Full),
            Err(SendError::Closed(message)) => self.dead_letter_rejected(message),
        }
    }

    #[cold]
    fn dead_letter_rejected(&self, message: Envelope<M>) {
        self.dead_letter(message, self.cell().core().closed_reason());
    }

    /// Sends, and hands back what finds no place.
    #[inline]
    pub fn try_tell(&self, message: M) -> Result<SendOutcome, SendError<M>> {
        match self.lane.lane().try_push_fast(Envelope::seal(message, self.cell())) {
            None => {
                self.cell().raise(USER);
                Ok(SendOutcome::Queued)
            }
            Some(message) => self.push_hard(message).map_err(SendError::open),
        }
    }

    #[cold]
    fn push_hard(&self, message: Envelope<M>) -> Result<SendOutcome, SendError<Envelope<M>>> {
        match self.lane.lane().push_slow(message) {
            PushResult::Queued => {
                self.cell().raise(USER);
                Ok(SendOutcome::Queued)
            }
            PushResult::Displaced(oldest) => {
                self.cell().raise(USER);
                self.dead_letter(oldest, DeadLetterReason::DroppedOldest);
                Ok(SendOutcome::Displaced)
            }
            PushResult::Closed(message) => Err(SendError::Closed(message)),
            PushResult::Full(message) => self.overflow(message),
        }
    }

    fn overflow(&self, message: Envelope<M>) -> Result<SendOutcome, SendError<Envelope<M>>> {
        let reason = match self.cell().mailbox().overflow {
            OverflowStrategy::DropNewest => DeadLetterReason::DroppedNewest,
            OverflowStrategy::DeadLetter => DeadLetterReason::Overflow,
            OverflowStrategy::DropOldest | OverflowStrategy::BlockProducer | OverflowStrategy::Reject => {
                self.cell().core().hub.count_overflow(self.cell().head().kind, OverflowReason::Rejected);
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

    /// Sends, waiting for a place; for producers outside of actors.
    ///
    /// Any mailbox can be waited for, not only one whose strategy is
    /// [`OverflowStrategy::BlockProducer`]. Ends early with [`SendError::Closed`] when the actor does,
    /// and with [`SendError::Full`] when too many wait already.
    pub async fn send(&self, message: M) -> Result<SendOutcome, SendError<M>> {
        let mut unsent = Some(Envelope::seal(message, self.cell()));
        let mut blocked = false;
        poll_fn(|cx| {
            let Some(message) = unsent.take() else { return Poll::Pending };
            let cell = self.cell();
            match self.lane.lane().push_or_wait(message, cx.waker(), &cell.slot().state) {
                Ok(PushResult::Full(message)) => {
                    if !blocked {
                        blocked = true;
                        cell.core().hub.count_overflow(cell.head().kind, OverflowReason::Blocked);
                    }
                    unsent = Some(message);
                    Poll::Pending
                }
                Ok(PushResult::Queued) => {
                    cell.raise(USER);
                    Poll::Ready(Ok(SendOutcome::Queued))
                }
                Ok(PushResult::Displaced(oldest)) => {
                    cell.raise(USER);
                    self.dead_letter(oldest, DeadLetterReason::DroppedOldest);
                    Poll::Ready(Ok(SendOutcome::Displaced))
                }
                Ok(PushResult::Closed(message)) => Poll::Ready(Err(SendError::Closed(message).open())),
                Err(message) => Poll::Ready(Err(SendError::Full(message).open())),
            }
        })
        .await
    }

    /// Asks: puts a way back into the message, and waits for what comes over it.
    ///
    /// The question is sent at once; the wait ends after [`ASK_WITHIN`] unless [`Ask::within`] says
    /// otherwise.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(Reply<T>) -> M) -> AskFuture<'_, T> {
        let trace = SpanHandle::for_ask(self.cell());
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(sender, trace.clone());
        let sent = trace.within(|| self.try_tell(question(reply)));
        asked(sent, receiver, self.cell(), trace)
    }

    /// Names the actor's place in the registry.
    pub fn index(&self) -> MailboxIndex {
        self.cell().index()
    }

    /// Tells what the actor is doing.
    pub fn state(&self) -> ActorState {
        self.cell().state()
    }

    /// Counts the messages that wait.
    pub fn depth(&self) -> usize {
        self.lane.lane().stats().depth
    }

    /// Whether the mailbox is filled to its high mark; a sender that can slow down should.
    pub fn is_above_high_watermark(&self) -> bool {
        self.cell().mailbox().high_mark <= self.depth()
    }

    /// Asks the actor to end; its children end first.
    pub fn stop(&self, mode: StopMode) {
        self.cell().stop(mode);
    }

    /// Ends the actor's wait for this key.
    pub fn signal(&self, key: SignalKey) {
        record_signal(self.cell(), key);
        drop(self.cell().tell_system(SystemMessage::Signal(key)));
    }

    /// Whether both are addresses of the same actor.
    pub fn is(&self, other: &Self) -> bool {
        self.cell().is(other.cell())
    }
}

/// The wait for an answer to a question that was sent, or not; `whom` is of the same system.
pub(crate) fn asked<M, T>(
    sent: Result<SendOutcome, SendError<M>>,
    receiver: Receiver<T>,
    whom: &CellRef,
    trace: SpanHandle,
) -> AskFuture<'_, T> {
    match sent {
        Ok(SendOutcome::Queued | SendOutcome::Displaced) => {
            AskFuture::new(receiver, whom, ASK_TIMEOUT, trace)
        }
        // A question among the dead letters is answered by nobody.
        Ok(SendOutcome::Discarded) => AskFuture::refused(receiver, whom, AskError::Discarded),
        Err(SendError::Full(_)) => AskFuture::refused(receiver, whom, AskError::Full),
        Err(SendError::Closed(_)) => AskFuture::refused(receiver, whom, AskError::Closed),
    }
}

impl<M> Clone for ActorRef<M> {
    fn clone(&self) -> Self {
        Self { lane: self.lane.clone(), takes: PhantomData }
    }
}

impl<M: Send + 'static> fmt::Debug for ActorRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorRef({})", self.index())
    }
}

impl<M> SendError<Envelope<M>> {
    /// Takes the message out of its envelope, for its sender.
    fn open(self) -> SendError<M> {
        match self {
            Self::Full(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::Full(message)
            }
            Self::Closed(Envelope { message, trace }) => {
                trace.record_rejected();
                SendError::Closed(message)
            }
        }
    }
}

impl<M> SendError<M> {
    /// Takes the message back.
    pub fn into_message(self) -> M {
        match self {
            Self::Full(message) | Self::Closed(message) => message,
        }
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(_)",
            Self::Closed(_) => "Closed(_)",
        })
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "mailbox is full",
            Self::Closed(_) => "actor takes no messages any more",
        })
    }
}

impl<M> core::error::Error for SendError<M> {}

#[cfg(test)]
#[cfg(feature = "test")]
mod tests {
    use super::*;
    use crate::runtime::RuntimeHandle;
    use crate::runtime::test::TestRuntime;
    use crate::sync::{Arc, AtomicU32, Ordering};
    use crate::{Actor, ActorSystemRunner, Context, Flow, HandlerResult, Props, ReadyQueueScheduler};
    use core::future::Future;

    #[test]
    fn a_drained_actor_handles_what_its_sender_has_not_announced_yet() {
        let (runtime, _system, actor, handled) = counter();
        assert!(matches!(actor.lane.lane().push(Envelope::seal((), actor.cell())), PushResult::Queued));
        actor.stop(StopMode::Drained);
        runtime.run_until_idle();
        actor.cell().raise(USER);
        assert_eq!((handled.load(Ordering::Relaxed), actor.state()), (1, ActorState::Stopped));
    }

    #[test]
    fn a_shutdown_waits_for_what_its_sender_has_not_announced_yet() {
        let (runtime, system, actor, handled) = counter();
        assert!(matches!(actor.lane.lane().push(Envelope::seal((), actor.cell())), PushResult::Queued));
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

    struct Counter(Arc<AtomicU32>);

    impl Actor for Counter {
        type Msg = ();

        fn receive(&mut self, (): (), _ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Flow::Continue)
        }
    }

    /// An actor that counts, in a system where nothing goes on.
    fn counter() -> (TestRuntime, ReadyQueueScheduler, ActorRef<()>, Arc<AtomicU32>) {
        let runtime = TestRuntime::new(0);
        let system = ActorSystemRunner::default().start(runtime.handle()).unwrap();
        let handled = Arc::new(AtomicU32::new(0));
        let count = handled.clone();
        let actor = system.spawn(&Props::new(move || Counter(count.clone())).build()).unwrap();
        runtime.run_until_idle();
        (runtime, system, actor, handled)
    }
}
