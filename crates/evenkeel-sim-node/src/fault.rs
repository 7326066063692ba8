//! Fault injection: the kinds of faults, and the selection of the requests that they affect.
//!
//! Guarantees: with the same seed, a fault hits the same requests, counted in order of arrival since it was set.

use super::options::{BadSetting, FIRST_TOKEN_MAX};
use super::seeded_random::draw_fraction;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Accepts requests and never responds.
    Silent,
    /// Delays the first token.
    SlowFirstToken,
    /// Closes the connection in the middle of a response.
    MidStreamCut,
    /// Stops sending in the middle of a response and keeps the connection open.
    StalledStream,
    /// Responds 429 without `Retry-After`.
    TooManyRequests,
    /// Responds 429 with `Retry-After`.
    TooManyRequestsRetryAfter,
    /// Responds 200 with invalid JSON; in a stream, in one event.
    MalformedJson,
    /// Sends a `Content-Length` that exceeds the body.
    WrongContentLength,
    /// Resets the connection instead of responding.
    Reset,
    /// Closes the sending side of the connection instead of responding, and keeps reading.
    HalfClose,
    /// Ends a stream cleanly in the middle of an event, without `[DONE]`.
    TruncatedSse,
    /// Responds 500 to the first requests, then recovers.
    ErrorBurst,
    /// Alternates between closing connections and working, for `count` requests each, including probes.
    Flapping,
}

/// Effect of a fault on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Never responds.
    Hang,
    Cut(Cut),
    Reject(FaultResponse),
    /// Delays the first token.
    Delay(Duration),
    /// Damages the response body.
    Damage(Damage),
}

/// Way to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Close,
    Reset,
    HalfClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultResponse {
    TooManyRequests,
    TooManyRequestsRetryAfter,
    Internal,
}

/// Damage to a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Cut,
    Stall,
    Malformed,
    Length,
    Truncated,
}

/// Class of a request; some faults do not affect probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    Inference,
    /// Health checks, model lists and metrics.
    Probe,
}

impl FaultKind {
    /// Every kind with its name on the command line.
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

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Reports whether the fault simulates a failure of the whole machine and therefore affects probes too.
    fn hits_probes(self) -> bool {
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

/// A fault and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Fraction of requests that get the fault.
    pub rate: f64,
    /// Number of requests in a burst or in one phase of flapping.
    pub count: u32,
    /// Delay of [`FaultKind::SlowFirstToken`].
    pub delay: Duration,
}

impl Fault {
    /// Creates a fault that affects every request, with a count of 5 and a delay of a minute.
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

    /// Returns the effect on a request; `number` starts at 0.
    fn effect(&self, number: u64) -> Option<Effect> {
        let count = u64::from(self.count);
        Some(match self.kind {
            FaultKind::Silent => Effect::Hang,
            FaultKind::SlowFirstToken => Effect::Delay(self.delay),
            FaultKind::MidStreamCut => Effect::Damage(Damage::Cut),
            FaultKind::StalledStream => Effect::Damage(Damage::Stall),
            FaultKind::TooManyRequests => Effect::Reject(FaultResponse::TooManyRequests),
            FaultKind::TooManyRequestsRetryAfter => Effect::Reject(FaultResponse::TooManyRequestsRetryAfter),
            FaultKind::MalformedJson => Effect::Damage(Damage::Malformed),
            FaultKind::WrongContentLength => Effect::Damage(Damage::Length),
            FaultKind::Reset => Effect::Cut(Cut::Reset),
            FaultKind::HalfClose => Effect::Cut(Cut::HalfClose),
            FaultKind::TruncatedSse => Effect::Damage(Damage::Truncated),
            FaultKind::ErrorBurst if number < count => Effect::Reject(FaultResponse::Internal),
            FaultKind::Flapping if (number / count).is_multiple_of(2) => Effect::Cut(Cut::Close),
            FaultKind::ErrorBurst | FaultKind::Flapping => return None,
        })
    }
}

/// The current fault, and how many requests it has seen and hit.
#[derive(Debug)]
pub(super) struct Faults {
    seed: u64,
    fault: Option<Fault>,
    seen: u64,
    hits: u64,
}

impl Faults {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        Self { seed, fault, seen: 0, hits: 0 }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns the number of requests hit since the fault was set.
    pub(super) fn hits(&self) -> u64 {
        self.hits
    }

    /// Replaces the fault and resets the counters.
    pub(super) fn set(&mut self, fault: Option<Fault>) {
        *self = Self::new(self.seed, fault);
    }

    /// Counts a request and returns the effect of the fault on it, if any.
    pub(super) fn next_effect(&mut self, class: RequestClass) -> Option<Effect> {
        let fault = self.fault?;
        if class == RequestClass::Probe && !fault.kind.hits_probes() {
            return None;
        }
        let number = self.seen;
        self.seen += 1;
        let effect = fault.effect(number).filter(|_| draw_fraction(self.seed, number) < fault.rate);
        self.hits += u64::from(effect.is_some());
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for (name, kind) in FaultKind::ALL {
            assert_eq!((FaultKind::by_name(name), kind.to_string().as_str()), (Some(kind), name));
        }
        assert_eq!(FaultKind::by_name("none"), None);
    }

    #[test]
    fn a_fault_hits_its_fraction_of_requests_and_the_same_ones_for_the_same_seed() {
        let hits = |seed| {
            let fault = Fault { rate: 0.3, ..Fault::new(FaultKind::Reset) };
            hits(seed, fault, 10_000)
        };
        let share = hits(1).iter().filter(|hit| **hit).count();
        assert!((2_800..3_200).contains(&share), "{share}");
        assert_eq!(hits(1), hits(1));
        assert_ne!(hits(1), hits(2));
    }

    #[test]
    fn a_burst_ends_and_flapping_repeats() {
        let hits = |kind| hits(1, Fault { count: 2, ..Fault::new(kind) }, 6);
        assert_eq!(hits(FaultKind::ErrorBurst), [true, true, false, false, false, false]);
        assert_eq!(hits(FaultKind::Flapping), [true, true, false, false, true, true]);
    }

    #[test]
    fn only_machine_wide_faults_affect_probes() {
        let hits_probe =
            |kind| Faults::new(1, Some(Fault::new(kind))).next_effect(RequestClass::Probe).is_some();
        assert!(hits_probe(FaultKind::Silent) && hits_probe(FaultKind::Flapping));
        assert!(!hits_probe(FaultKind::ErrorBurst) && !hits_probe(FaultKind::TooManyRequests));
    }

    #[test]
    fn parameters_outside_their_range_are_rejected() {
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

    fn hits(seed: u64, fault: Fault, requests: usize) -> Vec<bool> {
        let mut faults = Faults::new(seed, Some(fault));
        (0..requests).map(|_| faults.next_effect(RequestClass::Inference).is_some()).collect()
    }
}
