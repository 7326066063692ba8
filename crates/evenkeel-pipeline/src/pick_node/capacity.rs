//! How many requests a node is given at once: so many, or as many as it turns out to be good for.
//!
//! Bound: fewer slots take nothing back: what the node has is left to it, and it gets nothing new until it has less.

use evenkeel_policy::concurrency_limit::{ConcurrencyLimit, Epoch, LimitConfig, LimitStatus};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::Duration;

/// How many requests a node works on at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slots {
    /// So many.
    Fixed(u32),
    /// As many as begin their answers about as soon as from an idle node.
    Adaptive(LimitConfig),
}

/// What an engine says of its load, whoever it works for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests it works on.
    pub running: u32,
    /// Requests that wait inside of it.
    pub waiting: u32,
    /// The part of its cache that is in use, if it says so.
    pub cache_used: Option<f64>,
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
