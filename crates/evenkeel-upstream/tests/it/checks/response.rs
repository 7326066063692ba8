//! Checks that a response is parsed or rejected the same way, wherever it is cut into chunks.

use evenkeel_upstream::UpstreamError;
use evenkeel_upstream::response_parser::parse_response;
use http::Method;

/// Number of places at which fuzzing cuts a response; tests cut it at every byte.
const CUTS: usize = 16;

/// Complete result of parsing a response.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Incomplete,
    Response {
        status: u16,
        headers: Vec<(String, Vec<u8>)>,
        body: Vec<u8>,
        is_complete: bool,
        is_reusable: bool,
        rest_len: usize,
    },
    InvalidHead,
    InvalidBody,
}

/// Checks a response, once as the response to a POST and once to a HEAD request.
pub(crate) fn check(raw: &[u8]) {
    check_cuts(raw, 1 + raw.len() / CUTS);
}

pub(crate) fn check_cuts(raw: &[u8], step: usize) {
    for method in [Method::POST, Method::HEAD] {
        let whole = parse(&method, [raw]);
        check_consistent(&whole, raw);
        assert_eq!(parse(&method, raw.chunks(1)), whole, "in single bytes");
        for at in (0..=raw.len()).step_by(step) {
            assert_eq!(parse(&method, [&raw[..at], b"", &raw[at..]]), whole, "cut at {at}");
        }
    }
}

fn parse<'a>(method: &Method, chunks: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    match parse_response(method, chunks) {
        Ok(None) => Outcome::Incomplete,
        Ok(Some(parsed)) => {
            let headers = parsed.response.headers().iter();
            Outcome::Response {
                status: parsed.response.status().as_u16(),
                headers: headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect(),
                body: parsed.response.body().to_vec(),
                is_complete: parsed.is_complete,
                is_reusable: parsed.is_reusable,
                rest_len: parsed.rest.len(),
            }
        }
        Err(UpstreamError::Malformed { .. }) => Outcome::InvalidHead,
        Err(UpstreamError::Truncated { .. }) => Outcome::InvalidBody,
        Err(other) => panic!("the parser returned {other}"),
    }
}

/// Checks that a parsed response is contained in the input, and that a reusable connection has no bytes left.
fn check_consistent(outcome: &Outcome, raw: &[u8]) {
    let Outcome::Response { status, headers, body, is_complete, is_reusable, rest_len } = outcome else {
        return;
    };
    assert!(*status >= 200, "an interim response is not a final one");
    assert!(body.len() + rest_len <= raw.len());
    assert!(!is_reusable || (*is_complete && *rest_len == 0));
    let lengths = headers.iter().filter(|(name, _)| name == "content-length").collect::<Vec<_>>();
    let is_chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
    assert!(!is_chunked || lengths.is_empty(), "two lengths");
    assert!(lengths.windows(2).all(|two| {
        two[0]
            .1
            .iter()
            .skip_while(|digit| **digit == b'0')
            .eq(two[1].1.iter().skip_while(|digit| **digit == b'0'))
    }));
}
