//! How an actor supervises its children.

use core::fmt;
use core::time::Duration;

use super::{ActorError, Backoff, SupervisionDirective};

/// Whom a child's failure concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The child alone.
    #[default]
    OneForOne,
    /// All children: what is done to the one is done to its siblings.
    AllForOne,
}

/// What becomes of the waiting messages when an actor restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MailboxOnRestart {
    /// The new one handles them.
    #[default]
    Keep,
    /// They become dead letters.
    Clear,
}

/// How an actor supervises its children.
///
/// A limit of `max_restarts` within `within` bites only if that many delays fit into `within`; else
/// the actor is retried for ever, at the pace of the backoff's `max`.
#[derive(Clone, Copy, Debug)]
pub struct Supervision {
    strategy: Strategy,
    decider: fn(&ActorError) -> SupervisionDirective,
    max_restarts: u32,
    within: Duration,
    backoff: Backoff,
    on_restart: MailboxOnRestart,
}

/// Restarts the failed child on every error, ten times in a minute, waiting longer each time; its
/// messages wait for it.
impl Default for Supervision {
    fn default() -> Self {
        Self {
            strategy: Strategy::OneForOne,
            decider: |_| SupervisionDirective::Restart,
            max_restarts: 10,
            within: Duration::from_secs(60),
            backoff: Backoff::DOUBLING,
            on_restart: MailboxOnRestart::Keep,
        }
    }
}

impl Supervision {
    /// The most restarts a window may allow; each is remembered until it leaves the window.
    pub const RESTARTS_MAX: u32 = 1_000;

    /// Sets whom a failure concerns.
    pub const fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets what is wanted on which error.
    pub const fn with_decider(mut self, decider: fn(&ActorError) -> SupervisionDirective) -> Self {
        self.decider = decider;
        self
    }

    /// Sets how many restarts are allowed in any span of `within`; 0 allows none.
    pub const fn with_max_restarts(
        mut self,
        max_restarts: u32,
        within: Duration,
    ) -> Result<Self, InvalidSupervision> {
        if max_restarts > Self::RESTARTS_MAX {
            return Err(InvalidSupervision::TooManyRestarts { max_restarts });
        }
        if within.is_zero() {
            return Err(InvalidSupervision::NoWindow);
        }
        self.max_restarts = max_restarts;
        self.within = within;
        Ok(self)
    }

    /// Sets how long to wait before a restart.
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets what becomes of the waiting messages.
    pub const fn with_on_restart(mut self, on_restart: MailboxOnRestart) -> Self {
        self.on_restart = on_restart;
        self
    }

    /// Asks the decider what it wants done about an error.
    pub fn directive(&self, error: &ActorError) -> SupervisionDirective {
        (self.decider)(error)
    }

    /// Says whom a failure concerns.
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Says how many restarts a window allows.
    pub const fn max_restarts(&self) -> u32 {
        self.max_restarts
    }

    /// Says how long a restart counts.
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Says how long to wait before a restart.
    pub const fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// Says what becomes of the waiting messages.
    pub const fn on_restart(&self) -> MailboxOnRestart {
        self.on_restart
    }
}

/// The rule a supervision breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidSupervision {
    /// More restarts than [`Supervision::RESTARTS_MAX`].
    TooManyRestarts {
        /// The restarts as given.
        max_restarts: u32,
    },
    /// In no time at all, no restart ever counts.
    NoWindow,
}

impl fmt::Display for InvalidSupervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyRestarts { max_restarts } => {
                write!(f, "{max_restarts} restarts are more than {}", Supervision::RESTARTS_MAX)
            }
            Self::NoWindow => f.write_str("a window of 0 counts no restart"),
        }
    }
}

impl core::error::Error for InvalidSupervision {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_setting_is_kept() {
        let supervision = Supervision::default()
            .with_strategy(Strategy::AllForOne)
            .with_decider(|_| SupervisionDirective::Stop)
            .with_backoff(Backoff::NONE)
            .with_on_restart(MailboxOnRestart::Clear)
            .with_max_restarts(3, MINUTE / 2)
            .unwrap();
        assert_eq!(supervision.strategy(), Strategy::AllForOne);
        assert_eq!(supervision.directive(&ActorError::new("any")), SupervisionDirective::Stop);
        assert_eq!(supervision.backoff(), Backoff::NONE);
        assert_eq!(supervision.on_restart(), MailboxOnRestart::Clear);
        assert_eq!((supervision.max_restarts(), supervision.within()), (3, MINUTE / 2));
    }

    #[test]
    fn a_window_has_a_length_and_at_most_1000_restarts() {
        let refused = |max_restarts, within| {
            let refused = Supervision::default().with_max_restarts(max_restarts, within);
            refused.map(|_| ()).map_err(|invalid| invalid.to_string())
        };
        assert_eq!(refused(1_000, MINUTE), Ok(()));
        assert_eq!(refused(1_001, MINUTE), Err("1001 restarts are more than 1000".to_string()));
        assert_eq!(refused(0, MINUTE), Ok(()));
        assert_eq!(refused(1, Duration::ZERO), Err("a window of 0 counts no restart".to_string()));
    }
}
