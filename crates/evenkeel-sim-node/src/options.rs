//! Options of a simulated node, and their valid ranges.

use super::fault::Fault;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use thiserror::Error;

pub const SLOTS_MAX: u32 = 4_096;
pub const QUEUE_MAX: u32 = 100_000;
/// Maximum time to first token, and maximum delay by a fault.
pub const FIRST_TOKEN_MAX: Duration = Duration::from_hours(1);
/// Maximum prefill and generation speed.
pub const TOKENS_PER_SECOND_MAX: u32 = 10_000_000;
/// Maximum size of the context window, in tokens.
pub const CONTEXT_MAX: u32 = 1_000_000;
pub const CONNECTIONS_MAX: u32 = 65_536;
pub const MODELS_MAX: usize = 64;

/// Options of a simulated node.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Port 0 picks a free port.
    pub listen: SocketAddr,
    /// All models share the slots.
    pub models: Vec<String>,
    /// Maximum number of sequences generated concurrently.
    pub slots: u32,
    /// Maximum number of queued requests; further ones get 503.
    pub queue_max: u32,
    /// Time to first token of an empty prompt.
    pub first_token: Duration,
    /// Prefill speed in prompt tokens per second, which adds to the time to first token.
    pub prefill_per_second: u32,
    /// Generation speed of a single sequence.
    pub tokens_per_second: u32,
    /// Additional step time per further sequence in the batch, as a fraction of a single sequence's step time.
    pub batch_slowdown: f64,
    /// Average completion length in tokens, if the request sets no limit.
    pub output_tokens: u32,
    /// Context window: prompt and completion tokens together.
    pub context_max: u32,
    /// Maximum number of open connections; further ones wait in the listen backlog.
    pub connections_max: u32,
    /// Seed of completions and faults.
    pub seed: u64,
    /// Fault to inject from the start.
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

/// An option outside its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} must be {range}")]
pub struct BadSetting {
    /// Name of the command-line option, without dashes.
    pub name: &'static str,
    /// Allowed values, worded to follow "must be".
    pub range: String,
}

impl SimOptions {
    /// Returns an error for the first option outside its range.
    pub fn check(&self) -> Result<(), BadSetting> {
        check_models(&self.models)?;
        let rate_max = TOKENS_PER_SECOND_MAX;
        for (name, value, min, max) in [
            ("slots", self.slots, 1, SLOTS_MAX),
            ("queue", self.queue_max, 0, QUEUE_MAX),
            ("prefill-tokens-per-second", self.prefill_per_second, 1, rate_max),
            ("tokens-per-second", self.tokens_per_second, 1, rate_max),
            ("output-tokens", self.output_tokens, 1, CONTEXT_MAX),
            ("context", self.context_max, 16, CONTEXT_MAX),
            ("connections", self.connections_max, 1, CONNECTIONS_MAX),
        ] {
            if !(min..=max).contains(&value) {
                return Err(BadSetting { name, range: format!("from {min} to {max}") });
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
    let is_valid = |name: &String| {
        (1..=200).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\')
    };
    if !models.iter().all(is_valid) {
        return bad("1 to 200 printable ASCII characters, without spaces, quotes or backslashes".to_owned());
    }
    if (1..models.len()).any(|index| models[..index].contains(&models[index])) {
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
    fn an_option_outside_its_range_is_rejected_by_name() {
        for (options, message) in [
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
                "model must be 1 to 200 printable ASCII characters, without spaces, quotes or backslashes",
            ),
        ] {
            assert_eq!(options.check().unwrap_err().to_string(), message);
        }
    }

    fn change(change: impl FnOnce(&mut SimOptions)) -> SimOptions {
        let mut options = SimOptions::default();
        change(&mut options);
        options
    }
}
