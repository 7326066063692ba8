//! Heads of HTTP/1.1: written from a request, read into a response.
//!
//! Bounds: an answer's head has at most [`HEAD_BYTES_MAX`] bytes and [`HEADERS_MAX`] headers. What two readers could
//! understand differently, two lengths above all, is no head.

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use memchr::memchr_iter;

use super::framing::Framing;
use super::{HeaderFilter, Origin, UpstreamError};

/// How long the head of an answer may be.
pub(super) const HEAD_BYTES_MAX: usize = 256 * 1024;
/// How many headers an answer may have.
const HEADERS_MAX: usize = 128;
/// How many most answers have.
const HEADERS_USUAL: usize = 32;
/// What every answer of HTTP/1 begins with.
const BEGINNING: &[u8] = b"HTTP/1.";

/// Writes the head of a request.
///
/// The origin's base goes in front of the path; host and length are the connection's affair.
pub(super) fn write(head: &mut Vec<u8>, origin: &Origin, request: &Request<Bytes>, passed: HeaderFilter<'_>) {
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    let target = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    put(&[request.method().as_str().as_bytes(), b" ", origin.base().as_bytes(), target.as_bytes()]);
    put(&[b" HTTP/1.1\r\nhost: ", origin.host_header().as_bytes(), b"\r\n"]);
    for (name, value) in request.headers() {
        let is_ours = matches!(name.as_str(), "host" | "content-length" | "transfer-encoding");
        // What is added replaces what was said.
        let is_added = passed.adds.iter().any(|(added, _)| *added == name.as_str());
        if !is_ours && !is_added && (passed.keeps)(name) {
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
    }
    for (name, value) in passed.adds {
        put(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    let len = request.body().len();
    if 0 < len || ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut digits = [0; 20];
        put(&[b"content-length: ", decimal(len, &mut digits), b"\r\n"]);
    }
    put(&[b"\r\n"]);
}

/// Writes a number into the end of `digits`.
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

/// Whether a connection can be used after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionReuse {
    KeepAlive,
    Close,
}

/// An answer's head, and what it says about what follows.
pub(super) struct ResponseHead {
    pub(super) response: Response<()>,
    pub(super) body: Framing,
    pub(super) afterwards: ConnectionReuse,
}

/// Looks for an answer's head in what is read.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    /// How much of the input was looked at without finding the end.
    looked: usize,
    /// How long everything was that came before the head: word of what the node still does (a status below 200).
    passed: usize,
}

impl HeadReader {
    /// Takes the head from what was read; `None` if it is not complete.
    pub(super) fn take(
        &mut self,
        input: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, UpstreamError> {
        loop {
            let Some(len) = self.find_end(input)? else { return Ok(None) };
            self.looked = 0;
            self.passed += len;
            let bytes = input.split_to(len).freeze();
            let mut few = [httparse::EMPTY_HEADER; HEADERS_USUAL];
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

    /// Whether nothing of an answer has come, not even word that there will be one.
    pub(super) fn is_unbegun(&self, input: &[u8]) -> bool {
        self.passed == 0 && input.is_empty()
    }

    /// Finds the end of a head, and looks at no byte twice.
    fn find_end(&mut self, input: &[u8]) -> Result<Option<usize>, UpstreamError> {
        let beginning = BEGINNING.len().min(input.len());
        if input[..beginning] != BEGINNING[..beginning] {
            return Err(malformed("it begins with something else"));
        }
        let mut end = None;
        for at in memchr_iter(b'\n', &input[self.looked..]).map(|at| self.looked + at) {
            // Some take a line feed alone for the end of a line, and see another head.
            if !input[..at].ends_with(b"\r") {
                return Err(malformed("lines that do not end as they should"));
            }
            if input[..at].ends_with(b"\n\r") {
                end = Some(at + 1);
                break;
            }
        }
        if HEAD_BYTES_MAX < self.passed + end.unwrap_or(input.len()) {
            return Err(malformed("a head without end"));
        }
        self.looked = input.len();
        Ok(end)
    }
}

/// Parses a head; the outer error is one of room for headers, or of syntax.
fn parse<'a>(
    bytes: &'a Bytes,
    headers: &mut [httparse::Header<'a>],
    method: &Method,
) -> Result<Result<Option<ResponseHead>, UpstreamError>, httparse::Error> {
    let mut head = httparse::Response::new(headers);
    // Two who look for the same end must find the same.
    if head.parse(bytes)? != httparse::Status::Complete(bytes.len()) {
        return Ok(Err(malformed("a head that ends elsewhere")));
    }
    Ok(parse_head(bytes, &head, method))
}

/// What an answer's headers say about its body and its connection.
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
        return Err(malformed("another protocol that nobody asked for"));
    }
    if status.is_informational() {
        return Ok(None);
    }
    let mut said = FramingHeaders::default();
    let mut response = Response::new(());
    // What is added on the way to the client finds room.
    response.headers_mut().reserve(head.headers.len() + 2);
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(malformed)?;
        said.note(&name, header.value)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(header.value)).map_err(malformed)?;
        response.headers_mut().append(name, value);
    }
    let is_old = head.version == Some(0);
    let body = match (said.chunked, said.length) {
        (true, Some(_)) => return Err(malformed("an answer with two lengths")),
        (true, None) if is_old => return Err(malformed("chunks from before there were any")),
        _ if *method == Method::HEAD || matches!(status.as_u16(), 204 | 304) => Framing::Done,
        (true, None) => Framing::CHUNKED,
        (false, Some(length)) => Framing::of_length(length),
        (false, None) => Framing::UntilClose,
    };
    // What has no body, and speaks of one, may send it.
    let doubtful =
        status == StatusCode::NO_CONTENT && (said.chunked || said.length.is_some_and(|len| 0 < len));
    let stays = !said.close && !doubtful && (said.keep_alive || !is_old) && body != Framing::UntilClose;
    let afterwards = if stays { ConnectionReuse::KeepAlive } else { ConnectionReuse::Close };
    *response.status_mut() = status;
    *response.version_mut() = if is_old { Version::HTTP_10 } else { Version::HTTP_11 };
    Ok(Some(ResponseHead { response, body, afterwards }))
}

impl FramingHeaders {
    fn note(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), UpstreamError> {
        if name == CONTENT_LENGTH {
            let length = length(value)?;
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err(malformed("an answer with two lengths"));
            }
        } else if name == TRANSFER_ENCODING {
            // Nobody said that we understand any other.
            if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(malformed("a coding of the transfer that nobody asked for"));
            }
            self.chunked = true;
        } else if name == CONNECTION {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.close |= word.eq_ignore_ascii_case(b"close");
                self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }
}

fn length(digits: &[u8]) -> Result<u64, UpstreamError> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = core::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|_| is_number).ok_or_else(|| malformed("a length that is no number"))
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
        let adds = &[(AUTHORIZATION.as_str(), &node), ("traceparent", &trace)];
        let passed = HeaderFilter { keeps: |name| name != AUTHORIZATION, adds };
        let mut head = Vec::new();
        write(&mut head, &origin, &request, passed);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "POST /base/v1/chat/completions?a=b HTTP/1.1\r\nhost: node:8000\r\nx-mine: 1\r\n\
             authorization: Bearer node\r\ntraceparent: ours\r\ncontent-length: 10\r\n\r\n"
        );
    }

    #[test]
    fn only_what_usually_has_a_body_says_that_it_has_none() {
        for (method, expected) in [
            ("GET", "GET /v1/models HTTP/1.1\r\nhost: node\r\n\r\n"),
            ("POST", "POST /v1/models HTTP/1.1\r\nhost: node\r\ncontent-length: 0\r\n\r\n"),
        ] {
            let request = Request::builder().method(method).uri("/v1/models").body(Bytes::new()).unwrap();
            let mut head = Vec::new();
            let passed = HeaderFilter { keeps: |_| true, adds: &[] };
            write(&mut head, &Origin::parse("http://node").unwrap(), &request, passed);
            assert_eq!(String::from_utf8(head).unwrap(), expected);
        }
    }

    #[test]
    fn a_head_says_how_its_body_ends_and_whether_the_connection_stays() {
        use ConnectionReuse::{Close, KeepAlive};
        for (said, body, afterwards) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5", Framing::Bytes(5), KeepAlive),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5", Framing::Bytes(5), KeepAlive),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x, Close", Framing::Done, Close),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: \tChunked ", Framing::CHUNKED, KeepAlive),
            ("HTTP/1.1 200 OK", Framing::UntilClose, Close),
            ("HTTP/1.1 204 No Content", Framing::Done, KeepAlive),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 0", Framing::Done, KeepAlive),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 5", Framing::Done, Close),
            ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked", Framing::Done, Close),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5", Framing::Done, KeepAlive),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5", Framing::Bytes(5), Close),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive", Framing::Bytes(5), KeepAlive),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5",
                Framing::Bytes(5),
                KeepAlive,
            ),
        ] {
            let head = read_at_once(&format!("{said}\r\n\r\n"), &Method::POST).unwrap().unwrap();
            assert_eq!((head.body, head.afterwards), (body, afterwards), "{said}");
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(read_at_once(head, &Method::HEAD).unwrap().unwrap().body, Framing::Done);
    }

    #[test]
    fn a_head_is_the_same_wherever_it_is_cut() {
        let said = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\na: b\r\nc: d\r\n\r\nbody";
        for at in 1..said.len() - "body".len() {
            let mut input = BytesMut::from(&said[..at]);
            let mut head = HeadReader::default();
            assert!(head.take(&mut input, &Method::POST).unwrap().is_none(), "cut at {at}");
            input.extend_from_slice(&said.as_bytes()[at..]);
            let head = head.take(&mut input, &Method::POST).unwrap().unwrap();
            assert_eq!((head.response.headers()["c"].as_bytes(), &input[..]), (&b"d"[..], &b"body"[..]));
        }
    }

    #[test]
    fn what_has_two_meanings_or_none_is_malformed_wherever_it_is_cut() {
        for said in [
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
            for at in 0..said.len() {
                let mut head = HeadReader::default();
                let mut input = BytesMut::from(&said[..at]);
                let first = head.take(&mut input, &Method::POST);
                input.extend_from_slice(&said.as_bytes()[at..]);
                let whole = first.and_then(|none| {
                    assert!(none.is_none(), "{said} cut at {at}");
                    head.take(&mut input, &Method::POST)
                });
                assert!(matches!(whole, Err(UpstreamError::Malformed { .. })), "{said} cut at {at}");
            }
        }
    }

    #[test]
    fn word_of_what_the_node_still_does_is_heard_only_so_long() {
        let mut head = HeadReader::default();
        let mut input = BytesMut::new();
        assert!(head.is_unbegun(&input));
        let word = "HTTP/1.1 102 Processing\r\n\r\n";
        for _ in 0..HEAD_BYTES_MAX / word.len() {
            input.extend_from_slice(word.as_bytes());
            assert!(head.take(&mut input, &Method::POST).unwrap().is_none());
            assert!(!head.is_unbegun(&input));
        }
        input.extend_from_slice(word.as_bytes());
        assert!(matches!(head.take(&mut input, &Method::POST), Err(UpstreamError::Malformed { .. })));
    }

    #[test]
    fn a_head_has_as_many_headers_as_allowed_and_no_more() {
        let head = |headers: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(headers));
        assert!(read_at_once(&head(HEADERS_MAX), &Method::POST).unwrap().is_some());
        assert!(read_at_once(&head(HEADERS_MAX + 1), &Method::POST).is_err());
    }

    fn read_at_once(said: &str, method: &Method) -> Result<Option<ResponseHead>, UpstreamError> {
        HeadReader::default().take(&mut BytesMut::from(said), method)
    }
}
