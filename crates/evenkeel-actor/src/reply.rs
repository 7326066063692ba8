//! Questions and answers.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::raw::oneshot::{Receiver, RecvError, Sender};
use crate::trace::SpanHandle;

/// Deadlines from here on are counted from the worker's last look at the clock.
///
/// That is as long ago as the handler before took; for shorter ones it is worth another look.
#[cfg(feature = "std")]
const COARSE_FROM: Duration = Duration::from_secs(1);

/// The way back to somebody who asked; goes into the message.
pub struct Reply<T> {
    sender: Sender<T>,
    trace: SpanHandle,
}

impl<T> Reply<T> {
    pub(crate) fn new(sender: Sender<T>, trace: SpanHandle) -> Self {
        Self { sender, trace }
    }

    /// Answers; the answer comes back when nobody waits for it any more.
    pub fn send(self, answer: T) -> Result<(), T> {
        self.trace.record_replied();
        self.sender.send(answer)
    }

    /// Whether somebody still waits; an answer that takes long to find may not be worth finding.
    pub fn is_awaited(&self) -> bool {
        self.sender.is_awaited()
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_awaited() { "Reply(awaited)" } else { "Reply(too late)" })
    }
}

/// An answer that is waited for, until its deadline.
#[must_use = "a question nobody waits for is answered in vain"]
pub struct AskFuture<'a, T> {
    receiver: Receiver<T>,
    whom: &'a CellRef,
    state: State,
    /// Open until the answer is taken.
    _trace: SpanHandle,
}

/// Whether whoever asks has named a deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeadlineKind {
    None,
    Named,
}

#[derive(Clone, Copy)]
enum State {
    /// Not polled yet.
    Asked {
        within: Duration,
        #[cfg_attr(
            not(feature = "std"),
            expect(dead_code, reason = "without std nobody runs in another's place")
        )]
        haste: DeadlineKind,
    },
    /// Waits until then.
    Waiting {
        due: Instant,
    },
    Refused(AskError),
}

impl<'a, T> AskFuture<'a, T> {
    pub(crate) fn new(receiver: Receiver<T>, whom: &'a CellRef, within: Duration, trace: SpanHandle) -> Self {
        Self { receiver, whom, state: State::Asked { within, haste: DeadlineKind::None }, _trace: trace }
    }

    pub(crate) fn refused(receiver: Receiver<T>, whom: &'a CellRef, error: AskError) -> Self {
        Self { receiver, whom, state: State::Refused(error), _trace: SpanHandle::NONE }
    }

    /// Gives up on an answer that is not there after `within`, counted from the first poll.
    pub fn within(mut self, within: Duration) -> Self {
        if let State::Asked { .. } = self.state {
            self.state = State::Asked { within, haste: DeadlineKind::Named };
        }
        self
    }

    #[cfg(feature = "std")]
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let core = self.whom.core();
        crate::raw::current::with(core, |local| {
            let Some(local) = local else {
                return self.receiver.poll_with(cx.waker(), || cx.waker().clone());
            };
            // A deadline that matters must not depend on how long a handler takes.
            if matches!(self.state, State::Asked { haste: DeadlineKind::None, .. }) {
                local.run_asked_inline(cx.waker());
            }
            self.receiver.poll_with(cx.waker(), || local.own(cx.waker()))
        })
    }

    #[cfg(not(feature = "std"))]
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        self.receiver.poll_with(cx.waker(), || cx.waker().clone())
    }

    /// Has somebody watch over the deadline; tells when it is, unless the clock ends the wait.
    #[cfg(feature = "std")]
    fn watch(&self, waker: &Waker, now: Option<Instant>, within: Duration) -> Instant {
        let core = self.whom.core();
        crate::raw::current::with(core, |local| match local {
            Some(local) => {
                let now = now.or_else(|| (within < COARSE_FROM).then(|| core.now()));
                let due = now.unwrap_or_else(|| local.coarse_now()) + within;
                if local.watch_own(waker, due) {
                    return due;
                }
                local.watch(self.receiver.expiry(), within);
                Instant::FAR_FUTURE
            }
            None => {
                core.clock.watch(self.receiver.expiry(), within);
                Instant::FAR_FUTURE
            }
        })
    }

    /// Has somebody watch over the deadline; tells when it is, unless the clock ends the wait.
    #[cfg(not(feature = "std"))]
    fn watch(&self, _waker: &Waker, _now: Option<Instant>, within: Duration) -> Instant {
        self.whom.core().clock.watch(self.receiver.expiry(), within);
        Instant::FAR_FUTURE
    }
}

impl<T> Unpin for AskFuture<'_, T> {}

impl<T> Future for AskFuture<'_, T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match (self.poll_answer(cx), self.state) {
            (_, State::Refused(error)) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(answer)), _) => Poll::Ready(Ok(answer)),
            (Poll::Ready(Err(RecvError::TimedOut)), _) => Poll::Ready(Err(AskError::TimedOut)),
            (Poll::Ready(Err(RecvError::Dropped)), _) => Poll::Ready(Err(AskError::NoReply)),
            (Poll::Ready(Err(RecvError::DeadLettered)), _) => Poll::Ready(Err(AskError::Discarded)),
            (Poll::Pending, State::Waiting { due }) => {
                let now = self.whom.core().now();
                if due <= now {
                    return Poll::Ready(Err(AskError::TimedOut));
                }
                if due < Instant::FAR_FUTURE {
                    // Whoever polls may be another than before: then the clock ends the wait.
                    let due = self.watch(cx.waker(), Some(now), due.since(now));
                    self.state = State::Waiting { due };
                }
                Poll::Pending
            }
            (Poll::Pending, State::Asked { within, .. }) => {
                let due = self.watch(cx.waker(), None, within);
                self.state = State::Waiting { due };
                Poll::Pending
            }
        }
    }
}

/// Why a question got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskError {
    /// The mailbox was full.
    Full,
    /// The question became a dead letter: the mailbox's overflow strategy says so, or it waited when its
    /// actor stopped, or restarted with a mailbox cleared.
    Discarded,
    /// The actor had ended, or takes nothing more.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The actor dropped the question.
    NoReply,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "mailbox is full",
            Self::Discarded => "question became a dead letter",
            Self::Closed => "actor takes no messages any more",
            Self::TimedOut => "no answer within the deadline",
            Self::NoReply => "actor dropped the question",
        })
    }
}

impl core::error::Error for AskError {}
