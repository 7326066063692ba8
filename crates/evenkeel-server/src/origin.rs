//! Protection of local servers against web pages: a browser sends a page's requests to any server that its user can
//! reach, also to one on loopback.
//!
//! Guarantees: a request with an `Origin` that differs from its `Host` is rejected (cross-site request forgery). In open
//! mode, where no key is needed, `Host` must be an IP address or `localhost`, which a page cannot choose (DNS rebinding).

use core::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

use crate::api_error::ApiError;

/// Credentials that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The request carries an API key, which a foreign page does not know.
    ApiKey,
    /// Anyone who reaches the server is served (open mode).
    None,
}

/// Rejects a request that a web page of another origin sent.
pub fn check_origin(headers: &HeaderMap, uri: &Uri, protection: Protection) -> Result<(), ApiError> {
    // HTTP/2 sends the host as part of the URI.
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    if let Some(origin) = headers.get(ORIGIN) {
        let origin = origin.to_str().map_err(|_| ApiError::ForeignOrigin)?;
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        if authority.is_none() || authority != host {
            return Err(ApiError::ForeignOrigin);
        }
    }
    if protection == Protection::None && host.is_some_and(|host| !is_local_name(host)) {
        return Err(ApiError::ForeignOrigin);
    }
    Ok(())
}

/// Accepts `localhost` and IP addresses, with or without a port.
fn is_local_name(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn check(host: &str, origin: Option<&str>, protection: Protection) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check_origin(&headers, &Uri::from_static("/query"), protection).is_ok()
    }

    #[test]
    fn a_page_of_another_origin_is_rejected() {
        for origin in ["https://evil.example", "null", "http://127.0.0.1:8080", "http://127.0.0.1"] {
            assert!(!check("127.0.0.1:7070", Some(origin), Protection::ApiKey), "{origin}");
        }
        assert!(check("127.0.0.1:7070", Some("http://127.0.0.1:7070"), Protection::ApiKey));
        assert!(check("127.0.0.1:7070", None, Protection::ApiKey));
    }

    #[test]
    fn open_mode_accepts_only_local_names() {
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:7070", "[::1]:7070", "[::1]"] {
            assert!(check(host, None, Protection::None), "{host}");
        }
        for host in ["evil.example:7070", "127.0.0.1.evil.example", "[evil]"] {
            assert!(!check(host, None, Protection::None), "{host}");
            assert!(check(host, None, Protection::ApiKey), "{host}");
        }
    }
}
