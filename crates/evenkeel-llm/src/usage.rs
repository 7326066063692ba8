//! Token usage of requests: as reported by engines, as estimated from the generated text, and as forecast.

mod forecast;
mod generated_text;
mod scanner;

use evenkeel_policy::cost::Cost;

use crate::json::{Cursor, JsonError, Kind};
use crate::request::Endpoint;
pub use forecast::Forecast;
pub use generated_text::TextLength;
pub use scanner::UsageScanner;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Prompt tokens that the engine read from its cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
}

/// Cost of a cached prompt token, as a fraction of one that is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedCost {
    millis: u32,
}

impl CachedCost {
    /// Returns the cost nearest to `fraction`, which is limited to 0..=1; NaN is 0.
    pub fn new(fraction: f64) -> Self {
        Self { millis: (fraction.clamp(0.0, 1.0) * 1_000.0).round() as u32 }
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.millis) / 1_000.0
    }

    fn of(self, tokens: u64) -> u64 {
        (u128::from(tokens) * u128::from(self.millis)).div_ceil(1_000) as u64
    }
}

impl Default for CachedCost {
    fn default() -> Self {
        Self { millis: 100 }
    }
}

impl Usage {
    /// Returns the cost: generating a token takes about twice as long as reading one, and a cached one takes almost none.
    pub fn cost(self, cached_cost: CachedCost) -> Cost {
        let cached = self.cached.min(self.input);
        let input = (self.input - cached).saturating_add(cached_cost.of(cached));
        Cost(input.saturating_add(self.output.saturating_mul(2)))
    }

    /// Returns the tokens that count against the tokens per minute.
    pub fn tokens(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Finds the usage in a complete JSON body.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let mut scanner = UsageScanner::default();
        scanner.scan(body);
        scanner.usage()
    }
}

/// Generated text of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GeneratedText {
    pub(crate) bytes: u64,
    /// Number of stream deltas with text; 0 for a whole response.
    pub(crate) deltas: u64,
}

/// Mean length of a delta up to which it is taken for one token.
const DELTA_BYTES_MAX: u64 = 6;

impl GeneratedText {
    /// Returns the text of a body that is neither JSON nor events: a transcription is text, anything else unknown.
    pub(crate) fn of_opaque(endpoint: Endpoint, bytes: u64) -> Option<Self> {
        (endpoint == Endpoint::Transcription).then_some(Self { bytes, deltas: 0 })
    }

    /// Estimates the number of tokens.
    ///
    /// Most engines send a delta per token. Longer deltas have several, and are counted by their length.
    pub(crate) fn tokens(self, token_bytes: f64) -> u64 {
        match self.single_token_deltas() {
            Some(deltas) => deltas,
            None => (self.bytes as f64 / token_bytes).ceil() as u64,
        }
    }

    /// Returns the number of deltas if each seems to be one token.
    pub(crate) fn single_token_deltas(self) -> Option<u64> {
        let is_single = self.bytes <= self.deltas.saturating_mul(DELTA_BYTES_MAX);
        Some(self.deltas).filter(|deltas| *deltas > 0 && is_single)
    }
}

/// Fields of a `usage` object; an engine may report them in several events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageFields {
    /// `prompt_tokens`, which includes cached tokens.
    prompt: Option<u64>,
    /// `input_tokens`: in OpenAI's format it includes cached tokens, in Anthropic's it does not.
    input: Option<u64>,
    output: Option<u64>,
    /// Cached tokens that are part of the prompt, as OpenAI counts them.
    cached_within: Option<u64>,
    /// Prompt tokens read from a cache, which Anthropic counts separately.
    cache_read: Option<u64>,
    /// Prompt tokens written to a cache, which Anthropic counts separately.
    cache_creation: Option<u64>,
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
                b"prompt_tokens" => &mut fields.prompt,
                b"input_tokens" => &mut fields.input,
                b"completion_tokens" | b"output_tokens" => &mut fields.output,
                b"prompt_cache_hit_tokens" => &mut fields.cached_within,
                b"cache_creation_input_tokens" => &mut fields.cache_creation,
                b"cache_read_input_tokens" => &mut fields.cache_read,
                b"total_tokens" => &mut fields.total,
                b"prompt_tokens_details" | b"input_tokens_details" if cursor.kind()? == Kind::Object => {
                    return cursor.object(|name, cursor| match name.raw() {
                        b"cached_tokens" => read_count(cursor, &mut fields.cached_within),
                        _ => cursor.skip(),
                    });
                }
                _ => return cursor.skip(),
            };
            read_count(cursor, count)
        })?;
        Ok(fields)
    }

    /// Overwrites the fields that `later` contains.
    pub(crate) fn update(&mut self, later: Self) {
        if later.prompt.or(later.input).is_some() {
            self.prompt = later.prompt;
            self.input = later.input;
        }
        self.output = later.output.or(self.output);
        self.cached_within = later.cached_within.or(self.cached_within);
        self.cache_read = later.cache_read.or(self.cache_read);
        self.cache_creation = later.cache_creation.or(self.cache_creation);
        self.total = later.total.or(self.total);
    }

    /// Returns the fields without the output, which is only a placeholder before the end of Anthropic's streams.
    pub(crate) fn without_output(self) -> Self {
        Self { output: None, ..self }
    }

    /// Returns the usage, if any field was reported; embeddings have no output.
    pub(crate) fn usage(self) -> Option<Usage> {
        if self == Self::default() {
            return None;
        }
        let total = self.total.filter(|_| self.output.is_none());
        let reported = self.prompt.or(self.input).or(total).unwrap_or(0);
        let is_within = self.prompt.is_some() || self.cached_within.is_some();
        let cached = self.cached_within.or(self.cache_read).unwrap_or(0);
        let input = if is_within {
            reported
        } else {
            reported.saturating_add(cached).saturating_add(self.cache_creation.unwrap_or(0))
        };
        Some(Usage { input, cached: cached.min(input), output: self.output.unwrap_or(0) })
    }
}

/// Reads a count; any other value leaves it unchanged.
fn read_count(cursor: &mut Cursor<'_>, count: &mut Option<u64>) -> Result<(), JsonError> {
    if cursor.kind()? != Kind::Number {
        return cursor.skip();
    }
    *count = parse_count(cursor.number()?).or(*count);
    Ok(())
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
        let cost = |input, cached, output| Usage { input, cached, output }.cost(CachedCost::default());
        assert_eq!(cost(10, 0, 7), Cost(24));
        assert_eq!(cost(u64::MAX, 0, u64::MAX), Cost(u64::MAX));
    }

    #[test]
    fn a_cached_token_costs_its_fraction_and_counts_in_full_against_tokens_per_minute() {
        let usage = Usage { input: 1_000, cached: 800, output: 10 };
        assert_eq!(usage.cost(CachedCost::default()), Cost(200 + 80 + 20));
        assert_eq!(usage.cost(CachedCost::new(0.0)), Cost(200 + 20));
        assert_eq!(usage.cost(CachedCost::new(1.0)), Cost(1_000 + 20));
        assert_eq!(usage.tokens(), 1_010);
        assert_eq!(CachedCost::new(f64::NAN), CachedCost::new(0.0));
        assert_eq!(Usage { cached: u64::MAX, ..usage }.cost(CachedCost::new(0.5)), Cost(500 + 20));
    }

    #[test]
    fn cached_tokens_are_read_in_every_format() {
        let read = |usage: &str| {
            let usage = Usage::from_json(format!(r#"{{"usage":{usage}}}"#).as_bytes()).unwrap();
            (usage.input, usage.cached)
        };
        for (usage, expected) in [
            (
                r#"{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":60}}"#,
                (100, 60),
            ),
            (r#"{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":600}}"#, (100, 100)),
            (r#"{"prompt_tokens":100,"prompt_tokens_details":null}"#, (100, 0)),
            (
                r#"{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":1}"#,
                (100, 60),
            ),
            (
                r#"{"prompt_tokens":100,"prompt_cache_hit_tokens":60,"prompt_cache_miss_tokens":40}"#,
                (100, 60),
            ),
            // Cache reads and writes are not part of Anthropic's `input_tokens`.
            (
                r#"{"input_tokens":10,"cache_read_input_tokens":60,"cache_creation_input_tokens":30,"output_tokens":1}"#,
                (100, 60),
            ),
            // Proxies add Anthropic's fields to OpenAI's format.
            (
                r#"{"prompt_tokens":100,"cache_read_input_tokens":60,"cache_creation_input_tokens":30}"#,
                (100, 60),
            ),
        ] {
            assert_eq!(read(usage), expected, "{usage}");
        }
    }

    #[test]
    fn deltas_of_one_token_are_counted_and_longer_ones_measured() {
        let tokens = |bytes, deltas| GeneratedText { bytes, deltas }.tokens(4.0);
        assert_eq!(tokens(50, 10), 10);
        assert_eq!(tokens(61, 10), 16);
        assert_eq!(tokens(400, 0), 100);
        assert_eq!((tokens(0, 0), tokens(1, 0)), (0, 1));
    }

    #[test]
    fn usage_is_read_under_both_vendors_names() {
        for body in [
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#,
            r#"{"id":"x","usage":{"input_tokens":3,"output_tokens":4}}"#,
            r#" { "choices": [{"usage":{"prompt_tokens":9}}], "usage" : { "prompt_tokens" : 3 , "completion_tokens" : 4,
                "prompt_tokens_details": {"prompt_tokens": 8} } } "#,
        ] {
            assert_eq!(
                Usage::from_json(body.as_bytes()),
                Some(Usage { input: 3, cached: 0, output: 4 }),
                "{body}"
            );
        }
    }

    #[test]
    fn embeddings_have_no_output() {
        let body = br#"{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(Usage::from_json(body), Some(Usage { input: 5, cached: 0, output: 0 }));
    }

    #[test]
    fn cached_tokens_are_part_of_the_prompt() {
        let body =
            br#"{"usage":{"input_tokens":3,"cache_creation_input_tokens":10,"cache_read_input_tokens":null,
            "output_tokens":4}}"#;
        assert_eq!(Usage::from_json(body), Some(Usage { input: 13, cached: 0, output: 4 }));
    }

    #[test]
    fn a_total_alone_counts_as_input() {
        let read = |usage: &str| Usage::from_json(format!(r#"{{"usage":{usage}}}"#).as_bytes());
        assert_eq!(read(r#"{"total_tokens":9}"#), Some(Usage { input: 9, cached: 0, output: 0 }));
        assert_eq!(
            read(r#"{"total_tokens":9,"output_tokens":4}"#),
            Some(Usage { input: 0, cached: 0, output: 4 })
        );
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
