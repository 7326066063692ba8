//! Header filtering: headers passed to nodes, headers passed to clients, and hop-by-hop headers.

use core::time::Duration;

use http::header::{CONNECTION, RETRY_AFTER};
use http::{HeaderMap, HeaderName};

/// Response header with the time that the request was queued.
pub(crate) const QUEUE_WAIT_MS: HeaderName = HeaderName::from_static("x-queue-wait-ms");
/// Response header with the model that served the request, if the request names another one.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-evenkeel-model");
/// Prefix of the response headers of CORS (cross-origin resource sharing).
const CORS_PREFIX: &str = "access-control-";
/// Prefix of the request headers that are for the gateway and not for nodes.
const OWN_PREFIX: &str = "x-evenkeel-";
pub(crate) const REQUEST_ID: &str = "x-request-id";

fn is_hop_by_hop(name: &HeaderName) -> bool {
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

/// Reports whether a client's header is passed to nodes.
///
/// Credentials are not passed on, and neither is `accept-encoding`, because a compressed response could not be scanned.
/// The request ID is sent separately, after validation. Headers to the gateway itself (`x-evenkeel-…`) end here.
pub(crate) fn is_for_nodes(name: &HeaderName) -> bool {
    let is_replaced = matches!(
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
    !is_replaced && !name.as_str().starts_with(OWN_PREFIX) && !is_hop_by_hop(name)
}

/// Returns the headers of a node's response that are passed to the client.
pub(crate) fn for_client(mut headers: HeaderMap) -> HeaderMap {
    remove_connection_headers(&mut headers);
    // The gateway decides which web pages may read its responses.
    let is_dropped = |name: &&HeaderName| {
        is_hop_by_hop(name) || name.as_str() == "set-cookie" || name.as_str().starts_with(CORS_PREFIX)
    };
    while let Some(name) = headers.keys().find(is_dropped).cloned() {
        headers.remove(name);
    }
    headers
}

/// Removes the headers that `Connection` lists as hop-by-hop.
pub(crate) fn remove_connection_headers(headers: &mut HeaderMap) {
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

/// Reads `retry-after-ms`, or else `Retry-After` in seconds; an HTTP date is ignored.
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
    fn credentials_and_hop_by_hop_headers_are_not_passed_to_nodes() {
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
            ("x-evenkeel-session", "agent-7"),
            ("content-type", "application/json"),
            ("openai-organization", "org"),
        ]);
        let mut passed = given;
        remove_connection_headers(&mut passed);
        let mut names: Vec<_> =
            passed.keys().filter(|name| is_for_nodes(name)).map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "openai-organization"]);
    }

    #[test]
    fn cookies_cors_and_hop_by_hop_headers_are_not_passed_to_clients() {
        let given = headers(&[
            ("connection", "keep-alive, x-engine-hop"),
            ("x-engine-hop", "1"),
            ("set-cookie", "a=b"),
            ("access-control-allow-origin", "*"),
            ("transfer-encoding", "chunked"),
            ("openai-processing-ms", "7"),
        ]);
        let passed = for_client(given);
        assert_eq!(passed.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["openai-processing-ms"]);
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_milliseconds() {
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
