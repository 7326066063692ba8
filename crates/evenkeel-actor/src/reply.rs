//! Ask pattern: a request with a reply channel, and a future that resolves to the reply or times out.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::raw::oneshot::{Receiver, RecvError, Sender};
use crate::trace::SpanHandle;

/// Timeouts of at least this long are counted from the worker's last clock read.
///
/// That read may be as old as the last handler's duration; shorter timeouts justify another read.
#[cfg(feature = "std")]
const COARSE_CLOCK_MIN: Duration = Duration::from_secs(1);

/// Reply channel of an ask; part of the message.
pub struct Reply<T> {
    sender: Sender<T>,
    trace: SpanHandle,
}

impl<T> Reply<T> {
    pub(crate) fn new(sender: Sender<T>, trace: SpanHandle) -> Self {
        Self { sender, trace }
    }

    /// Sends the reply; returns it if the asker no longer waits.
    pub fn send(self, reply: T) -> Result<(), T> {
        self.trace.record_replied();
        self.sender.send(reply)
    }

    /// Reports whether the asker still waits; an expensive reply may not be worth computing otherwise.
    pub fn is_awaited(&self) -> bool {
        self.sender.is_awaited()
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_awaited() { "Reply(awaited)" } else { "Reply(abandoned)" })
    }
}

/// Future that resolves to the reply to an ask, or fails at its deadline.
#[must_use = "the reply is lost unless the future is awaited"]
pub struct AskFuture<'a, T> {
    receiver: Receiver<T>,
    target: &'a CellRef,
    state: State,
    /// Span of the ask, open until the reply is received.
    _trace: SpanHandle,
}

/// Origin of an ask's timeout: the default, or chosen by the asker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeadlineKind {
    Default,
    Explicit,
}

#[derive(Clone, Copy)]
enum State {
    /// Sent, not polled yet.
    Sent {
        timeout: Duration,
        #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "without std no cell runs inline"))]
        deadline: DeadlineKind,
    },
    /// Waits until the deadline.
    Waiting {
        due: Instant,
    },
    Rejected(AskError),
}

impl<'a, T> AskFuture<'a, T> {
    pub(crate) fn new(
        receiver: Receiver<T>,
        target: &'a CellRef,
        timeout: Duration,
        trace: SpanHandle,
    ) -> Self {
        Self {
            receiver,
            target,
            state: State::Sent { timeout, deadline: DeadlineKind::Default },
            _trace: trace,
        }
    }

    pub(crate) fn rejected(receiver: Receiver<T>, target: &'a CellRef, error: AskError) -> Self {
        Self { receiver, target, state: State::Rejected(error), _trace: SpanHandle::NONE }
    }

    /// Sets the timeout, counted from the first poll.
    pub fn within(mut self, timeout: Duration) -> Self {
        if let State::Sent { .. } = self.state {
            self.state = State::Sent { timeout, deadline: DeadlineKind::Explicit };
        }
        self
    }

    fn ask_error(&self, error: RecvError) -> AskError {
        match error {
            // The end of the host ended the actor, the message or the timer.
            _ if self.target.core().is_host_gone() => AskError::HostGone,
            RecvError::TimedOut => AskError::TimedOut,
            RecvError::SenderDropped => AskError::NoReply,
            RecvError::DeadLettered => AskError::Discarded,
        }
    }

    #[cfg(feature = "std")]
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let core = self.target.core();
        crate::raw::current::with(core, |local| {
            let Some(local) = local else {
                return self.receiver.poll_recv(cx.waker(), || cx.waker().clone());
            };
            // An explicit deadline must not depend on the duration of a handler.
            if matches!(self.state, State::Sent { deadline: DeadlineKind::Default, .. }) {
                local.run_asked_inline(cx.waker());
            }
            self.receiver.poll_recv(cx.waker(), || local.owned_waker(cx.waker()))
        })
    }

    #[cfg(not(feature = "std"))]
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        self.receiver.poll_recv(cx.waker(), || cx.waker().clone())
    }

    /// Registers the deadline; returns it, or the far future if the timer driver will end the wait.
    #[cfg(feature = "std")]
    fn watch_deadline(&self, waker: &Waker, now: Option<Instant>, timeout: Duration) -> Instant {
        let core = self.target.core();
        crate::raw::current::with(core, |local| match local {
            Some(local) => {
                let now = now.or_else(|| (timeout < COARSE_CLOCK_MIN).then(|| core.now()));
                let due = now.unwrap_or_else(|| local.coarse_now()) + timeout;
                if local.watch_own_deadline(waker, due) {
                    return due;
                }
                local.watch_deadline(self.receiver.deadline(), timeout);
                Instant::FAR_FUTURE
            }
            None => {
                core.timer_driver.watch_deadline(self.receiver.deadline(), timeout);
                Instant::FAR_FUTURE
            }
        })
    }

    /// Registers the deadline with the timer driver, which will end the wait.
    #[cfg(not(feature = "std"))]
    fn watch_deadline(&self, _waker: &Waker, _now: Option<Instant>, timeout: Duration) -> Instant {
        self.target.core().timer_driver.watch_deadline(self.receiver.deadline(), timeout);
        Instant::FAR_FUTURE
    }
}

impl<T> Unpin for AskFuture<'_, T> {}

impl<T> Future for AskFuture<'_, T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match (self.poll_reply(cx), self.state) {
            (_, State::Rejected(error)) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(reply)), _) => Poll::Ready(Ok(reply)),
            (Poll::Ready(Err(error)), _) => Poll::Ready(Err(self.ask_error(error))),
            (Poll::Pending, State::Waiting { due }) => {
                let now = self.target.core().now();
                if due <= now {
                    return Poll::Ready(Err(AskError::TimedOut));
                }
                if due < Instant::FAR_FUTURE {
                    // The future may have moved to another task: then the timer driver ends the wait.
                    let due = self.watch_deadline(cx.waker(), Some(now), due.since(now));
                    self.state = State::Waiting { due };
                }
                Poll::Pending
            }
            (Poll::Pending, State::Sent { timeout, .. }) => {
                let due = self.watch_deadline(cx.waker(), None, timeout);
                self.state = State::Waiting { due };
                Poll::Pending
            }
        }
    }
}

/// Reason why an ask got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The mailbox was full.
    #[error("mailbox is full")]
    Full,
    /// The request was dead-lettered: by the mailbox's overflow strategy, or because it was queued when
    /// its actor stopped, or restarted and cleared its mailbox.
    #[error("request was dead-lettered")]
    Discarded,
    /// The actor has terminated or no longer accepts messages.
    #[error("actor no longer accepts messages")]
    Closed,
    /// The host runtime was dropped before the actor system.
    #[error("the runtime of the actor system was dropped")]
    HostGone,
    /// There is no memory to enlarge the actor's mailbox.
    #[error("the mailbox failed: out of memory")]
    MailboxFailed,
    /// The deadline passed.
    #[error("no reply before the deadline")]
    TimedOut,
    /// The actor dropped the request without a reply.
    #[error("actor dropped the request without a reply")]
    NoReply,
}
