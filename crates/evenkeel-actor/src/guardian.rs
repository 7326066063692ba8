//! Supervision: decides whether a failed actor is resumed, restarted, stopped or escalated.
//!
//! Limits: within any window of `within`, [`decide`] grants at most `max_restarts` restarts; the next failure stops the
//! actor. Restarts are delayed by an exponential backoff with jitter, never longer than its `max`.

mod backoff;
mod error;
mod history;
mod settings;

pub use backoff::{Backoff, InvalidBackoff};
pub use error::{ActorError, ErrorKind};
pub use history::RestartHistory;
pub use settings::{InvalidSupervision, MailboxOnRestart, Strategy, Supervision};

use core::fmt;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use crate::index::MailboxIndex;

/// Directive of a supervisor for a failed child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SupervisionDirective {
    /// Continue with the next message and the current state.
    Resume,
    /// Replace the actor by a new value from the factory.
    Restart,
    /// Stop the actor and its children.
    Stop,
    /// Fail the supervisor in the child's place, so that its own supervisor decides.
    Escalate,
}

/// Decision about a failure: the directive, limited by the restart history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionDecision {
    /// Continue with the next message and the current state.
    Resume,
    /// Replace the actor by a new value from the factory.
    Restart {
        /// The delay before the restart.
        after: Duration,
    },
    /// Stop the actor and its children.
    Stop {
        /// The reason for the stop.
        reason: StopReason,
    },
    /// Fail the supervisor in the child's place, so that its own supervisor decides.
    Escalate,
}

/// Reason a failure stops an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The decider returned [`SupervisionDirective::Stop`].
    Directed,
    /// The decider returned `Restart`, but the limit is reached.
    RestartsExhausted {
        /// The limit.
        max_restarts: u32,
        /// The window.
        within: Duration,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directed => f.write_str("the supervisor stops actors on this error"),
            Self::RestartsExhausted { max_restarts, within } => {
                write!(f, "the limit of {max_restarts} restarts within {within:?} is reached")
            }
        }
    }
}

/// Decides about an actor that failed at `now`, and records a granted restart in its history.
///
/// `random` is a uniformly random number for the jitter of the delay. A restart counts in the window from the time of the
/// failure, not from the end of the delay.
pub fn decide(
    supervision: &Supervision,
    history: &mut RestartHistory,
    error: &ActorError,
    now: Instant,
    random: u32,
) -> SupervisionDecision {
    history.forget_old(now, supervision.within());
    match supervision.directive(error) {
        SupervisionDirective::Resume => SupervisionDecision::Resume,
        SupervisionDirective::Escalate => SupervisionDecision::Escalate,
        SupervisionDirective::Stop => SupervisionDecision::Stop { reason: StopReason::Directed },
        SupervisionDirective::Restart => {
            let max_restarts = supervision.max_restarts();
            let within = supervision.within();
            if history.restarts() >= max_restarts {
                return SupervisionDecision::Stop {
                    reason: StopReason::RestartsExhausted { max_restarts, within },
                };
            }
            let after = supervision.backoff().delay(history.consecutive(), random);
            history.restart(now, after);
            SupervisionDecision::Restart { after }
        }
    }
}

/// Notification to a parent about a child's failure.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureNotification {
    /// The failed child.
    pub child: MailboxIndex,
    /// The failure.
    pub error: ActorError,
    /// The decision that is being carried out.
    pub decision: SupervisionDecision,
    /// The number of restarts in the window, the one just granted included.
    pub restarts: u32,
}

/// Command from a parent to a child, for example to overrule a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SupervisionCommand {
    /// Continue with the next message and the current state.
    Resume,
    /// Replace the actor by a new value from the factory.
    Restart,
    /// Stop the actor and its children.
    Stop,
}

#[cfg(test)]
mod tests;
