//! Token usage of requests: as reported by engines, and as forecast.

mod forecast;
mod scanner;

use evenkeel_policy::cost::Cost;

use crate::json::{Cursor, JsonError, Kind};
use crate::request::{Endpoint, TOKEN_BYTES};
pub use forecast::Forecast;
pub use scanner::UsageScanner;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub input: u64,
    /// Generated tokens.
    pub output: u64,
}

impl Usage {
    /// Returns the cost: generating a token takes about twice as long as reading one.
    pub fn cost(self) -> Cost {
        Cost(self.input.saturating_add(self.output.saturating_mul(2)))
    }

    /// Returns the tokens that count against the tokens per minute.
    pub fn tokens(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Estimates the usage of a response that does not report it: a transcription by its length, anything else as
    /// forecast.
    pub(crate) fn estimate_unreported(endpoint: Endpoint, estimate: Self, bytes: u64) -> Self {
        if endpoint == Endpoint::Transcription {
            return Self { output: bytes / TOKEN_BYTES, ..estimate };
        }
        estimate
    }

    /// Finds the usage in a complete JSON body.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let mut scanner = UsageScanner::default();
        scanner.scan(body);
        scanner.usage()
    }
}

/// Fields of a `usage` object; an engine may report them in several events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageFields {
    input: Option<u64>,
    output: Option<u64>,
    /// Prompt tokens written to and read from a cache, which Anthropic counts separately.
    cached: [Option<u64>; 2],
    /// Input and output together, for engines that report nothing else.
    total: Option<u64>,
}

impl UsageFields {
    /// Reads the value of `usage`; anything but an object is empty.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, JsonError> {
        let mut fields = Self::default();
        if cursor.kind()? != Kind::Object {
            cursor.skip()?;
            return Ok(fields);
        }
        cursor.object(|name, cursor| {
            let count = match name.raw() {
                b"prompt_tokens" | b"input_tokens" => &mut fields.input,
                b"completion_tokens" | b"output_tokens" => &mut fields.output,
                b"cache_creation_input_tokens" => &mut fields.cached[0],
                b"cache_read_input_tokens" => &mut fields.cached[1],
                b"total_tokens" => &mut fields.total,
                _ => return cursor.skip(),
            };
            if cursor.kind()? != Kind::Number {
                return cursor.skip();
            }
            *count = parse_count(cursor.number()?).or(*count);
            Ok(())
        })?;
        Ok(fields)
    }

    /// Overwrites the fields that `later` contains.
    pub(crate) fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.total = later.total.or(self.total);
        for (cached, later) in self.cached.iter_mut().zip(later.cached) {
            *cached = later.or(*cached);
        }
    }

    /// Returns the usage, if any field was reported; embeddings have no output.
    pub(crate) fn usage(self) -> Option<Usage> {
        if self == Self::default() {
            return None;
        }
        let Self { input, output, cached, total } = self;
        let prompt = input.or(total.filter(|_| output.is_none())).unwrap_or(0);
        let input = cached.iter().flatten().fold(prompt, |sum, cached| sum.saturating_add(*cached));
        Some(Usage { input, output: output.unwrap_or(0) })
    }
}

/// Parses a whole number; `None` if it is too large.
fn parse_count(number: &[u8]) -> Option<u64> {
    core::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_token_costs_as_much_as_two_input_tokens() {
        assert_eq!(Usage { input: 10, output: 7 }.cost(), Cost(24));
        assert_eq!(Usage { input: u64::MAX, output: u64::MAX }.cost(), Cost(u64::MAX));
    }

    #[test]
    fn usage_is_read_under_both_vendors_names() {
        for body in [
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#,
            r#"{"id":"x","usage":{"input_tokens":3,"output_tokens":4}}"#,
            r#" { "choices": [{"usage":{"prompt_tokens":9}}], "usage" : { "prompt_tokens" : 3 , "completion_tokens" : 4,
                "prompt_tokens_details": {"prompt_tokens": 8} } } "#,
        ] {
            assert_eq!(Usage::from_json(body.as_bytes()), Some(Usage { input: 3, output: 4 }), "{body}");
        }
    }

    #[test]
    fn embeddings_have_no_output() {
        let body = br#"{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(Usage::from_json(body), Some(Usage { input: 5, output: 0 }));
    }

    #[test]
    fn cached_tokens_are_part_of_the_prompt() {
        let body =
            br#"{"usage":{"input_tokens":3,"cache_creation_input_tokens":10,"cache_read_input_tokens":null,
            "output_tokens":4}}"#;
        assert_eq!(Usage::from_json(body), Some(Usage { input: 13, output: 4 }));
    }

    #[test]
    fn a_total_alone_counts_as_input() {
        let read = |usage: &str| Usage::from_json(format!(r#"{{"usage":{usage}}}"#).as_bytes());
        assert_eq!(read(r#"{"total_tokens":9}"#), Some(Usage { input: 9, output: 0 }));
        assert_eq!(read(r#"{"total_tokens":9,"output_tokens":4}"#), Some(Usage { input: 0, output: 4 }));
    }

    #[test]
    fn a_body_without_usage_has_none() {
        for body in [
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
            assert_eq!(Usage::from_json(body.as_bytes()), None, "{body}");
        }
    }
}
