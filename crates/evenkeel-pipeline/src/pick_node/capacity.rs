//! Slots of a node: a fixed number, or an adaptive concurrency limit.
//!
//! Guarantees: lowering the number cancels no request in flight; the node gets no new one until a slot is free again.

use evenkeel_policy::concurrency_limit::{ConcurrencyLimit, Epoch, LimitConfig, LimitStatus};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::Duration;

/// Number of requests a node serves at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slots {
    /// A fixed number.
    Fixed(u32),
    /// Adjusted to keep the time to first token near that of an idle node.
    Adaptive(LimitConfig),
}

/// Load that an engine reports, including requests from other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests being processed.
    pub running: u32,
    /// Requests queued inside the engine.
    pub waiting: u32,
    /// Fraction of the engine's KV cache in use, if it reports that.
    pub cache_used: Option<f64>,
    /// Time since the engine's process started, if it reports that.
    pub uptime: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Capacity {
    Fixed(u32),
    Adaptive(ConcurrencyLimit),
}

impl Capacity {
    pub(crate) fn new(slots: Slots) -> Result<Self, SettingOutOfRange> {
        match slots {
            Slots::Fixed(slots) => Ok(Self::Fixed(slots)),
            Slots::Adaptive(config) => ConcurrencyLimit::new(config).map(Self::Adaptive),
        }
    }

    pub(crate) fn slots(&self) -> u32 {
        match self {
            Self::Fixed(slots) => *slots,
            Self::Adaptive(limit) => limit.limit(),
        }
    }

    pub(crate) fn status(&self) -> Option<LimitStatus> {
        match self {
            Self::Fixed(_) => None,
            Self::Adaptive(limit) => Some(limit.status()),
        }
    }

    pub(super) fn on_send(&mut self, in_flight: u32) -> Epoch {
        match self {
            Self::Fixed(_) => Epoch::default(),
            Self::Adaptive(limit) => limit.on_send(in_flight),
        }
    }

    pub(crate) fn on_first_token(&mut self, sent_in: Epoch, after: Duration) {
        if let Self::Adaptive(limit) = self {
            limit.on_first_token(sent_in, after);
        }
    }

    pub(crate) fn on_refusal(&mut self, sent_in: Epoch, in_flight: u32) {
        if let Self::Adaptive(limit) = self {
            limit.on_rejection(sent_in, in_flight);
        }
    }

    pub(super) fn on_engine_queue(&mut self, waiting: u32, in_flight: u32) {
        if let Self::Adaptive(limit) = self {
            limit.on_engine_queue(waiting, in_flight);
        }
    }
}
