//! What the system tells a cell.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::guardian::{FailureNotification, SupervisionCommand, SupervisionDecision};
use crate::invoke::SignalKey;
use crate::stop::{StopMode, Termination};
use crate::timer::TimerId;

/// Signals remembered that came before the wait they end; the oldest is forgotten first.
pub(crate) const EARLY_MAX: usize = 16;

/// What the system tells a cell.
#[derive(Debug)]
pub(crate) enum SystemMessage {
    /// End, at once or after what waits.
    Stop(StopMode),
    /// What a supervisor ordered.
    Command(SupervisionCommand),
    /// A child failed and this was decided about it.
    ChildFailed(Box<FailureNotification>),
    /// A child or a watched actor has ended.
    Ended { who: CellRef, how: Termination },
    /// Tell `CellRef` when this actor has ended.
    Watch(CellRef),
    /// Do not.
    Unwatch(CellRef),
    /// The wait for a signal is over.
    Signal(SignalKey),
    /// The time of a suspension is over.
    Resume { due: Instant },
    /// Something in the future that is waited for may have expired.
    Expire { due: Instant },
    /// Nothing arrived for as long as the actor asked for.
    ReceiveTimeout { due: Instant },
    /// A timer of the actor's own fired.
    Timer { id: TimerId, due: Instant },
}

impl SystemMessage {
    /// Puts the message at the end of a lane; returns those that it made pointless, or itself.
    ///
    /// Bound on what anybody may say to a cell that does not run, as often as they like: a stop of each
    /// kind, three commands, [`EARLY_MAX`] signals and the one that is waited for, two words of each
    /// watcher, a failure of each child that goes on by itself.
    pub(crate) fn enqueue_coalescing(self, lane: &mut VecDeque<Self>, awaited: Option<u64>) -> Vec<Self> {
        let mut pointless = Vec::new();
        match &self {
            Self::Stop(_) | Self::Command(_) if lane.iter().any(|earlier| earlier.covers(&self)) => {
                return alloc::vec![self];
            }
            Self::Signal(_) => pointless.extend(forget_signal(lane, awaited)),
            // The watch before it, if it is known already, is taken back all the same.
            Self::Unwatch(who) => throw_out(lane, &mut pointless, |earlier| match earlier {
                Self::Watch(watcher) | Self::Unwatch(watcher) => watcher.is(who),
                _ => false,
            }),
            Self::ChildFailed(failure) if failure.decision == SupervisionDecision::Resume => {
                throw_out(lane, &mut pointless, |earlier| match earlier {
                    Self::ChildFailed(earlier) => {
                        earlier.decision == SupervisionDecision::Resume && earlier.child == failure.child
                    }
                    _ => false,
                });
            }
            _ => {}
        }
        lane.push_back(self);
        pointless
    }

    /// Whether a stop or a command adds nothing to this one, which is obeyed before it.
    fn covers(&self, later: &Self) -> bool {
        match (self, later) {
            (Self::Stop(earlier), Self::Stop(later)) => earlier == later,
            (Self::Command(earlier), Self::Command(later)) => match earlier {
                SupervisionCommand::Stop => true,
                SupervisionCommand::Restart => *later != SupervisionCommand::Stop,
                SupervisionCommand::Resume => *later == SupervisionCommand::Resume,
            },
            _ => false,
        }
    }
}

/// Makes room for one more signal: the oldest goes, but not the first that ends the wait.
fn forget_signal(lane: &mut VecDeque<SystemMessage>, awaited: Option<u64>) -> Option<SystemMessage> {
    let key = |message: &SystemMessage| match message {
        SystemMessage::Signal(SignalKey(key)) => Some(*key),
        _ => None,
    };
    let ends_wait = awaited.and_then(|awaited| lane.iter().position(|message| key(message) == Some(awaited)));
    let mut others =
        lane.iter().enumerate().filter(|(at, message)| key(message).is_some() && Some(*at) != ends_wait);
    let oldest = others.next()?.0;
    if others.count() + 1 < EARLY_MAX {
        return None;
    }
    lane.remove(oldest)
}

/// Moves messages out of a lane, to be dropped after its lock.
fn throw_out(
    lane: &mut VecDeque<SystemMessage>,
    out: &mut Vec<SystemMessage>,
    is_pointless: impl Fn(&SystemMessage) -> bool,
) {
    while let Some(at) = lane.iter().position(&is_pointless) {
        out.extend(lane.remove(at));
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::guardian::ActorError;
    use crate::index::MailboxIndex;
    use crate::test_rig::Rig;
    use alloc::format;
    use alloc::string::String;

    #[test]
    fn a_stop_is_told_once_of_each_kind() {
        let stops = [StopMode::Drained, StopMode::Now, StopMode::Drained, StopMode::Now];
        let (lane, pointless) = joined(stops.map(SystemMessage::Stop), None);
        assert_eq!((lane, pointless), (strings(["Stop(Drained)", "Stop(Now)"]), 2));
    }

    #[test]
    fn a_command_is_told_unless_one_before_it_does_as_much() {
        use SupervisionCommand::{Restart, Resume, Stop};
        let commands = [Resume, Resume, Restart, Resume, Restart, Stop, Restart, Stop];
        let (lane, pointless) = joined(commands.map(SystemMessage::Command), None);
        let told = ["Command(Resume)", "Command(Restart)", "Command(Stop)"];
        assert_eq!((lane, pointless), (strings(told), 5));
    }

    #[test]
    fn the_latest_signals_are_kept_and_the_first_that_ends_the_wait() {
        let signal = |key| SystemMessage::Signal(SignalKey(key));
        let (lane, pointless) = joined([7, 7].into_iter().chain(100..200).map(signal), Some(7));
        assert_eq!((lane.len(), pointless), (1 + EARLY_MAX, 102 - 1 - EARLY_MAX));
        assert_eq!(lane[0], format!("{:?}", signal(7)));
        assert_eq!(lane[1], format!("{:?}", signal(200 - EARLY_MAX as u64)));
    }

    #[test]
    fn a_watcher_has_two_words_at_most() {
        let rig = Rig::new(1);
        let first = rig.spawn().cell().clone();
        let second = rig.spawn().cell().clone();
        let watch = |cell: &CellRef| SystemMessage::Watch(cell.clone());
        let unwatch = |cell: &CellRef| SystemMessage::Unwatch(cell.clone());
        let words = [watch(&first), watch(&second), unwatch(&first), watch(&first), unwatch(&first)];
        let (lane, pointless) = joined(words, None);
        assert_eq!((lane, pointless), (strings(["Watch(1.0)", "Unwatch(0.0)"]), 3));
        let (lane, _) = joined([unwatch(&first), watch(&first)], None);
        assert_eq!(lane, strings(["Unwatch(0.0)", "Watch(0.0)"]));
    }

    #[test]
    fn of_a_child_that_goes_on_by_itself_the_latest_failure_is_told() {
        let failed = |slot, decision, restarts| {
            let child = MailboxIndex { slot, generation: 0 };
            let error = ActorError::new("broken");
            SystemMessage::ChildFailed(Box::new(FailureNotification { child, error, decision, restarts }))
        };
        let failures = [
            failed(1, SupervisionDecision::Resume, 1),
            failed(1, SupervisionDecision::Escalate, 2),
            failed(2, SupervisionDecision::Resume, 3),
            failed(1, SupervisionDecision::Resume, 4),
        ];
        let mut lane = VecDeque::new();
        let pointless: usize =
            failures.into_iter().map(|failure| failure.enqueue_coalescing(&mut lane, None).len()).sum();
        let told = lane.iter().map(|message| match message {
            SystemMessage::ChildFailed(failure) => failure.restarts,
            _ => 0,
        });
        assert_eq!((told.collect::<Vec<_>>(), pointless), (alloc::vec![2, 3, 4], 1));
    }

    /// What is in a lane after these have joined it, and how many were thrown out.
    fn joined(
        messages: impl IntoIterator<Item = SystemMessage>,
        awaited: Option<u64>,
    ) -> (Vec<String>, usize) {
        let mut lane = VecDeque::new();
        let pointless =
            messages.into_iter().map(|message| message.enqueue_coalescing(&mut lane, awaited).len()).sum();
        (lane.iter().map(|message| format!("{message:?}")).collect(), pointless)
    }

    fn strings<const N: usize>(lines: [&str; N]) -> Vec<String> {
        lines.map(String::from).into()
    }
}
