//! Request bodies are parsed as other JSON parsers do, and rejected where parsers could differ.

use bytes::Bytes;
use evenkeel_llm::request::{Endpoint, IncludeUsage, LlmRequest, ResponseMode};
use evenkeel_server::api_error::ApiError;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::checks;
use crate::values::{object, value};

/// Fields that the gateway interprets, each with a valid value.
const INTERPRETED_FIELDS: [(&str, &str); 12] = [
    ("model", r#""m""#),
    ("messages", r#"[{"role":"user","content":"hello"}]"#),
    ("stream", "true"),
    ("stream_options", r#"{"include_usage":true}"#),
    ("max_tokens", "7"),
    ("max_completion_tokens", "7"),
    ("n", "2"),
    ("best_of", "2"),
    ("prompt", r#""hello""#),
    ("prompt_cache_key", r#""key""#),
    ("user", r#""alice""#),
    ("metadata", r#"{"session_id":"s"}"#),
];

#[test]
fn a_repeated_interpreted_field_is_rejected() {
    let all = INTERPRETED_FIELDS.map(|(name, value)| format!(r#""{name}":{value}"#)).join(",");
    assert!(parse(Endpoint::Chat, &format!("{{{all}}}")).is_ok());
    for (name, value) in INTERPRETED_FIELDS {
        let escaped = format!("\\u{:04x}{}", name.as_bytes()[0], &name[1..]);
        for other in [name.to_owned(), escaped, name.to_uppercase()] {
            let twice =
                [format!(r#"{{"{other}":{value},{all}}}"#), format!(r#"{{{all},"{other}":{value}}}"#)];
            for body in twice {
                let error = parse(Endpoint::Chat, &body).unwrap_err();
                let ApiError::Invalid { param, .. } = error else { panic!("{body}: {error:?}") };
                assert_eq!(param.as_deref(), Some(name), "{body}");
            }
        }
    }
}

#[test]
fn invalid_json_is_reported_with_its_position() {
    for (body, reason) in [
        ("", "it ends too early, line 1 column 1"),
        ("{", "it ends too early, line 1 column 2"),
        ("{\n  \"model\": m}", "unexpected character, line 2 column 12"),
        ("{\"model\":\"m\"} x", "unexpected character, line 1 column 15"),
        ("{\"model\":\"m\",}", "unexpected character, line 1 column 14"),
        ("{'model':1}", "unexpected character, line 1 column 2"),
        ("{\"model\":NaN}", "unexpected character, line 1 column 10"),
        ("\u{feff}{}", "unexpected character, line 1 column 1"),
    ] {
        let error = parse(Endpoint::Other, body).unwrap_err().to_string();
        assert_eq!(error, format!("the body is not valid JSON: {reason}"), "{body}");
    }
    let body = Bytes::from_static(b"{\"model\":\"\xff\"}");
    let error = LlmRequest::parse(Endpoint::Other, &body).unwrap_err().to_string();
    assert_eq!(error, "the body is not valid JSON: it is not UTF-8, line 1 column 11");
}

#[test]
fn deep_nesting_is_rejected_without_a_stack_overflow() {
    for open in ["[", "{\"a\":", "[{\"messages\":["] {
        for start in ["", "{\"model\":\"m\",\"messages\":[{\"content\":", "{\"tools\":", "{\"x\":"] {
            checks::request::check(format!("{start}{}", open.repeat(300_000)).as_bytes());
        }
    }
    let nested = |depth: usize| format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(parse(Endpoint::Other, &nested(127)).is_ok());
    let error = parse(Endpoint::Other, &nested(128)).unwrap_err().to_string();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn max_tokens_saturates_and_negative_or_null_means_no_limit() {
    for (number, output_tokens_max) in [
        ("7", Some(7)),
        ("7.0", Some(7)),
        ("1e3", Some(1_000)),
        ("0", Some(0)),
        ("-0", Some(0)),
        ("-1", None),
        ("-1e999", None),
        ("null", None),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", Some(u64::MAX)),
        ("1e999", Some(u64::MAX)),
        (&"9".repeat(5_000), Some(u64::MAX)),
    ] {
        let body = format!(r#"{{"model":"m","max_tokens":{number},"n":1}}"#);
        assert_eq!(
            parse(Endpoint::Completions, &body).unwrap().output_tokens_max,
            output_tokens_max,
            "{number}"
        );
    }
    let body = r#"{"model":"m","max_tokens":18446744073709551615,"n":18446744073709551615}"#;
    assert_eq!(parse(Endpoint::Completions, body).unwrap().output_tokens_max, Some(u64::MAX));
}

/// Generates a `stream_options` value and whether it requests usage.
fn stream_options() -> impl Strategy<Value = (Option<String>, IncludeUsage)> {
    let with_include_usage = |include_usage: &'static str, usage: IncludeUsage| {
        (vec(("[a-d]{1,3}", value()), 0..3), any::<Index>()).prop_map(move |(mut fields, position)| {
            let at = position.index(fields.len() + 1);
            fields.insert(at, ("include_usage".to_owned(), include_usage.to_owned()));
            (Some(object(&fields)), usage)
        })
    };
    prop_oneof![
        Just((None, IncludeUsage::NotRequested)),
        Just((Some("null".to_owned()), IncludeUsage::NotRequested)),
        vec(("[a-d]{1,3}", value()), 0..3)
            .prop_map(|fields| (Some(object(&fields)), IncludeUsage::NotRequested)),
        with_include_usage("true", IncludeUsage::Requested),
        with_include_usage("false", IncludeUsage::NotRequested),
        with_include_usage("null", IncludeUsage::NotRequested),
    ]
}

/// Generates bodies out of fragments of JSON.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let tokens = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u0065",
        "\\ud83d",
        " ",
        "\n",
        "\0",
        "é",
        "\u{17f}",
        "1",
        "-",
        "0",
        ".5",
        "e9",
        "true",
        "false",
        "null",
        "model",
        "\"model\":\"m\"",
        "\"mod\\u0065l\":\"x\"",
        "Model",
        "\"stream\":true",
        "\"stream_options\":",
        "\"include_usage\":",
        "\"messages\":[",
        "\"role\":\"user\"",
        "\"content\":",
        "\"n\":",
        "\"max_tokens\":",
        "\"user\":",
        "\"prompt\":",
    ];
    let fragment = prop_oneof![
        8 => select(tokens.to_vec()).prop_map(|fragment| fragment.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..3),
    ];
    vec(fragment, 0..40).prop_map(|fragments| fragments.concat())
}

proptest! {
    #[test]
    fn field_order_and_whitespace_do_not_change_the_result(
        other in vec(("[a-d\\\\\"]{1,3}", value()), 0..4),
        positions in any::<[Index; 4]>(),
        model in "[^\\p{Cc}]{1,20}",
        tokens in 0..1_000_000_u64,
        choices in 1..9_u64,
        (options, usage) in stream_options(),
    ) {
        let mut fields = other;
        let field = |name: &str, value: String| (name.to_owned(), value);
        let mut interpreted = vec![
            field("model", serde_json::to_string(&model).unwrap()),
            field("max_tokens", tokens.to_string()),
            field("n", choices.to_string()),
            field("stream", "true".to_owned()),
        ];
        interpreted.extend(options.map(|options| field("stream_options", options)));
        for (field, position) in interpreted.into_iter().zip(positions.iter().cycle()) {
            fields.insert(position.index(fields.len() + 1), field);
        }
        let body = object(&fields);
        let request = parse(Endpoint::Completions, &body).unwrap();
        let parsed = (request.model, request.mode, request.usage);
        prop_assert_eq!(parsed, (model, ResponseMode::Stream, usage));
        prop_assert_eq!(request.output_tokens_max, Some(tokens * choices));
        checks::request::check(body.as_bytes());
    }

    #[test]
    fn a_mutated_body_is_rejected_or_parsed_as_serde_json_does(
        change in prop_oneof![any::<u8>(), select(b"\"\\{}[],:0 e\n".to_vec())],
        position in any::<Index>(),
        (options, _) in stream_options(),
    ) {
        // Without options, the body is invalid even before it is mutated.
        let options = options.unwrap_or_default();
        let body = format!(
            r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":[1]}}],"stream_options":{options}}}"#
        );
        let mut bytes = body.into_bytes();
        let at = position.index(bytes.len());
        bytes[at] = change;
        checks::request::check(&bytes);
        bytes.remove(at);
        checks::request::check(&bytes);
        bytes.insert(at, change);
        bytes.insert(at, change);
        checks::request::check(&bytes);
    }

    #[test]
    fn random_json_fragments_are_parsed_as_serde_json_does_or_rejected(body in fragments()) {
        checks::request::check(&body);
        checks::request::check(&[b"{", body.as_slice(), b"}"].concat());
    }

    #[test]
    fn the_token_estimate_ignores_escaping(text in any::<String>()) {
        let tokens = |text: &str| {
            let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
            parse(Endpoint::Completions, &body).unwrap().input_tokens
        };
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        prop_assert_eq!(tokens(&escaped), (text.len() as u64).div_ceil(4));
        let quoted = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(tokens(&quoted[1..quoted.len() - 1]), tokens(&escaped));
    }
}

fn parse(endpoint: Endpoint, body: &str) -> Result<LlmRequest, ApiError> {
    LlmRequest::parse(endpoint, &Bytes::copy_from_slice(body.as_bytes()))
}
