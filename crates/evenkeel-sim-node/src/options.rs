//! What a simulated engine is set up with; every setting has a range.

use super::fault::Fault;
use std::error::Error;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The most sequences an engine works on at once.
pub const SLOTS_MAX: u32 = 4_096;
/// The most requests an engine lets wait for a slot.
pub const QUEUE_MAX: u32 = 100_000;
/// The longest time to a first token, and the longest a fault delays one.
pub const FIRST_TOKEN_MAX: Duration = Duration::from_hours(1);
/// The most tokens a second, decoded or read.
pub const TOKENS_PER_SECOND_MAX: u32 = 10_000_000;
/// The most tokens of a prompt and its answer together.
pub const CONTEXT_MAX: u32 = 1_000_000;
/// The most connections at once.
pub const CONNECTIONS_MAX: u32 = 65_536;
/// The most models one engine serves.
pub const MODELS_MAX: usize = 64;

/// How a simulated engine behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Where it listens; port 0 leaves the choice to the system.
    pub listen: SocketAddr,
    /// The models it serves, all from the same slots.
    pub models: Vec<String>,
    /// How many sequences it works on at once.
    pub slots: u32,
    /// How many requests may wait for a slot; one more is answered with 503.
    pub queue_max: u32,
    /// How long an empty prompt takes to its first token.
    pub first_token: Duration,
    /// How many tokens of a prompt it reads per second, which delays the first token further.
    pub prefill_per_second: u32,
    /// How many tokens per second a sequence gets that is alone.
    pub tokens_per_second: u32,
    /// How much longer each step takes per further sequence, as a share of a lone sequence's step.
    pub batch_slowdown: f64,
    /// How long answers are on average, where the request sets no limit.
    pub output_tokens: u32,
    /// How many tokens a prompt and its answer may have together.
    pub context_max: u32,
    /// How many connections it keeps open; the next waits in the system's backlog.
    pub connections_max: u32,
    /// What answers and faults are drawn from.
    pub seed: u64,
    /// What is wrong with it from the start.
    pub fault: Option<Fault>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            models: vec!["sim".to_owned()],
            slots: 8,
            queue_max: 1_000,
            first_token: Duration::from_millis(50),
            prefill_per_second: 10_000,
            tokens_per_second: 50,
            batch_slowdown: 0.05,
            output_tokens: 64,
            context_max: 32_768,
            connections_max: 4_096,
            seed: 7,
            fault: None,
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    /// The setting's name, as the command line has it.
    pub name: &'static str,
    /// What it may be.
    pub range: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.name, self.range)
    }
}

impl Error for BadSetting {}

impl SimOptions {
    /// Refuses the first setting that is outside its range.
    pub fn check(&self) -> Result<(), BadSetting> {
        check_models(&self.models)?;
        let rate_max = TOKENS_PER_SECOND_MAX;
        for (name, value, least, most) in [
            ("slots", self.slots, 1, SLOTS_MAX),
            ("queue", self.queue_max, 0, QUEUE_MAX),
            ("prefill-tokens-per-second", self.prefill_per_second, 1, rate_max),
            ("tokens-per-second", self.tokens_per_second, 1, rate_max),
            ("output-tokens", self.output_tokens, 1, CONTEXT_MAX),
            ("context", self.context_max, 16, CONTEXT_MAX),
            ("connections", self.connections_max, 1, CONNECTIONS_MAX),
        ] {
            if !(least..=most).contains(&value) {
                return Err(BadSetting { name, range: format!("from {least} to {most}") });
            }
        }
        if self.first_token > FIRST_TOKEN_MAX {
            return Err(BadSetting {
                name: "ttft-ms",
                range: format!("at most {}", FIRST_TOKEN_MAX.as_millis()),
            });
        }
        if !(0.0..=10.0).contains(&self.batch_slowdown) {
            return Err(BadSetting { name: "batch-slowdown", range: "from 0 to 10".to_owned() });
        }
        self.fault.as_ref().map_or(Ok(()), Fault::check)
    }
}

fn check_models(models: &[String]) -> Result<(), BadSetting> {
    let bad = |range: String| Err(BadSetting { name: "model", range });
    if models.is_empty() || models.len() > MODELS_MAX {
        return bad(format!("given 1 to {MODELS_MAX} times"));
    }
    let plain = |name: &String| {
        (1..=200).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\')
    };
    if !models.iter().all(plain) {
        return bad("1 to 200 letters, digits and signs, without spaces or quotes".to_owned());
    }
    if (1..models.len()).any(|at| models[..at].contains(&models[at])) {
        return bad("a different one each time".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_their_ranges() {
        assert_eq!(SimOptions::default().check(), Ok(()));
    }

    #[test]
    fn a_setting_outside_its_range_is_named() {
        for (change, told) in [
            (change(|options| options.slots = 0), "slots must be from 1 to 4096"),
            (change(|options| options.queue_max = QUEUE_MAX + 1), "queue must be from 0 to 100000"),
            (change(|options| options.first_token = FIRST_TOKEN_MAX * 2), "ttft-ms must be at most 3600000"),
            (change(|options| options.batch_slowdown = f64::NAN), "batch-slowdown must be from 0 to 10"),
            (change(|options| options.models.clear()), "model must be given 1 to 64 times"),
            (
                change(|options| options.models = vec!["a".into(); 2]),
                "model must be a different one each time",
            ),
            (
                change(|options| options.models = vec!["a b".into()]),
                "model must be 1 to 200 letters, digits and signs, without spaces or quotes",
            ),
        ] {
            assert_eq!(change.check().unwrap_err().to_string(), told);
        }
    }

    fn change(change: impl FnOnce(&mut SimOptions)) -> SimOptions {
        let mut options = SimOptions::default();
        change(&mut options);
        options
    }
}
