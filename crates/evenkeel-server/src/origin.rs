//! Protection against cross-site requests and DNS rebinding; detection of local clients.
//!
//! Guarantees for a checked request: `Host` is an IP address, `localhost`, a name under `.localhost`, or a configured
//! host; an attacker cannot make DNS resolve those to this server. `Origin`, if present, has the same host and port
//! (either scheme), or is a configured origin. `Sec-Fetch-Site`, if present, is `same-origin` or `none`, unless the
//! origin is configured.
//!
//! A client is local if its address is loopback and no header shows a proxy; a proxy that adds none is not detected.

use core::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_TYPE, FORWARDED, HOST, ORIGIN, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

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
        let named = headers.get(HOST);
        // HTTP/2 and the absolute form of HTTP/1.1 send the host as part of the URI.
        let host = match uri.authority() {
            Some(authority) => {
                let is_same =
                    |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
                if !named.is_none_or(is_same) {
                    return Err(ApiError::invalid("the Host header differs from the host of the URI"));
                }
                Some(authority.as_str())
            }
            None => named.and_then(|host| host.to_str().ok()),
        };
        let host = host.ok_or_else(|| ApiError::invalid("the request has no Host header"))?;
        if !self.is_trusted_host(host) {
            return Err(ApiError::UnknownHost { host: host.to_owned() });
        }
        self.check_origin(headers, host)
    }

    /// Reports whether pages of this origin may use the server.
    pub(crate) fn is_trusted_origin(&self, origin: &HeaderValue) -> bool {
        origin.to_str().is_ok_and(|origin| self.origins.contains(&origin.to_ascii_lowercase()))
    }

    fn is_trusted_host(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let name = name.to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        let is_local = name == LOCALHOST || name.ends_with(".localhost");
        bare.parse::<IpAddr>().is_ok() || is_local || self.hosts.contains(&name)
    }

    fn check_origin(&self, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
        let is_own_site = |site: &HeaderValue| site == "same-origin" || site == "none";
        // Browsers send no `Origin` with links and images. To HTTPS and localhost they send `Sec-Fetch-Site` instead.
        let is_own = headers.get_all(SEC_FETCH_SITE).iter().all(is_own_site);
        let Some(origin) = headers.get(ORIGIN) else {
            return if is_own { Ok(()) } else { Err(ApiError::ForeignOrigin) };
        };
        let origin = origin.to_str().map_err(|_| ApiError::ForeignOrigin)?.to_ascii_lowercase();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_same = is_own && authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
        if is_same || self.origins.contains(&origin) { Ok(()) } else { Err(ApiError::ForeignOrigin) }
    }
}

/// Returns a host without its port, or `None` if the port is not a number; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
            is_number.then_some(name)
        }
        _ => Some(host),
    }
}

/// Reports whether a path belongs to the native API (`/api`).
pub(crate) fn is_api(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Reports whether the peer is on loopback and the request has no `Forwarded`, `Via` or `X-Forwarded-For` header.
///
/// A proxy that adds none of them is not detected.
pub(crate) fn is_local(headers: &HeaderMap, peer: SocketAddr) -> bool {
    let is_forwarded = [FORWARDED, VIA, X_FORWARDED_FOR].iter().any(|name| headers.contains_key(name));
    peer.ip().to_canonical().is_loopback() && !is_forwarded
}

/// Rejects a body that is not declared as JSON.
///
/// A browser sends `text/plain` and form bodies across sites without a CORS preflight; JSON needs one.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(ApiError::NotJson) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for host in [
            "evil.example:7070",
            "127.0.0.1.evil.example",
            "[evil]",
            "xlocalhost",
            "",
            "localhost.",
            "a",
            "localhost:x",
            "127.0.0.1:",
            "[::1]:+1",
            "localhost:65536",
        ] {
            assert_eq!(check(&[("host", host)]), Err(ApiError::UnknownHost { host: host.to_owned() }));
        }
        assert!(matches!(check(&[]), Err(ApiError::Invalid { .. })));
    }

    #[test]
    fn the_authority_of_http2_is_the_host() {
        let sites = TrustedSites::default();
        let uri = Uri::from_static("http://evil.example/api/nodes");
        assert!(sites.check(&headers(&[("host", "localhost")]), &uri).is_err());
        let uri = Uri::from_static("http://127.0.0.1:1/api/nodes");
        assert!(sites.check(&headers(&[]), &uri).is_ok());
        assert!(sites.check(&headers(&[("host", "127.0.0.1:1")]), &uri).is_ok());
        let differs = sites.check(&headers(&[("host", "localhost:1")]), &uri);
        assert!(matches!(differs, Err(ApiError::Invalid { .. })), "{differs:?}");
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
        for site in ["cross-site", "same-site", "", "Same-Origin"] {
            assert_eq!(with(site), Err(ApiError::ForeignOrigin), "{site:?}");
        }
        assert_eq!((with("same-origin"), with("none")), (Ok(()), Ok(())));
        let from = |origin: &str| {
            check(&[("host", "localhost"), ("origin", origin), ("sec-fetch-site", "same-site")])
        };
        assert_eq!(from("http://localhost"), Err(ApiError::ForeignOrigin));
        assert_eq!(from("https://console.example"), Ok(()), "a configured origin");
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
