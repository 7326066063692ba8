//! The parts of a client's request that reach a node: paths, headers and query parameters.
//!
//! Guarantees: a client reaches only the inference routes of a node, and the extra paths that the node's configuration
//! lists; it cannot make a node believe in another client address, method or path.

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Uri};

/// Paths of image generation.
const IMAGE_PATHS: [&str; 3] = ["/v1/images/generations", "/v1/images/edits", "/v1/images/variations"];
/// Other paths of inference that need no handling of their own; their responses have no generated text.
const PATHS: [&str; 4] = ["/v1/moderations", "/v1/score", "/v1/pooling", "/v1/classify"];
/// Output tokens charged for an image; one of 1024 × 1024 pixels takes about as many.
const IMAGE_TOKENS: u64 = 1_000;
const RESPONSE: &str = "/v1/responses/";
/// Query parameters of the APIs of Anthropic and Azure.
const QUERIES: [&str; 2] = ["beta", "api-version"];

/// Headers and query parameters that are passed to nodes although they are dropped by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    pub headers: Vec<HeaderName>,
    pub queries: Vec<String>,
}

impl PassOptions {
    /// Removes headers that speak for a proxy, or that some frameworks obey over the request line.
    pub(crate) fn filter_headers(&self, headers: &mut HeaderMap) {
        let is_dropped = |name: &&HeaderName| is_override(name) && !self.headers.contains(name);
        while let Some(name) = headers.keys().find(is_dropped).cloned() {
            headers.remove(name);
        }
    }

    /// Removes the query parameters that nodes do not get.
    pub(crate) fn filter_query(&self, uri: Uri) -> Uri {
        let Some(query) = uri.query() else { return uri };
        let is_passed = |pair: &&str| {
            let name = pair.split('=').next().unwrap_or_default();
            QUERIES.contains(&name) || self.queries.iter().any(|passed| passed == name)
        };
        let passed: Vec<&str> = query.split('&').filter(is_passed).collect();
        let separator = if passed.is_empty() { "" } else { "?" };
        let text = format!("{}{separator}{}", uri.path(), passed.join("&"));
        // A part of a valid URI is valid.
        PathAndQuery::try_from(text).map(Uri::from).unwrap_or(uri)
    }
}

fn is_override(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_listed = matches!(
        name,
        "forwarded"
            | "x-real-ip"
            | "x-http-method"
            | "x-http-method-override"
            | "x-method-override"
            | "x-original-url"
            | "x-rewrite-url"
    );
    is_listed || name.starts_with("x-forwarded-")
}

/// Reports whether every node accepts this path; other paths need the node's consent (`extra_paths`).
pub(crate) fn is_known_path(path: &str) -> bool {
    let is_response = |rest: &str| {
        let id = rest.strip_suffix("/cancel").unwrap_or(rest);
        !id.is_empty() && !id.contains('/')
    };
    let is_response = path.strip_prefix(RESPONSE).is_some_and(is_response);
    PATHS.contains(&path) || IMAGE_PATHS.contains(&path) || is_response
}

/// Returns the output tokens of a known path, which do not depend on the response; `None` for other paths.
pub(crate) fn exact_output_tokens(path: &str, choices: u64) -> Option<u64> {
    match () {
        () if IMAGE_PATHS.contains(&path) => Some(choices.saturating_mul(IMAGE_TOKENS)),
        () if is_known_path(path) => Some(0),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn only_inference_paths_are_known() {
        for path in ["/v1/images/generations", "/v1/score", "/v1/responses/resp_1", "/v1/responses/r/cancel"]
        {
            assert!(is_known_path(path), "{path}");
        }
        for path in [
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/v1/score/",
            "/v1/responses/",
            "/v1/responses/a/b",
            "/v1/responses//cancel",
            "/v1/Score",
        ] {
            assert!(!is_known_path(path), "{path}");
        }
    }

    #[test]
    fn images_cost_by_their_number_and_scores_nothing_but_their_input() {
        assert_eq!(exact_output_tokens("/v1/images/generations", 3), Some(3 * IMAGE_TOKENS));
        assert_eq!(exact_output_tokens("/v1/score", 3), Some(0));
        assert_eq!(exact_output_tokens("/v1/responses/resp_1/cancel", 1), Some(0));
        assert_eq!(exact_output_tokens("/v1/custom", 1), None);
    }

    #[test]
    fn overriding_headers_are_dropped_unless_configured() {
        let dropped =
            ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "x-http-method-override"];
        let given = || {
            let names = dropped.iter().chain(&["x-custom"]).map(|name| HeaderName::from_static(name));
            names.map(|name| (name, HeaderValue::from_static("1"))).collect::<HeaderMap>()
        };
        let mut headers = given();
        PassOptions::default().filter_headers(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-custom"]);
        let mut headers = given();
        let passed = HeaderName::from_static("x-forwarded-for");
        PassOptions { headers: vec![passed.clone()], ..PassOptions::default() }.filter_headers(&mut headers);
        assert!(headers.contains_key(passed) && headers.len() == 2);
    }

    #[test]
    fn query_parameters_are_dropped_unless_known_or_configured() {
        let filter = |options: &PassOptions, uri: &'static str| {
            options.filter_query(Uri::from_static(uri)).to_string()
        };
        let default = PassOptions::default();
        assert_eq!(
            filter(&default, "/v1/messages?beta=true&x=1&api-version=2"),
            "/v1/messages?beta=true&api-version=2"
        );
        assert_eq!(filter(&default, "/v1/messages?x=1&betas=1"), "/v1/messages");
        assert_eq!(filter(&default, "/v1/messages"), "/v1/messages");
        let custom = PassOptions { queries: vec!["x".to_owned()], ..PassOptions::default() };
        assert_eq!(filter(&custom, "/v1/messages?y=2&x=1"), "/v1/messages?x=1");
    }
}
