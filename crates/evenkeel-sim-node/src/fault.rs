//! What can be wrong with an engine, and which requests feel it.
//!
//! The same seed hits the same requests, counted from when the fault was set.

use super::options::{BadSetting, FIRST_TOKEN_MAX};
use super::seeded_random::draw_fraction;
use std::fmt;
use std::time::Duration;

/// A way in which an engine lets its clients down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Takes requests, never answers.
    Silent,
    /// Answers, but the first token comes late.
    SlowFirstToken,
    /// Closes the connection in the middle of an answer.
    MidStreamCut,
    /// Stops in the middle of an answer, with the connection open.
    StalledStream,
    /// Answers 429 and does not say when to come back.
    TooManyRequests,
    /// Answers 429 with `Retry-After`.
    TooManyRequestsRetryAfter,
    /// Answers 200 with JSON that does not parse; in a stream, one event of it.
    MalformedJson,
    /// Announces a longer body than it sends.
    WrongContentLength,
    /// Resets the connection instead of answering.
    Reset,
    /// Closes its sending side instead of answering, and goes on reading.
    HalfClose,
    /// Ends a stream properly in the middle of an event, without `[DONE]`.
    TruncatedSse,
    /// Answers the first requests with 500, the later ones well.
    ErrorBurst,
    /// Is away for some requests, there for as many, away again; probes count too.
    Flapping,
}

/// What a request that was hit gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing, for as long as it waits.
    Hang,
    /// The end of its connection.
    Cut(Cut),
    /// An error.
    Refuse(FaultResponse),
    /// A later first token.
    Delay(Duration),
    /// An answer that is not whole.
    Damage(Damage),
}

/// How a connection is ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Close,
    Reset,
    HalfClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultResponse {
    TooMany,
    TooManyRetryAfter,
    Internal,
}

/// What is wrong with the body of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Cut,
    Stall,
    Malformed,
    Length,
    Truncated,
}

/// Whom a fault can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    /// A completion or an embedding.
    Inference,
    /// A list of models, a probe, metrics.
    Probe,
}

impl FaultKind {
    /// Every kind, by the name it has on the command line.
    pub const ALL: [(&'static str, Self); 13] = [
        ("silent", Self::Silent),
        ("slow-first-token", Self::SlowFirstToken),
        ("mid-stream-cut", Self::MidStreamCut),
        ("stalled-stream", Self::StalledStream),
        ("429", Self::TooManyRequests),
        ("429-retry-after", Self::TooManyRequestsRetryAfter),
        ("malformed-json", Self::MalformedJson),
        ("wrong-content-length", Self::WrongContentLength),
        ("reset", Self::Reset),
        ("half-close", Self::HalfClose),
        ("truncated-sse", Self::TruncatedSse),
        ("500-burst", Self::ErrorBurst),
        ("flapping", Self::Flapping),
    ];

    /// Finds a kind by its name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Whether the machine as a whole is struck, probes included, rather than its answers.
    fn strikes_probes(self) -> bool {
        match self {
            Self::Silent | Self::Reset | Self::HalfClose | Self::Flapping => true,
            Self::SlowFirstToken
            | Self::MidStreamCut
            | Self::StalledStream
            | Self::TooManyRequests
            | Self::TooManyRequestsRetryAfter
            | Self::MalformedJson
            | Self::WrongContentLength
            | Self::TruncatedSse
            | Self::ErrorBurst => false,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| *name);
        f.write_str(name)
    }
}

/// A fault with its extent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// The share of requests that feel it.
    pub rate: f64,
    /// How many requests a burst or one phase of flapping lasts.
    pub count: u32,
    /// How late a slow first token comes.
    pub delay: Duration,
}

impl Fault {
    /// Describes a fault that hits every request, with a burst of 5 and a delay of a minute.
    pub fn new(kind: FaultKind) -> Self {
        Self { kind, rate: 1.0, count: 5, delay: Duration::from_mins(1) }
    }

    pub(super) fn check(&self) -> Result<(), BadSetting> {
        if !(0.0..=1.0).contains(&self.rate) {
            return Err(BadSetting { name: "fault-rate", range: "from 0 to 1".to_owned() });
        }
        if self.count == 0 {
            return Err(BadSetting { name: "fault-count", range: "at least 1".to_owned() });
        }
        if self.delay > FIRST_TOKEN_MAX {
            return Err(BadSetting {
                name: "fault-ms",
                range: format!("at most {}", FIRST_TOKEN_MAX.as_millis()),
            });
        }
        Ok(())
    }

    /// Says what the request numbered `number` gets, the first being 0.
    fn effect(&self, number: u64) -> Option<Effect> {
        let count = u64::from(self.count);
        Some(match self.kind {
            FaultKind::Silent => Effect::Hang,
            FaultKind::SlowFirstToken => Effect::Delay(self.delay),
            FaultKind::MidStreamCut => Effect::Damage(Damage::Cut),
            FaultKind::StalledStream => Effect::Damage(Damage::Stall),
            FaultKind::TooManyRequests => Effect::Refuse(FaultResponse::TooMany),
            FaultKind::TooManyRequestsRetryAfter => Effect::Refuse(FaultResponse::TooManyRetryAfter),
            FaultKind::MalformedJson => Effect::Damage(Damage::Malformed),
            FaultKind::WrongContentLength => Effect::Damage(Damage::Length),
            FaultKind::Reset => Effect::Cut(Cut::Reset),
            FaultKind::HalfClose => Effect::Cut(Cut::HalfClose),
            FaultKind::TruncatedSse => Effect::Damage(Damage::Truncated),
            FaultKind::ErrorBurst if number < count => Effect::Refuse(FaultResponse::Internal),
            FaultKind::Flapping if (number / count).is_multiple_of(2) => Effect::Cut(Cut::Close),
            FaultKind::ErrorBurst | FaultKind::Flapping => return None,
        })
    }
}

/// The fault an engine has, how many requests it could have hit, and how many it did.
#[derive(Debug)]
pub(super) struct Faults {
    seed: u64,
    fault: Option<Fault>,
    seen: u64,
    struck: u64,
}

impl Faults {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        Self { seed, fault, seen: 0, struck: 0 }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Says how many requests were hit since the fault was set.
    pub(super) fn struck(&self) -> u64 {
        self.struck
    }

    /// Replaces the fault, and counts from 0 again.
    pub(super) fn set(&mut self, fault: Option<Fault>) {
        *self = Self::new(self.seed, fault);
    }

    /// Counts a request and says what it gets, if it is hit.
    pub(super) fn next_effect(&mut self, asked: RequestClass) -> Option<Effect> {
        let fault = self.fault?;
        if asked == RequestClass::Probe && !fault.kind.strikes_probes() {
            return None;
        }
        let number = self.seen;
        self.seen += 1;
        let effect = fault.effect(number).filter(|_| draw_fraction(self.seed, number) < fault.rate);
        self.struck += u64::from(effect.is_some());
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_go_together() {
        for (name, kind) in FaultKind::ALL {
            assert_eq!((FaultKind::by_name(name), kind.to_string().as_str()), (Some(kind), name));
        }
        assert_eq!(FaultKind::by_name("none"), None);
    }

    #[test]
    fn a_rate_hits_its_share_and_the_same_seed_the_same_requests() {
        let hits = |seed| {
            let fault = Fault { rate: 0.3, ..Fault::new(FaultKind::Reset) };
            strikes(seed, fault, 10_000)
        };
        let share = hits(1).iter().filter(|hit| **hit).count();
        assert!((2_800..3_200).contains(&share), "{share}");
        assert_eq!(hits(1), hits(1));
        assert_ne!(hits(1), hits(2));
    }

    #[test]
    fn a_burst_ends_and_flapping_returns() {
        let of = |kind| strikes(1, Fault { count: 2, ..Fault::new(kind) }, 6);
        assert_eq!(of(FaultKind::ErrorBurst), [true, true, false, false, false, false]);
        assert_eq!(of(FaultKind::Flapping), [true, true, false, false, true, true]);
    }

    #[test]
    fn only_a_fault_of_the_machine_hits_probes() {
        let probed = |kind| Faults::new(1, Some(Fault::new(kind))).next_effect(RequestClass::Probe).is_some();
        assert!(probed(FaultKind::Silent) && probed(FaultKind::Flapping));
        assert!(!probed(FaultKind::ErrorBurst) && !probed(FaultKind::TooManyRequests));
    }

    #[test]
    fn an_extent_outside_its_range_is_refused() {
        let fault = Fault::new(FaultKind::Reset);
        assert_eq!(fault.check(), Ok(()));
        for bad in [
            Fault { rate: 1.1, ..fault },
            Fault { rate: f64::NAN, ..fault },
            Fault { count: 0, ..fault },
            Fault { delay: FIRST_TOKEN_MAX * 2, ..fault },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    fn strikes(seed: u64, fault: Fault, requests: usize) -> Vec<bool> {
        let mut faults = Faults::new(seed, Some(fault));
        (0..requests).map(|_| faults.next_effect(RequestClass::Inference).is_some()).collect()
    }
}
