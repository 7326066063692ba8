//! Supervision: what becomes of an actor that failed.
//!
//! Bound: within any span of `within`, [`decide`] lets an actor restart at most `max_restarts` times;
//! the next failure stops it. No delay before a restart exceeds the backoff's `max`.

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

/// What a supervisor wants done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SupervisionDirective {
    /// Go on with the next message, state as it is.
    Resume,
    /// Begin anew from the factory.
    Restart,
    /// End the actor and its children.
    Stop,
    /// Fail in the child's place, so that the supervisor's own supervisor decides.
    Escalate,
}

/// What is done about a failure, once the history has had its say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisionDecision {
    /// Go on with the next message, state as it is.
    Resume,
    /// Begin anew from the factory.
    Restart {
        /// How long to wait first.
        after: Duration,
    },
    /// End the actor and its children.
    Stop {
        /// Why it ends.
        reason: StopReason,
    },
    /// Fail in the child's place, so that the supervisor's own supervisor decides.
    Escalate,
}

/// Why a failure ends an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The decider said so.
    Directed,
    /// The decider asked for a restart, and none is left.
    RestartsExhausted {
        /// How many restarts the window allows.
        max_restarts: u32,
        /// The window.
        within: Duration,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directed => f.write_str("the supervisor stops it on this error"),
            Self::RestartsExhausted { max_restarts, within } => {
                write!(f, "all {max_restarts} restarts within {within:?} are used up")
            }
        }
    }
}

/// Decides what becomes of an actor that failed at `now`, and remembers a restart it grants.
///
/// `random` spreads the delay before a restart; any number will do. A restart counts from the failure
/// it answers, not from the end of its delay.
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
            if max_restarts <= history.restarts() {
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

/// What a parent learns about a child's failure.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureNotification {
    /// The child.
    pub child: MailboxIndex,
    /// What went wrong.
    pub error: ActorError,
    /// What is being done about it.
    pub decision: SupervisionDecision,
    /// How many restarts the window holds, one just granted included.
    pub restarts: u32,
}

/// What a parent has done to a child instead of the decision it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SupervisionCommand {
    /// Go on with the next message, state as it is.
    Resume,
    /// Begin anew from the factory.
    Restart,
    /// End the actor and its children.
    Stop,
}

#[cfg(test)]
mod tests;
