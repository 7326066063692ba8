//! Protection against web pages and proxies: a browser sends a page's requests to any server that its user can reach,
//! also to one on loopback, and a proxy on this machine makes remote clients look local.
//!
//! Guarantees: a checked request names this server in `Host` as an IP address, as `localhost`, or as a configured host,
//! which a page cannot choose (DNS rebinding); its `Origin`, if any, is that host or a configured origin (cross-site
//! request forgery).

use core::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_TYPE, FORWARDED, HOST, ORIGIN, VIA};
use http::{HeaderMap, HeaderName, Uri};

use crate::api_error::ApiError;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const LOCALHOST: &str = "localhost";

/// Names of this server, and the sites whose pages may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedSites {
    /// Host names without port, in lower case.
    pub hosts: Vec<String>,
    /// Origins of web pages, such as `https://console.example`, in lower case.
    pub origins: Vec<String>,
}

impl TrustedSites {
    /// Rejects a request that a web page of another site may have sent.
    pub(crate) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        // HTTP/2 sends the host as part of the URI.
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => headers.get(HOST).and_then(|host| host.to_str().ok()),
        };
        let host = host.ok_or_else(|| ApiError::invalid("the request has no Host header"))?;
        if !self.is_trusted_host(host) {
            return Err(ApiError::UnknownHost { host: host.to_owned() });
        }
        self.check_origin(headers, host)
    }

    fn is_trusted_host(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        let is_local = name == LOCALHOST || name.ends_with(".localhost");
        bare.parse::<IpAddr>().is_ok() || is_local || self.hosts.contains(&name)
    }

    fn check_origin(&self, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
        let Some(origin) = headers.get(ORIGIN) else {
            // Browsers omit Origin from some requests without a body, such as links, but not this header.
            return match headers.get(SEC_FETCH_SITE) {
                Some(site) if site == "cross-site" => Err(ApiError::ForeignOrigin),
                _ => Ok(()),
            };
        };
        let origin = origin.to_str().map_err(|_| ApiError::ForeignOrigin)?.to_ascii_lowercase();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_same = authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
        if is_same || self.origins.contains(&origin) { Ok(()) } else { Err(ApiError::ForeignOrigin) }
    }
}

/// Returns a host without its port; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Reports whether a path belongs to the native API, which administers the gateway.
pub(crate) fn is_api(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Reports whether a request comes from a client on this machine, without a proxy in between.
pub(crate) fn is_local(headers: &HeaderMap, peer: SocketAddr) -> bool {
    let is_forwarded = [FORWARDED, VIA, X_FORWARDED_FOR].iter().any(|name| headers.contains_key(name));
    peer.ip().to_canonical().is_loopback() && !is_forwarded
}

/// Rejects a body that is not declared as JSON. A page can send other types to a foreign site without its consent.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(ApiError::NotJson) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn check(fields: &[(&'static str, &str)]) -> Result<(), ApiError> {
        let hosts = vec!["llm.example".to_owned()];
        let origins = vec!["https://console.example".to_owned()];
        TrustedSites { hosts, origins }.check(&headers(fields), &Uri::from_static("/api/nodes"))
    }

    #[test]
    fn only_addresses_localhost_and_configured_names_are_trusted_hosts() {
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "a.localhost",
            "127.0.0.1:7070",
            "10.0.0.7",
            "[::1]:7070",
            "[::1]",
            "llm.example",
            "LLM.example:7070",
        ] {
            assert_eq!(check(&[("host", host)]), Ok(()), "{host}");
        }
        for host in
            ["evil.example:7070", "127.0.0.1.evil.example", "[evil]", "xlocalhost", "", "localhost.", "a"]
        {
            assert_eq!(check(&[("host", host)]), Err(ApiError::UnknownHost { host: host.to_owned() }));
        }
        assert!(matches!(check(&[]), Err(ApiError::Invalid { .. })));
    }

    #[test]
    fn the_authority_of_http2_is_the_host() {
        let sites = TrustedSites::default();
        let uri = Uri::from_static("http://evil.example/api/nodes");
        assert!(sites.check(&headers(&[("host", "localhost")]), &uri).is_err());
        assert!(sites.check(&headers(&[]), &Uri::from_static("http://127.0.0.1:1/api/nodes")).is_ok());
    }

    #[test]
    fn a_page_of_another_origin_is_rejected() {
        for origin in [
            "https://evil.example",
            "null",
            "http://127.0.0.1:8080",
            "http://127.0.0.1",
            "127.0.0.1:7070",
            "",
        ] {
            let rejected = check(&[("host", "127.0.0.1:7070"), ("origin", origin)]);
            assert_eq!(rejected, Err(ApiError::ForeignOrigin), "{origin:?}");
        }
        for origin in ["http://127.0.0.1:7070", "https://127.0.0.1:7070", "https://Console.example"] {
            assert_eq!(check(&[("host", "127.0.0.1:7070"), ("origin", origin)]), Ok(()), "{origin}");
        }
    }

    #[test]
    fn a_browsers_cross_site_request_without_an_origin_is_rejected() {
        let with = |site: &str| check(&[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!(with("cross-site"), Err(ApiError::ForeignOrigin));
        assert_eq!((with("same-origin"), with("none")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_forwarded_request_is_not_local() {
        let local = "127.0.0.1:1".parse().unwrap();
        assert!(is_local(&headers(&[]), local));
        assert!(is_local(&headers(&[]), "[::ffff:127.0.0.1]:1".parse().unwrap()));
        assert!(!is_local(&headers(&[]), "192.0.2.1:1".parse().unwrap()));
        for name in ["forwarded", "via", "x-forwarded-for"] {
            assert!(!is_local(&headers(&[(name, "192.0.2.1")]), local), "{name}");
        }
    }

    #[test]
    fn only_json_bodies_are_accepted() {
        for value in ["application/json", "Application/JSON; charset=utf-8"] {
            assert_eq!(check_json(&headers(&[("content-type", value)])), Ok(()), "{value}");
        }
        for value in ["text/plain", "text/plain; application/json", "application/jsonx", ""] {
            let rejected = check_json(&headers(&[("content-type", value)]));
            assert_eq!(rejected, Err(ApiError::NotJson), "{value}");
        }
        assert_eq!(check_json(&headers(&[])), Err(ApiError::NotJson));
    }
}
