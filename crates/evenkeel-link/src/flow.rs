//! Identifiers and properties of flows.

use std::fmt;

/// Maximum length of the target of a flow, in bytes.
pub const TARGET_BYTES_MAX: usize = 255;

/// Maximum length of the reason of a reset, in bytes; a longer one is cut.
pub const REASON_BYTES_MAX: usize = 255;

/// Identifier of a flow within its session; the connecting side opens even ones, the listening side odd ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl FlowId {
    /// The flow that carries the session's own messages; it exists from the start.
    pub const CONTROL: Self = Self(0);

    /// Returns the side that opened the flow.
    pub const fn opener(self) -> Side {
        if self.0.is_multiple_of(2) { Side::Connecting } else { Side::Listening }
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that establishes the connections.
    Connecting,
    /// The side that accepts them.
    Listening,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Connecting => Self::Listening,
            Self::Listening => Self::Connecting,
        }
    }

    /// Returns the first identifier of a flow that this side opens; 0 and 1 are reserved.
    pub(crate) const fn first_flow(self) -> FlowId {
        match self {
            Self::Connecting => FlowId(2),
            Self::Listening => FlowId(3),
        }
    }
}

/// Way in which a flow uses the paths, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLane {
    /// All data takes one path, until that path fails.
    Stream,
    /// The data is divided into chunks, which are spread over all paths.
    Bonded,
    /// The data is divided into chunks, each of which takes the two best paths; the first copy counts.
    Redundant,
    /// Unreliable datagrams instead of a byte stream.
    Datagram(DatagramMode),
}

impl FlowLane {
    /// Returns the mode of a flow of datagrams; `None` for a byte stream.
    pub const fn datagram_mode(self) -> Option<DatagramMode> {
        match self {
            Self::Stream | Self::Bonded | Self::Redundant => None,
            Self::Datagram(mode) => Some(mode),
        }
    }
}

/// Way in which a flow's datagrams use the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramMode {
    /// Each datagram takes one path, by weight; the receiver restores their order.
    Stripe,
    /// All datagrams take one path, until that path is not healthy.
    Pin,
    /// Each datagram takes all active paths, and the first copy counts.
    Duplicate,
}

impl fmt::Display for DatagramMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stripe => "stripe",
            Self::Pin => "pin",
            Self::Duplicate => "duplicate",
        })
    }
}

/// Lanes that the peer's version of the protocol has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneSupport {
    /// Stream and bonded lane.
    StreamAndBonded,
    All,
}

impl LaneSupport {
    /// Reports whether the peer can carry flows of a lane.
    pub const fn has(self, lane: FlowLane) -> bool {
        matches!(self, Self::All) || matches!(lane, FlowLane::Stream | FlowLane::Bonded)
    }
}

impl fmt::Display for FlowLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream => f.write_str("stream"),
            Self::Bonded => f.write_str("bonded"),
            Self::Redundant => f.write_str("redundant"),
            Self::Datagram(mode) => mode.fmt(f),
        }
    }
}

/// End of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both sides finished, and everything was delivered.
    Finished,
    /// The flow was aborted; undelivered data is lost.
    Reset(ResetReason),
}

/// Cause of a reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ResetReason {
    pub code: ResetCode,
    pub text: String,
}

impl ResetReason {
    /// Creates a reason; a text above [`REASON_BYTES_MAX`] is cut.
    pub fn new(code: ResetCode, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        Self { code, text }
    }
}

/// Number that classifies a reset. Numbers from 64 on are the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetCode(pub u32);

impl ResetCode {
    /// The peer does not know the flow, or no longer does.
    pub const CLOSED: Self = Self(1);
    /// The acceptor has as many flows as it allows.
    pub const TOO_MANY_FLOWS: Self = Self(2);
    /// The session ended.
    pub const SESSION_LOST: Self = Self(3);
    /// The other side does not connect to the target.
    pub const REFUSED: Self = Self(4);
    /// The application aborted the flow.
    pub const ABORTED: Self = Self(5);
    /// First code of the application.
    pub const APPLICATION: Self = Self(64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parity_of_an_id_names_its_opener() {
        for side in [Side::Connecting, Side::Listening] {
            assert_eq!(side.first_flow().opener(), side);
        }
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let reason = ResetReason::new(ResetCode::APPLICATION, "é".repeat(200));
        assert_eq!(reason.text.len(), 254);
    }
}
