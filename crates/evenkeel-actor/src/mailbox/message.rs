//! What the system tells a cell.

use alloc::boxed::Box;

use evenkeel_policy::time::Instant;

use crate::cell::CellRef;
use crate::guardian::{FailureNotification, SupervisionCommand};
use crate::invoke::SignalKey;
use crate::stop::{Ending, StopMode};
use crate::timer::TimerId;

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
    Ended { who: CellRef, how: Ending },
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
