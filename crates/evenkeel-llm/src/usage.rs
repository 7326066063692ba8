//! What requests cost: what an engine says they did, and what they probably will.

mod forecast;
mod scanner;

use evenkeel_policy::cost::Cost;

use crate::json::{Cursor, JsonError, Kind};
use crate::request::{Endpoint, TOKEN_BYTES};
pub use forecast::Forecast;
pub use scanner::UsageScanner;

/// How many tokens went in and came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
}

impl Usage {
    /// What a request with these tokens is charged: making a token takes about twice what reading one does.
    pub fn cost(self) -> Cost {
        Cost(self.input.saturating_add(self.output.saturating_mul(2)))
    }

    /// All tokens, as limits per minute count them.
    pub fn tokens(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// What an answer of so many bytes took that tells no counts: what was guessed, or, where all of it is text that
    /// was made, what such a text takes.
    pub(crate) fn estimate_unreported(endpoint: Endpoint, guess: Self, bytes: u64) -> Self {
        if endpoint == Endpoint::Transcription {
            return Self { output: bytes / TOKEN_BYTES, ..guess };
        }
        guess
    }

    /// Finds the counts in a whole answer.
    pub fn of_json(answer: &[u8]) -> Option<Self> {
        let mut scanner = UsageScanner::default();
        scanner.scan(answer);
        scanner.usage()
    }
}

/// Counts as far as they were told; an engine may tell them in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageFields {
    input: Option<u64>,
    output: Option<u64>,
    /// Tokens of the prompt that Anthropic counts apart, as they were, or are now, in a cache.
    cached: [Option<u64>; 2],
    /// Both together, for those who tell nothing else.
    total: Option<u64>,
}

impl UsageFields {
    /// Reads the value behind `usage`; what is no object tells nothing.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, JsonError> {
        let mut counts = Self::default();
        if cursor.kind()? != Kind::Object {
            cursor.skip()?;
            return Ok(counts);
        }
        cursor.object(|name, cursor| {
            let count = match name.raw() {
                b"prompt_tokens" | b"input_tokens" => &mut counts.input,
                b"completion_tokens" | b"output_tokens" => &mut counts.output,
                b"cache_creation_input_tokens" => &mut counts.cached[0],
                b"cache_read_input_tokens" => &mut counts.cached[1],
                b"total_tokens" => &mut counts.total,
                _ => return cursor.skip(),
            };
            if cursor.kind()? != Kind::Number {
                return cursor.skip();
            }
            *count = whole(cursor.number()?).or(*count);
            Ok(())
        })?;
        Ok(counts)
    }

    /// Takes over what `later` tells.
    pub(crate) fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.total = later.total.or(self.total);
        for (cached, later) in self.cached.iter_mut().zip(later.cached) {
            *cached = later.or(*cached);
        }
    }

    /// The counts, if any was told; embeddings have no output.
    pub(crate) fn usage(self) -> Option<Usage> {
        if self == Self::default() {
            return None;
        }
        let Self { input, output, cached, total } = self;
        let told = input.or(total.filter(|_| output.is_none())).unwrap_or(0);
        let input = cached.iter().flatten().fold(told, |sum, cached| sum.saturating_add(*cached));
        Some(Usage { input, output: output.unwrap_or(0) })
    }
}

/// Reads a whole number; one that is too large is no count.
fn whole(number: &[u8]) -> Option<u64> {
    core::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_token_costs_as_much_as_two_of_input() {
        assert_eq!(Usage { input: 10, output: 7 }.cost(), Cost(24));
        assert_eq!(Usage { input: u64::MAX, output: u64::MAX }.cost(), Cost(u64::MAX));
    }

    #[test]
    fn counts_are_read_under_both_vendors_names() {
        for answer in [
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#,
            r#"{"id":"x","usage":{"input_tokens":3,"output_tokens":4}}"#,
            r#" { "choices": [{"usage":{"prompt_tokens":9}}], "usage" : { "prompt_tokens" : 3 , "completion_tokens" : 4,
                "prompt_tokens_details": {"prompt_tokens": 8} } } "#,
        ] {
            assert_eq!(Usage::of_json(answer.as_bytes()), Some(Usage { input: 3, output: 4 }), "{answer}");
        }
    }

    #[test]
    fn embeddings_have_no_output() {
        let answer = br#"{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(Usage::of_json(answer), Some(Usage { input: 5, output: 0 }));
    }

    #[test]
    fn what_a_cache_spared_is_part_of_the_prompt() {
        let answer =
            br#"{"usage":{"input_tokens":3,"cache_creation_input_tokens":10,"cache_read_input_tokens":null,
            "output_tokens":4}}"#;
        assert_eq!(Usage::of_json(answer), Some(Usage { input: 13, output: 4 }));
    }

    #[test]
    fn who_tells_only_a_total_has_read_it() {
        let told = |usage: &str| Usage::of_json(format!(r#"{{"usage":{usage}}}"#).as_bytes());
        assert_eq!(told(r#"{"total_tokens":9}"#), Some(Usage { input: 9, output: 0 }));
        assert_eq!(told(r#"{"total_tokens":9,"output_tokens":4}"#), Some(Usage { input: 0, output: 4 }));
    }

    #[test]
    fn what_tells_no_counts_has_none() {
        for answer in [
            "",
            "{}",
            "[]",
            "nonsense",
            r#"{"usage":null}"#,
            r#"{"usage":{}}"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
            r#"{"usage":{"prompt_tokens":99999999999999999999}}"#,
            r#"{"usage":{"prompt_tokens":"3"}}"#,
            r#"{"usage":{"prompt_tokens":3"#,
            r#"{"x":"\"usage\":{\"prompt_tokens\":3}"}"#,
            r#"[{"usage":{"prompt_tokens":3}}]"#,
        ] {
            assert_eq!(Usage::of_json(answer.as_bytes()), None, "{answer}");
        }
    }
}
