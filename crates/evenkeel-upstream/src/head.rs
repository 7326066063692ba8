//! HTTP/1.1 heads: writes requests, parses responses.
//!
//! Guarantees: a head that two parsers could interpret differently (such as one with two lengths) is an error.
//!
//! Limits: a response head has at most [`HEAD_BYTES_MAX`] bytes and [`HEADERS_MAX`] headers.

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use memchr::memchr_iter;

use super::framing::Framing;
use super::{HeaderFilter, Origin, UpstreamError};

/// Longest response head, including interim responses before it.
pub(super) const HEAD_BYTES_MAX: usize = 256 * 1024;
const HEADERS_MAX: usize = 128;
/// Number of headers that fits most responses.
const HEADERS_TYPICAL: usize = 32;
const VERSION_PREFIX: &[u8] = b"HTTP/1.";

/// Writes a request head: the origin's base path is prepended to the path, `Host` and `Content-Length` are set here.
pub(super) fn write(head: &mut Vec<u8>, origin: &Origin, request: &Request<Bytes>, filter: HeaderFilter<'_>) {
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    put(&[request.method().as_str().as_bytes(), b" ", origin.base().as_bytes(), target.as_bytes()]);
    put(&[b" HTTP/1.1\r\nhost: ", origin.host_header().as_bytes(), b"\r\n"]);
    for (name, value) in request.headers() {
        let is_replaced = matches!(name.as_str(), "host" | "content-length" | "transfer-encoding");
        let is_added = filter.add.iter().any(|(added, _)| *added == name.as_str());
        if !is_replaced && !is_added && (filter.keep)(name) {
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
    }
    for (name, value) in filter.add {
        put(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    let len = request.body().len();
    if len > 0 || ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut digits = [0; 20];
        put(&[b"content-length: ", decimal(len, &mut digits), b"\r\n"]);
    }
    put(&[b"\r\n"]);
}

/// Formats a number in decimal, at the end of `digits`.
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// Reusability of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionReuse {
    KeepAlive,
    Close,
}

/// A parsed response head.
pub(super) struct ResponseHead {
    pub(super) response: Response<()>,
    pub(super) body: Framing,
    pub(super) reuse: ConnectionReuse,
}

/// Incremental reader of a response head.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    /// Number of input bytes already searched for the end of the head.
    searched: usize,
    /// Bytes of the heads consumed so far, including interim responses (1xx).
    consumed: usize,
}

impl HeadReader {
    /// Takes the head from the input; `None` if it is incomplete. Interim responses (1xx) are skipped.
    pub(super) fn take(
        &mut self,
        input: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, UpstreamError> {
        loop {
            let Some(len) = self.find_end(input)? else { return Ok(None) };
            self.searched = 0;
            self.consumed += len;
            let bytes = input.split_to(len).freeze();
            let mut few = [httparse::EMPTY_HEADER; HEADERS_TYPICAL];
            let head = match parse(&bytes, &mut few, method) {
                Err(httparse::Error::TooManyHeaders) => {
                    parse(&bytes, &mut [httparse::EMPTY_HEADER; HEADERS_MAX], method)
                }
                head => head,
            };
            if let Some(head) = head.map_err(malformed)?? {
                return Ok(Some(head));
            }
        }
    }

    /// Reports whether nothing was received, not even an interim response.
    pub(super) fn is_unstarted(&self, input: &[u8]) -> bool {
        self.consumed == 0 && input.is_empty()
    }

    /// Finds the end of the head without searching a byte twice.
    fn find_end(&mut self, input: &[u8]) -> Result<Option<usize>, UpstreamError> {
        let prefix = VERSION_PREFIX.len().min(input.len());
        if input[..prefix] != VERSION_PREFIX[..prefix] {
            return Err(malformed("does not begin with HTTP/1."));
        }
        let mut end = None;
        for at in memchr_iter(b'\n', &input[self.searched..]).map(|at| self.searched + at) {
            // Some parsers treat a bare LF as a line end, and would parse the head differently.
            if !input[..at].ends_with(b"\r") {
                return Err(malformed("a line of the head does not end with CRLF"));
            }
            if input[..at].ends_with(b"\n\r") {
                end = Some(at + 1);
                break;
            }
        }
        if self.consumed + end.unwrap_or(input.len()) > HEAD_BYTES_MAX {
            return Err(malformed("response head is too long"));
        }
        self.searched = input.len();
        Ok(end)
    }
}

/// Parses a head; the outer error is httparse's: too many headers, or invalid syntax.
fn parse<'a>(
    bytes: &'a Bytes,
    headers: &mut [httparse::Header<'a>],
    method: &Method,
) -> Result<Result<Option<ResponseHead>, UpstreamError>, httparse::Error> {
    let mut head = httparse::Response::new(headers);
    // httparse must find the same end of the head as `find_end`.
    if head.parse(bytes)? != httparse::Status::Complete(bytes.len()) {
        return Ok(Err(malformed("the end of the head is ambiguous")));
    }
    Ok(parse_head(bytes, &head, method))
}

/// Headers that frame the body or concern the connection.
#[derive(Default)]
struct FramingHeaders {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

fn parse_head(
    bytes: &Bytes,
    head: &httparse::Response<'_, '_>,
    method: &Method,
) -> Result<Option<ResponseHead>, UpstreamError> {
    let status = StatusCode::from_u16(head.code.unwrap_or(0)).map_err(malformed)?;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(malformed("unexpected 101 Switching Protocols"));
    }
    if status.is_informational() {
        return Ok(None);
    }
    let mut framing = FramingHeaders::default();
    let mut response = Response::new(());
    // Room for the headers that the proxy adds.
    response.headers_mut().reserve(head.headers.len() + 2);
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(malformed)?;
        framing.record(&name, header.value)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(header.value)).map_err(malformed)?;
        response.headers_mut().append(name, value);
    }
    let is_old = head.version == Some(0);
    let body = match (framing.chunked, framing.length) {
        (true, Some(_)) => return Err(malformed("both Content-Length and Transfer-Encoding")),
        (true, None) if is_old => return Err(malformed("Transfer-Encoding in HTTP/1.0")),
        _ if *method == Method::HEAD || matches!(status.as_u16(), 204 | 304) => Framing::Done,
        (true, None) => Framing::CHUNKED,
        (false, Some(length)) => Framing::from_length(length),
        (false, None) => Framing::UntilClose,
    };
    // A 204 with a length or a transfer encoding may be followed by a body.
    let may_have_body =
        status == StatusCode::NO_CONTENT && (framing.chunked || framing.length.is_some_and(|len| len > 0));
    let is_reusable =
        !framing.close && !may_have_body && (framing.keep_alive || !is_old) && body != Framing::UntilClose;
    let reuse = if is_reusable { ConnectionReuse::KeepAlive } else { ConnectionReuse::Close };
    *response.status_mut() = status;
    *response.version_mut() = if is_old { Version::HTTP_10 } else { Version::HTTP_11 };
    Ok(Some(ResponseHead { response, body, reuse }))
}

impl FramingHeaders {
    fn record(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), UpstreamError> {
        if name == CONTENT_LENGTH {
            let length = parse_length(value)?;
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err(malformed("two different Content-Length headers"));
            }
        } else if name == TRANSFER_ENCODING {
            // Requests offer no other transfer coding.
            if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(malformed("unsupported Transfer-Encoding"));
            }
            self.chunked = true;
        } else if name == CONNECTION {
            for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }
}

fn parse_length(digits: &[u8]) -> Result<u64, UpstreamError> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = core::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|_| is_number).ok_or_else(|| malformed("Content-Length is not a number"))
}

fn malformed(error: impl ToString) -> UpstreamError {
    UpstreamError::Malformed { error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn a_request_is_written_with_its_host_and_length() {
        let origin = Origin::parse("http://node:8000/base/v1").unwrap();
        let request = Request::post("/v1/chat/completions?a=b")
            .header("host", "client")
            .header("content-length", "7")
            .header("transfer-encoding", "chunked")
            .header("authorization", "Bearer client")
            .header("x-mine", "1")
            .header("traceparent", "client")
            .body(Bytes::from("0123456789"))
            .unwrap();
        let node = HeaderValue::from_static("Bearer node");
        let trace = HeaderValue::from_static("ours");
        let add = &[(AUTHORIZATION.as_str(), &node), ("traceparent", &trace)];
        let filter = HeaderFilter { keep: |name| name != AUTHORIZATION, add };
        let mut head = Vec::new();
        write(&mut head, &origin, &request, filter);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "POST /base/v1/chat/completions?a=b HTTP/1.1\r\nhost: node:8000\r\nx-mine: 1\r\n\
             authorization: Bearer node\r\ntraceparent: ours\r\ncontent-length: 10\r\n\r\n"
        );
    }

    #[test]
    fn an_empty_body_has_a_content_length_only_with_methods_that_usually_have_a_body() {
        for (method, expected) in [
            ("GET", "GET /v1/models HTTP/1.1\r\nhost: node\r\n\r\n"),
            ("POST", "POST /v1/models HTTP/1.1\r\nhost: node\r\ncontent-length: 0\r\n\r\n"),
        ] {
            let request = Request::builder().method(method).uri("/v1/models").body(Bytes::new()).unwrap();
            let mut head = Vec::new();
            let filter = HeaderFilter { keep: |_| true, add: &[] };
            write(&mut head, &Origin::parse("http://node").unwrap(), &request, filter);
            assert_eq!(String::from_utf8(head).unwrap(), expected);
        }
    }

    #[test]
    fn the_head_decides_framing_and_connection_reuse() {
        use ConnectionReuse::{Close, KeepAlive};
        for (head, body, reuse) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5", Framing::ContentLength(5), KeepAlive),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5",
                Framing::ContentLength(5),
                KeepAlive,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x, Close", Framing::Done, Close),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: \tChunked ", Framing::CHUNKED, KeepAlive),
            ("HTTP/1.1 200 OK", Framing::UntilClose, Close),
            ("HTTP/1.1 204 No Content", Framing::Done, KeepAlive),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 0", Framing::Done, KeepAlive),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 5", Framing::Done, Close),
            ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked", Framing::Done, Close),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5", Framing::Done, KeepAlive),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5", Framing::ContentLength(5), Close),
            (
                "HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive",
                Framing::ContentLength(5),
                KeepAlive,
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5",
                Framing::ContentLength(5),
                KeepAlive,
            ),
        ] {
            let parsed = parse_once(&format!("{head}\r\n\r\n"), &Method::POST).unwrap().unwrap();
            assert_eq!((parsed.body, parsed.reuse), (body, reuse), "{head}");
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(parse_once(head, &Method::HEAD).unwrap().unwrap().body, Framing::Done);
    }

    #[test]
    fn a_head_is_the_same_wherever_the_input_is_cut() {
        let bytes = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\na: b\r\nc: d\r\n\r\nbody";
        for at in 1..bytes.len() - "body".len() {
            let mut input = BytesMut::from(&bytes[..at]);
            let mut head = HeadReader::default();
            assert!(head.take(&mut input, &Method::POST).unwrap().is_none(), "cut at {at}");
            input.extend_from_slice(&bytes.as_bytes()[at..]);
            let head = head.take(&mut input, &Method::POST).unwrap().unwrap();
            assert_eq!((head.response.headers()["c"].as_bytes(), &input[..]), (&b"d"[..], &b"body"[..]));
        }
    }

    #[test]
    fn an_ambiguous_or_invalid_head_is_malformed_wherever_the_input_is_cut() {
        for bytes in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0x5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: y\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: y\rz: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx\0: y\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 099 Too Early\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\n\n",
            "HTTP/1.1 200 OK\r\nx: y\n\nbody\r\n\r\n",
            "HTTP/1.1 200 OK\nx: y\r\n\r\n",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            "220 mail",
        ] {
            for at in 0..bytes.len() {
                let mut head = HeadReader::default();
                let mut input = BytesMut::from(&bytes[..at]);
                let first = head.take(&mut input, &Method::POST);
                input.extend_from_slice(&bytes.as_bytes()[at..]);
                let whole = first.and_then(|none| {
                    assert!(none.is_none(), "{bytes} cut at {at}");
                    head.take(&mut input, &Method::POST)
                });
                assert!(matches!(whole, Err(UpstreamError::Malformed { .. })), "{bytes} cut at {at}");
            }
        }
    }

    #[test]
    fn interim_responses_are_limited() {
        let mut head = HeadReader::default();
        let mut input = BytesMut::new();
        assert!(head.is_unstarted(&input));
        let interim = "HTTP/1.1 102 Processing\r\n\r\n";
        for _ in 0..HEAD_BYTES_MAX / interim.len() {
            input.extend_from_slice(interim.as_bytes());
            assert!(head.take(&mut input, &Method::POST).unwrap().is_none());
            assert!(!head.is_unstarted(&input));
        }
        input.extend_from_slice(interim.as_bytes());
        assert!(matches!(head.take(&mut input, &Method::POST), Err(UpstreamError::Malformed { .. })));
    }

    #[test]
    fn the_number_of_headers_is_limited() {
        let head = |headers: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(headers));
        assert!(parse_once(&head(HEADERS_MAX), &Method::POST).unwrap().is_some());
        assert!(parse_once(&head(HEADERS_MAX + 1), &Method::POST).is_err());
    }

    fn parse_once(head: &str, method: &Method) -> Result<Option<ResponseHead>, UpstreamError> {
        HeadReader::default().take(&mut BytesMut::from(head), method)
    }
}
