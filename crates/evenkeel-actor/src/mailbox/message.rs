//! System messages, and the rules by which redundant ones are coalesced.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::guardian::{FailureNotification, SupervisionCommand, SupervisionDecision};
use crate::invoke::SignalKey;
use crate::stop::{StopMode, Termination};
use crate::timer::TimerId;

/// Maximum number of signals kept that arrived before the actor waits for them; the oldest is dropped first.
pub(crate) const EARLY_SIGNALS_MAX: usize = 16;

/// A message from the runtime to an actor cell.
#[derive(Debug)]
pub(crate) enum SystemMessage {
    /// Stop immediately, or after the queued messages.
    Stop(StopMode),
    /// Command of a supervisor.
    Command(SupervisionCommand),
    /// A child failed; includes the supervision decision.
    ChildFailed(Box<FailureNotification>),
    /// A child or a watched actor has terminated.
    Terminated { actor: CellRef, termination: Termination },
    /// Notify `CellRef` when this actor terminates.
    Watch(CellRef),
    /// Undo a `Watch`.
    Unwatch(CellRef),
    /// A signal that may end a wait.
    Signal(SignalKey),
    /// The delay of a suspension has elapsed.
    Resume { due: Instant },
    /// An ask in the awaited future may have timed out.
    Repoll { due: Instant },
    /// The receive timeout has elapsed.
    ReceiveTimeout { due: Instant },
    /// A timer of the actor fired.
    Timer { id: TimerId, due: Instant },
    /// There is no memory to enlarge the user queue.
    MailboxOutOfMemory,
}

impl SystemMessage {
    /// Appends the message to the system queue; returns the messages that it makes redundant, or itself if it is
    /// redundant.
    ///
    /// Limits of a cell that does not run: its queue holds at most one stop of each kind, three commands,
    /// [`EARLY_SIGNALS_MAX`] signals plus the awaited one, two messages per watcher, and one failure per child that
    /// resumes by itself.
    pub(crate) fn enqueue_coalescing(self, queue: &mut VecDeque<Self>, awaited: Option<u64>) -> Vec<Self> {
        let mut redundant = Vec::new();
        match &self {
            Self::Stop(_) | Self::Command(_) | Self::MailboxOutOfMemory
                if queue.iter().any(|earlier| earlier.covers(&self)) =>
            {
                return alloc::vec![self];
            }
            Self::Signal(_) => redundant.extend(evict_signal(queue, awaited)),
            // Removes an earlier watch from the queue, and still revokes one that was already processed.
            Self::Unwatch(watcher) => remove_redundant(queue, &mut redundant, |earlier| match earlier {
                Self::Watch(earlier) | Self::Unwatch(earlier) => earlier.is(watcher),
                _ => false,
            }),
            Self::ChildFailed(failure) if failure.decision == SupervisionDecision::Resume => {
                remove_redundant(queue, &mut redundant, |earlier| match earlier {
                    Self::ChildFailed(earlier) => {
                        earlier.decision == SupervisionDecision::Resume && earlier.child == failure.child
                    }
                    _ => false,
                });
            }
            _ => {}
        }
        queue.push_back(self);
        redundant
    }

    /// Reports whether `later` is redundant after this stop or command.
    fn covers(&self, later: &Self) -> bool {
        match (self, later) {
            (Self::Stop(earlier), Self::Stop(later)) => earlier == later,
            (Self::Command(earlier), Self::Command(later)) => match earlier {
                SupervisionCommand::Stop => true,
                SupervisionCommand::Restart => *later != SupervisionCommand::Stop,
                SupervisionCommand::Resume => *later == SupervisionCommand::Resume,
            },
            (Self::MailboxOutOfMemory, Self::MailboxOutOfMemory) => true,
            _ => false,
        }
    }
}

/// Makes room for one more signal: removes the oldest, except the first one that ends the current wait.
fn evict_signal(queue: &mut VecDeque<SystemMessage>, awaited: Option<u64>) -> Option<SystemMessage> {
    let key = |message: &SystemMessage| match message {
        SystemMessage::Signal(SignalKey(key)) => Some(*key),
        _ => None,
    };
    let ends_wait =
        awaited.and_then(|awaited| queue.iter().position(|message| key(message) == Some(awaited)));
    let mut others = queue
        .iter()
        .enumerate()
        .filter(|(index, message)| key(message).is_some() && Some(*index) != ends_wait);
    let oldest = others.next()?.0;
    if others.count() + 1 < EARLY_SIGNALS_MAX {
        return None;
    }
    queue.remove(oldest)
}

/// Moves redundant messages out of the queue, to be dropped after its lock is released.
fn remove_redundant(
    queue: &mut VecDeque<SystemMessage>,
    removed: &mut Vec<SystemMessage>,
    is_redundant: impl Fn(&SystemMessage) -> bool,
) {
    while let Some(index) = queue.iter().position(&is_redundant) {
        removed.extend(queue.remove(index));
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
    fn each_kind_of_stop_is_queued_once() {
        let stops = [StopMode::Drained, StopMode::Now, StopMode::Drained, StopMode::Now];
        let (queue, redundant) = enqueue_all(stops.map(SystemMessage::Stop), None);
        assert_eq!((queue, redundant), (strings(["Stop(Drained)", "Stop(Now)"]), 2));
    }

    #[test]
    fn a_command_is_dropped_if_an_earlier_one_covers_it() {
        use SupervisionCommand::{Restart, Resume, Stop};
        let commands = [Resume, Resume, Restart, Resume, Restart, Stop, Restart, Stop];
        let (queue, redundant) = enqueue_all(commands.map(SystemMessage::Command), None);
        let kept = ["Command(Resume)", "Command(Restart)", "Command(Stop)"];
        assert_eq!((queue, redundant), (strings(kept), 5));
    }

    #[test]
    fn the_latest_signals_and_the_first_awaited_signal_are_kept() {
        let signal = |key| SystemMessage::Signal(SignalKey(key));
        let (queue, redundant) = enqueue_all([7, 7].into_iter().chain(100..200).map(signal), Some(7));
        assert_eq!((queue.len(), redundant), (1 + EARLY_SIGNALS_MAX, 102 - 1 - EARLY_SIGNALS_MAX));
        assert_eq!(queue[0], format!("{:?}", signal(7)));
        assert_eq!(queue[1], format!("{:?}", signal(200 - EARLY_SIGNALS_MAX as u64)));
    }

    #[test]
    fn a_watcher_has_at_most_two_queued_messages() {
        let rig = Rig::new(1);
        let first = rig.spawn().cell().clone();
        let second = rig.spawn().cell().clone();
        let watch = |cell: &CellRef| SystemMessage::Watch(cell.clone());
        let unwatch = |cell: &CellRef| SystemMessage::Unwatch(cell.clone());
        let messages = [watch(&first), watch(&second), unwatch(&first), watch(&first), unwatch(&first)];
        let (queue, redundant) = enqueue_all(messages, None);
        assert_eq!((queue, redundant), (strings(["Watch(1.0)", "Unwatch(0.0)"]), 3));
        let (queue, _) = enqueue_all([unwatch(&first), watch(&first)], None);
        assert_eq!(queue, strings(["Unwatch(0.0)", "Watch(0.0)"]));
    }

    #[test]
    fn only_the_latest_failure_of_a_child_that_resumes_by_itself_is_kept() {
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
        let mut queue = VecDeque::new();
        let redundant: usize =
            failures.into_iter().map(|failure| failure.enqueue_coalescing(&mut queue, None).len()).sum();
        let restarts = queue.iter().map(|message| match message {
            SystemMessage::ChildFailed(failure) => failure.restarts,
            _ => 0,
        });
        assert_eq!((restarts.collect::<Vec<_>>(), redundant), (alloc::vec![2, 3, 4], 1));
    }

    /// Enqueues messages; returns the queue's contents and the number of redundant messages.
    fn enqueue_all(
        messages: impl IntoIterator<Item = SystemMessage>,
        awaited: Option<u64>,
    ) -> (Vec<String>, usize) {
        let mut queue = VecDeque::new();
        let redundant =
            messages.into_iter().map(|message| message.enqueue_coalescing(&mut queue, awaited).len()).sum();
        (queue.iter().map(|message| format!("{message:?}")).collect(), redundant)
    }

    fn strings<const N: usize>(lines: [&str; N]) -> Vec<String> {
        lines.map(String::from).into()
    }
}
