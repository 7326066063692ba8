//! Which headers go on to the other side, and which concern one side only.

use core::time::Duration;

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, RETRY_AFTER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Tells how long a request waited for its slots, on every answer.
pub(crate) const QUEUE_WAIT_MS: HeaderName = HeaderName::from_static("x-queue-wait-ms");
/// Names a request, on both sides.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What concerns one connection.
const HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What a client tells us and no node: who it is, how long its body was, and how it would have answers packed, which
/// could not be read on the way.
const OURS: [HeaderName; 8] = [
    HOST,
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    COOKIE,
    CONTENT_LENGTH,
    EXPECT,
    ACCEPT_ENCODING,
];

/// Makes a client's headers those that every node gets.
pub(crate) fn for_nodes(mut headers: HeaderMap, request_id: HeaderValue) -> HeaderMap {
    strip(&mut headers, &OURS);
    headers.insert(REQUEST_ID, request_id);
    headers
}

/// Makes a node's headers those of our answer.
pub(crate) fn for_client(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers, &[SET_COOKIE]);
    headers
}

/// Takes out what concerns one connection, and `others`.
fn strip(headers: &mut HeaderMap, others: &[HeaderName]) {
    if headers.contains_key(CONNECTION) {
        let listed = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let named: Vec<HeaderName> =
            listed.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
        for name in named {
            headers.remove(name);
        }
    }
    // Of many that may not be there few are: comparing names is cheaper than looking each of them up.
    let stays = |name: &&HeaderName| !HOP.contains(name) && !others.contains(name);
    while let Some(name) = headers.keys().find(|name| !stays(name)).cloned() {
        headers.remove(name);
    }
}

/// When a busy node wants to be asked again, if it says so in a way we read: in seconds, or in milliseconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &HeaderName| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let millis = HeaderName::from_static("retry-after-ms");
    let secs = number(&millis).map(|millis| millis / 1_000.0).or_else(|| number(&RETRY_AFTER))?;
    Duration::try_from_secs_f64(secs).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_learns_neither_who_asks_nor_what_concerns_the_connection() {
        let given = headers(&[
            ("authorization", "Bearer ek-1"),
            ("x-api-key", "ek-1"),
            ("api-key", "ek-1"),
            ("cookie", "session=1"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/json"),
            ("openai-organization", "org"),
        ]);
        let passed = for_nodes(given, HeaderValue::from_static("req-1"));
        let mut names: Vec<_> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "openai-organization", "x-request-id"]);
    }

    #[test]
    fn a_client_gets_what_the_node_says_and_nothing_about_its_connection() {
        let given = headers(&[
            ("connection", "keep-alive, x-engine-hop"),
            ("x-engine-hop", "1"),
            ("set-cookie", "a=b"),
            ("transfer-encoding", "chunked"),
            ("openai-processing-ms", "7"),
        ]);
        let passed = for_client(given);
        assert_eq!(passed.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["openai-processing-ms"]);
    }

    #[test]
    fn a_time_to_come_back_is_read_in_seconds_and_milliseconds() {
        let read = |name: &'static str, value: &'static str| retry_after(&headers(&[(name, value)]));
        assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(read("retry-after", " 0.5 "), Some(Duration::from_millis(500)));
        assert_eq!(read("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        for value in ["-1", "soon", "NaN", "inf", "1e300", "Fri, 31 Dec 1999 23:59:59 GMT"] {
            assert_eq!(read("retry-after", value), None, "{value}");
        }
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs =
            list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }
}
