//! Questions and answers.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use crate::cell::CellRef;
use crate::raw::oneshot::{NoAnswer, Receiver, Sender};

/// The way back to somebody who asked; goes into the message.
pub struct Reply<T>(pub(crate) Sender<T>);

impl<T> Reply<T> {
    /// Answers; the answer comes back when nobody waits for it any more.
    pub fn send(self, answer: T) -> Result<(), T> {
        self.0.send(answer)
    }

    /// Whether somebody still waits; an answer that takes long to find may not be worth finding.
    pub fn is_awaited(&self) -> bool {
        self.0.is_awaited()
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_awaited() { "Reply(awaited)" } else { "Reply(too late)" })
    }
}

/// An answer that is waited for, until its deadline.
#[must_use = "a question nobody waits for is answered in vain"]
pub struct Ask<T> {
    receiver: Receiver<T>,
    state: State,
}

enum State {
    /// Not polled yet, so nobody watches over the deadline.
    Asked {
        whom: CellRef,
        within: Duration,
    },
    Watched,
    Refused(AskError),
}

impl<T> Ask<T> {
    pub(crate) fn new(receiver: Receiver<T>, whom: CellRef, within: Duration) -> Self {
        Self { receiver, state: State::Asked { whom, within } }
    }

    pub(crate) fn refused(receiver: Receiver<T>, error: AskError) -> Self {
        Self { receiver, state: State::Refused(error) }
    }

    /// Gives up on an answer that is not there after `within`.
    pub fn within(mut self, within: Duration) -> Self {
        if let State::Asked { within: default, .. } = &mut self.state {
            *default = within;
        }
        self
    }
}

impl<T> Unpin for Ask<T> {}

impl<T> Future for Ask<T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Refused(error) = self.state {
            return Poll::Ready(Err(error));
        }
        match self.receiver.poll(cx) {
            Poll::Ready(Ok(answer)) => Poll::Ready(Ok(answer)),
            Poll::Ready(Err(NoAnswer::Expired)) => Poll::Ready(Err(AskError::TimedOut)),
            Poll::Ready(Err(NoAnswer::Unanswered)) => Poll::Ready(Err(AskError::NoReply)),
            Poll::Pending => {
                if let State::Asked { whom, within } = core::mem::replace(&mut self.state, State::Watched) {
                    whom.core().watch_question(self.receiver.expiry(), within);
                }
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
            Self::Closed => "actor takes no messages any more",
            Self::TimedOut => "no answer within the deadline",
            Self::NoReply => "actor dropped the question",
        })
    }
}

impl core::error::Error for AskError {}
