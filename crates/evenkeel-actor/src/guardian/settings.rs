//! The supervision settings of an actor for its children.

use core::time::Duration;

use super::{ActorError, Backoff, SupervisionDirective};

/// Strategy for the siblings of a failed child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Only the failed child.
    #[default]
    OneForOne,
    /// All children: the siblings get the same directive.
    AllForOne,
}

/// Treatment of queued messages when an actor restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MailboxOnRestart {
    /// The new value handles them.
    #[default]
    Keep,
    /// They are dead-lettered.
    Clear,
}

/// The supervision of an actor's children.
///
/// The limit of `max_restarts` within `within` takes effect only if that many delays fit into `within`; otherwise the
/// actor is restarted forever, at the pace of the backoff's `max`.
#[derive(Clone, Copy, Debug)]
pub struct Supervision {
    strategy: Strategy,
    decider: fn(&ActorError) -> SupervisionDirective,
    max_restarts: u32,
    within: Duration,
    backoff: Backoff,
    on_restart: MailboxOnRestart,
}

/// Restarts the failed child on every error, at most ten times a minute, with exponential backoff; its messages wait.
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
    /// The maximum of `max_restarts`; each restart is stored until it leaves the window.
    pub const RESTARTS_MAX: u32 = 1_000;

    /// Sets which children a failure affects.
    pub const fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the function that maps an error to a directive.
    pub const fn with_decider(mut self, decider: fn(&ActorError) -> SupervisionDirective) -> Self {
        self.decider = decider;
        self
    }

    /// Limits the restarts in any window of `within`; 0 allows none.
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

    /// Sets the delay before a restart.
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the treatment of queued messages on a restart.
    pub const fn with_on_restart(mut self, on_restart: MailboxOnRestart) -> Self {
        self.on_restart = on_restart;
        self
    }

    /// Returns the decider's directive for an error.
    pub fn directive(&self, error: &ActorError) -> SupervisionDirective {
        (self.decider)(error)
    }

    /// Returns which children a failure affects.
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Returns the maximum number of restarts within the window.
    pub const fn max_restarts(&self) -> u32 {
        self.max_restarts
    }

    /// Returns the window.
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Returns the delay before a restart.
    pub const fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// Returns the treatment of queued messages on a restart.
    pub const fn on_restart(&self) -> MailboxOnRestart {
        self.on_restart
    }
}

/// Reason a [`Supervision`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSupervision {
    /// More restarts than [`Supervision::RESTARTS_MAX`].
    #[error("max_restarts is {max_restarts}, above the limit of {max}", max = Supervision::RESTARTS_MAX)]
    TooManyRestarts {
        /// The configured limit.
        max_restarts: u32,
    },
    /// The window is zero, so no restart would ever count.
    #[error("the restart window is zero")]
    NoWindow,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_setting_is_stored() {
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
    fn an_empty_window_and_more_than_1000_restarts_are_rejected() {
        let result = |max_restarts, within| {
            let supervision = Supervision::default().with_max_restarts(max_restarts, within);
            supervision.map(|_| ()).map_err(|invalid| invalid.to_string())
        };
        assert_eq!(result(1_000, MINUTE), Ok(()));
        assert_eq!(result(1_001, MINUTE), Err("max_restarts is 1001, above the limit of 1000".to_string()));
        assert_eq!(result(0, MINUTE), Ok(()));
        assert_eq!(result(1, Duration::ZERO), Err("the restart window is zero".to_string()));
    }
}
