//! Slots of a node: a fixed number, or an adaptive concurrency limit.
//!
//! Guarantees: lowering the number cancels no request in flight; the node gets no new one until a slot is free again.

use evenkeel_policy::concurrency_limit::{
    ConcurrencyLimit, Departure, LimitConfig, LimitStatus, Output, PromptClass,
};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::{Duration, Instant};

/// Number of requests a node serves at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slots {
    /// A fixed number.
    Fixed(u32),
    /// Adjusted to the number of requests that the engine serves without queueing them.
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

#[derive(Clone, Debug)]
pub(crate) enum Capacity {
    Fixed(u32),
    Adaptive(Box<ConcurrencyLimit>),
}

impl Capacity {
    /// Creates a capacity; `seed` spreads the times at which an adaptive limit probes the engine.
    pub(crate) fn new(slots: Slots, seed: u64) -> Result<Self, SettingOutOfRange> {
        match slots {
            Slots::Fixed(slots) => Ok(Self::Fixed(slots)),
            Slots::Adaptive(config) => Ok(Self::Adaptive(Box::new(ConcurrencyLimit::new(config, seed)?))),
        }
    }

    /// Changes the number of slots; an adaptive limit keeps what it learned about the engine.
    pub(crate) fn change(&mut self, now: Instant, slots: Slots, seed: u64) -> Result<(), SettingOutOfRange> {
        match (&mut *self, slots) {
            (Self::Adaptive(limit), Slots::Adaptive(config)) => limit.set_config(now, config),
            (Self::Adaptive(_) | Self::Fixed(_), slots) => {
                *self = Self::new(slots, seed)?;
                Ok(())
            }
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

    pub(super) fn on_send(&mut self, now: Instant, in_flight: u32, prompt: PromptClass) -> Departure {
        match self {
            Self::Fixed(_) => Departure::default(),
            Self::Adaptive(limit) => limit.on_send(now, in_flight, prompt),
        }
    }

    pub(crate) fn on_first_token(&mut self, now: Instant, sent: Departure) {
        if let Self::Adaptive(limit) = self {
            limit.on_first_token(now, sent);
        }
    }

    pub(crate) fn on_output(&mut self, now: Instant, output: &Output) {
        if let Self::Adaptive(limit) = self {
            limit.on_output(now, output);
        }
    }

    pub(super) fn on_end(&mut self, now: Instant, sent: Departure, in_flight: u32) {
        if let Self::Adaptive(limit) = self {
            limit.on_end(now, sent, in_flight);
        }
    }

    pub(crate) fn on_refusal(&mut self, sent: Departure) {
        if let Self::Adaptive(limit) = self {
            limit.on_refusal(sent);
        }
    }

    pub(super) fn on_engine_load(&mut self, now: Instant, load: Option<EngineLoad>, in_flight: u32) {
        let Self::Adaptive(limit) = self else { return };
        match load {
            Some(load) => limit.on_engine_queue(now, load.waiting, in_flight),
            None => limit.on_engine_silent(),
        }
    }
}
