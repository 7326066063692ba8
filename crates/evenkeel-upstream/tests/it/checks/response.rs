//! What a node says is understood the same, wherever it is cut, and what is refused is refused the same.

use evenkeel_upstream::UpstreamError;
use evenkeel_upstream::response_parser::parse_response;
use http::Method;

/// At how many places an answer is cut in two; tests also cut at every place, for which fuzzing has no time.
const CUTS: usize = 16;

/// Everything that is understood of an answer, or why nothing is.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Answer {
        status: u16,
        headers: Vec<(String, Vec<u8>)>,
        body: Vec<u8>,
        whole: bool,
        stays: bool,
        behind: usize,
    },
    NoHead,
    NoBody,
}

/// Checks what a node says to a question and to one that wants no body.
pub(crate) fn check(said: &[u8]) {
    check_cuts(said, 1 + said.len() / CUTS);
}

pub(crate) fn check_cuts(said: &[u8], step: usize) {
    for method in [Method::POST, Method::HEAD] {
        let whole = told(&method, [said]);
        check_told(&whole, said);
        assert_eq!(told(&method, said.chunks(1)), whole, "in single bytes");
        for at in (0..=said.len()).step_by(step) {
            assert_eq!(told(&method, [&said[..at], b"", &said[at..]]), whole, "cut at {at}");
        }
    }
}

fn told<'a>(method: &Method, pieces: impl IntoIterator<Item = &'a [u8]>) -> Told {
    match parse_response(method, pieces) {
        Ok(None) => Told::Nothing,
        Ok(Some(heard)) => {
            let headers = heard.response.headers().iter();
            Told::Answer {
                status: heard.response.status().as_u16(),
                headers: headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect(),
                body: heard.response.body().to_vec(),
                whole: heard.whole,
                stays: heard.stays,
                behind: heard.behind.len(),
            }
        }
        Err(UpstreamError::Malformed { .. }) => Told::NoHead,
        Err(UpstreamError::Cut { .. }) => Told::NoBody,
        Err(other) => panic!("no node says {other}"),
    }
}

/// What was understood was said, and nothing is kept open that may say more.
fn check_told(told: &Told, said: &[u8]) {
    let Told::Answer { status, headers, body, whole, stays, behind } = told else { return };
    assert!(200 <= *status, "word of an answer is none");
    assert!(body.len() + behind <= said.len());
    assert!(!stays || (*whole && *behind == 0));
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
