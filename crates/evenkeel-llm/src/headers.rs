//! Which headers go on to the other side, and which concern one side only.

use core::time::Duration;

use http::header::{CONNECTION, RETRY_AFTER};
use http::{HeaderMap, HeaderName};

/// Tells how long a request waited for its slots, on every answer.
pub(crate) const QUEUE_WAIT_MS: HeaderName = HeaderName::from_static("x-queue-wait-ms");
/// Names a request, on both sides.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Whether a header concerns one connection.
fn is_of_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether a client's header goes on to nodes.
///
/// No node is told who the client is, how long its body was, or how it would have answers packed, which could not be
/// read on the way; the name of its request is told once it is sane.
pub(crate) fn is_for_nodes(name: &HeaderName) -> bool {
    let is_ours = matches!(
        name.as_str(),
        "host"
            | "authorization"
            | "x-api-key"
            | "api-key"
            | "cookie"
            | "content-length"
            | "expect"
            | "accept-encoding"
            | REQUEST_ID
    );
    !is_ours && !is_of_connection(name)
}

/// Makes a node's headers those of our answer.
pub(crate) fn for_client(mut headers: HeaderMap) -> HeaderMap {
    drop_listed(&mut headers);
    let is_ours = |name: &&HeaderName| is_of_connection(name) || name.as_str() == "set-cookie";
    while let Some(name) = headers.keys().find(is_ours).cloned() {
        headers.remove(name);
    }
    headers
}

/// Takes out what `Connection` says concerns one connection.
pub(crate) fn drop_listed(headers: &mut HeaderMap) {
    if !headers.contains_key(CONNECTION) {
        return;
    }
    let listed = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        listed.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in named {
        headers.remove(name);
    }
}

/// Reads when a busy node wants to be asked again, if it says so in a way we read: in seconds, or in milliseconds.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &HeaderName| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let millis = HeaderName::from_static("retry-after-ms");
    let secs = number(&millis).map(|millis| millis / 1_000.0).or_else(|| number(&RETRY_AFTER))?;
    Duration::try_from_secs_f64(secs).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
        let mut passed = given;
        drop_listed(&mut passed);
        let mut names: Vec<_> =
            passed.keys().filter(|name| is_for_nodes(name)).map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "openai-organization"]);
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
