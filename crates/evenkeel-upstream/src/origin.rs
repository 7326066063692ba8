//! Origin of a node: scheme, host, port, the base path of its API, and the link that leads to it.

use core::fmt;
use std::sync::Arc;

use http::uri::Scheme;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;

use crate::link_local::{LinkLocalError, LinkLocalPolicy, literal};

/// Scheme, host, port and base path, as in `http://host:port/base`, and the link that leads to it. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Origin {
    url: Arc<Inner>,
    link: Option<Arc<str>>,
}

#[derive(Debug)]
struct Inner {
    /// Key of the connection pool.
    authority: Arc<str>,
    host: String,
    port: u16,
    name: Option<ServerName<'static>>,
    header: HeaderValue,
    base: String,
}

impl Origin {
    /// Parses a URL.
    ///
    /// A trailing `/v1`, as in the base URLs of clients, is dropped, because request paths contain it.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        if url.contains('#') {
            return Err(UrlError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| UrlError::Syntax)?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(UrlError::Scheme),
        };
        let authority = uri.authority().ok_or(UrlError::Host)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        if uri.query().is_some() {
            return Err(UrlError::Query);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        // The `http` crate parses `host:` and `host:99999` as authorities without a port.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            _ => authority.port_u16().filter(|&port| port > 0).ok_or(UrlError::Port)?,
        };
        let name =
            if tls { Some(ServerName::try_from(host.clone()).map_err(|_| UrlError::Host)?) } else { None };
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| UrlError::Host)?;
        let path = uri.path().trim_end_matches('/');
        let base = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let scheme = if tls { "https" } else { "http" };
        let authority = Arc::from(format!("{scheme}://{host}:{port}"));
        Ok(Self { url: Arc::new(Inner { authority, host, port, name, header, base }), link: None })
    }

    /// Returns the origin as the other side of a link reaches it; the name is looked up for every request.
    #[must_use]
    pub fn over_link(self, name: &str) -> Self {
        Self { link: Some(name.into()), ..self }
    }

    /// Returns scheme, host and port, as in `https://host:443`.
    pub fn authority(&self) -> &str {
        &self.url.authority
    }

    /// Returns the base path; empty for most nodes.
    pub fn base(&self) -> &str {
        &self.url.base
    }

    /// Rejects a host that is the literal of a link-local or metadata address. A name is checked when it is resolved.
    pub fn check_literal(&self, policy: LinkLocalPolicy) -> Result<(), LinkLocalError> {
        literal(&self.url.host).map_or(Ok(()), |address| policy.check(address))
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.url.authority
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.url.host, self.url.port)
    }

    /// Returns the name of the link that leads to the origin; `None` if it is reached directly.
    pub(super) fn link(&self) -> Option<&str> {
        self.link.as_deref()
    }

    /// Returns host and port as the other side of a link connects to them.
    pub(super) fn link_target(&self) -> String {
        let (host, port) = self.address();
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Returns the name that the certificate must be valid for; `None` without TLS.
    pub(super) fn tls_name(&self) -> Option<&ServerName<'static>> {
        self.url.name.as_ref()
    }

    /// Returns the `Host` header of requests.
    pub(super) fn host_header(&self) -> &HeaderValue {
        &self.url.header
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.url.authority, self.url.base)
    }
}

/// An invalid URL of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("not a URL")]
    Syntax,
    #[error("URL begins with neither http:// nor https://")]
    Scheme,
    #[error("URL names no host")]
    Host,
    #[error("URL's port is not between 1 and 65535")]
    Port,
    #[error("URL carries credentials; a node's key is its api_key")]
    Credentials,
    #[error("URL carries a query")]
    Query,
    #[error("URL carries a fragment")]
    Fragment,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn connections_are_shared_by_scheme_host_and_port() {
        assert_eq!(origin("http://Engine").authority(), "http://engine:80");
        assert_eq!(origin("http://engine:80/base/").authority(), "http://engine:80");
        assert_eq!(origin("https://engine").authority(), "https://engine:443");
        assert_eq!(origin("http://[::1]:8000").address(), ("::1", 8000));
        assert_eq!(origin("http://[::1]:8000").host_header(), "[::1]:8000");
    }

    #[test]
    fn the_target_of_a_link_is_host_and_port() {
        assert_eq!(origin("http://[::1]:8000/v1").over_link("b").link_target(), "[::1]:8000");
        assert_eq!(origin("https://Engine").over_link("b").link_target(), "engine:443");
        assert_eq!((origin("http://a").link(), origin("http://a").over_link("b").link()), (None, Some("b")));
    }

    #[test]
    fn the_literal_of_a_link_local_address_is_refused_and_a_name_is_not() {
        let check = |url: &str| origin(url).check_literal(LinkLocalPolicy::Refuse).is_ok();
        for url in [
            "http://169.254.169.254",
            "https://[fe80::1]:8000/v1",
            "http://0xA9FEA9FE/",
            "http://2852039166:80",
        ] {
            assert!(!check(url), "{url}");
        }
        for url in ["http://127.0.0.1", "http://metadata.google.internal", "http://[::1]"] {
            assert!(check(url), "{url}");
        }
    }

    #[test]
    fn a_trailing_v1_is_dropped() {
        assert_eq!(origin("http://engine/v1").base(), "");
        assert_eq!(origin("http://engine/v1/").base(), "");
        assert_eq!(origin("https://engine/openai/v1").to_string(), "https://engine:443/openai");
        assert_eq!(origin("http://engine/v10").base(), "/v10");
    }

    #[test]
    fn an_invalid_url_is_rejected() {
        let parse = |url| Origin::parse(url).map(|origin| origin.to_string());
        assert_eq!(parse("engine:8000"), Err(UrlError::Scheme));
        assert_eq!(parse("ftp://engine"), Err(UrlError::Scheme));
        assert_eq!(parse("/v1"), Err(UrlError::Scheme));
        assert_eq!(parse("http://"), Err(UrlError::Syntax));
        assert_eq!(parse("http://a b"), Err(UrlError::Syntax));
        assert_eq!(parse("http://engine:0"), Err(UrlError::Port));
        assert_eq!(parse("http://engine:"), Err(UrlError::Port));
        assert_eq!(parse("http://engine:99999"), Err(UrlError::Port));
        assert_eq!(parse("http://me:secret@engine"), Err(UrlError::Credentials));
        assert_eq!(parse("http://engine/?key=1"), Err(UrlError::Query));
        assert_eq!(parse("http://engine/#top"), Err(UrlError::Fragment));
    }
}
