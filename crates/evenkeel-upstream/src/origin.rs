//! Where a node listens: scheme, host, port, and the path in front of its API.

use core::fmt;
use std::sync::Arc;

use http::uri::Scheme;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;

/// Where a node listens, as `http://host:port/base` or `https://…`; cheap to clone.
#[derive(Clone, Debug)]
pub struct Origin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Names the host among others: what connections are shared by.
    authority: Arc<str>,
    host: String,
    port: u16,
    name: Option<ServerName<'static>>,
    header: HeaderValue,
    base: String,
}

impl Origin {
    /// Reads a URL.
    ///
    /// A path that ends in `/v1`, as clients' base URLs do, stands for the path in front of it: requests name `/v1`
    /// themselves.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        if url.contains('#') {
            return Err(BadUrl::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| BadUrl::Syntax)?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(BadUrl::Scheme),
        };
        let authority = uri.authority().ok_or(BadUrl::Host)?;
        if authority.as_str().contains('@') {
            return Err(BadUrl::Credentials);
        }
        if uri.query().is_some() {
            return Err(BadUrl::Query);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if host.is_empty() {
            return Err(BadUrl::Host);
        }
        // `http` takes `host:` and `host:99999` for an authority without a port.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            _ => authority.port_u16().filter(|&port| 0 < port).ok_or(BadUrl::Port)?,
        };
        let name =
            if tls { Some(ServerName::try_from(host.clone()).map_err(|_| BadUrl::Host)?) } else { None };
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| BadUrl::Host)?;
        let path = uri.path().trim_end_matches('/');
        let base = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let scheme = if tls { "https" } else { "http" };
        let authority = Arc::from(format!("{scheme}://{host}:{port}"));
        Ok(Self(Arc::new(Inner { authority, host, port, name, header, base })))
    }

    /// Names scheme, host and port, as `https://host:443`.
    pub fn authority(&self) -> &str {
        &self.0.authority
    }

    /// Names the path in front of the node's API; empty for most.
    pub fn base(&self) -> &str {
        &self.0.base
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.0.authority
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.0.host, self.0.port)
    }

    /// Names who a certificate must be for; `None` for a host without TLS.
    pub(super) fn tls_name(&self) -> Option<&ServerName<'static>> {
        self.0.name.as_ref()
    }

    /// What requests name as their host.
    pub(super) fn host_header(&self) -> &HeaderValue {
        &self.0.header
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0.authority, self.0.base)
    }
}

/// A URL that is nobody's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadUrl {
    /// It is no URL.
    Syntax,
    /// It begins with neither `http://` nor `https://`.
    Scheme,
    /// It names no host, or one that cannot be.
    Host,
    /// Its port is none.
    Port,
    /// It carries a user or a password.
    Credentials,
    /// It carries a query.
    Query,
    /// It carries a fragment.
    Fragment,
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "not a URL",
            Self::Scheme => "URL begins with neither http:// nor https://",
            Self::Host => "URL names no host",
            Self::Port => "URL's port is not between 1 and 65535",
            Self::Credentials => "URL carries credentials; a node's key is its api_key",
            Self::Query => "URL carries a query",
            Self::Fragment => "URL carries a fragment",
        })
    }
}

impl core::error::Error for BadUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn hosts_are_told_apart_by_scheme_name_and_port_only() {
        assert_eq!(origin("http://Engine").authority(), "http://engine:80");
        assert_eq!(origin("http://engine:80/base/").authority(), "http://engine:80");
        assert_eq!(origin("https://engine").authority(), "https://engine:443");
        assert_eq!(origin("http://[::1]:8000").address(), ("::1", 8000));
        assert_eq!(origin("http://[::1]:8000").host_header(), "[::1]:8000");
    }

    #[test]
    fn a_base_url_as_clients_have_it_asks_for_v1_once() {
        assert_eq!(origin("http://engine/v1").base(), "");
        assert_eq!(origin("http://engine/v1/").base(), "");
        assert_eq!(origin("https://engine/openai/v1").to_string(), "https://engine:443/openai");
        assert_eq!(origin("http://engine/v10").base(), "/v10");
    }

    #[test]
    fn what_is_nobodys_address_is_refused() {
        let refused = |url| Origin::parse(url).map(|origin| origin.to_string());
        assert_eq!(refused("engine:8000"), Err(BadUrl::Scheme));
        assert_eq!(refused("ftp://engine"), Err(BadUrl::Scheme));
        assert_eq!(refused("/v1"), Err(BadUrl::Scheme));
        assert_eq!(refused("http://"), Err(BadUrl::Syntax));
        assert_eq!(refused("http://a b"), Err(BadUrl::Syntax));
        assert_eq!(refused("http://engine:0"), Err(BadUrl::Port));
        assert_eq!(refused("http://engine:"), Err(BadUrl::Port));
        assert_eq!(refused("http://engine:99999"), Err(BadUrl::Port));
        assert_eq!(refused("http://me:secret@engine"), Err(BadUrl::Credentials));
        assert_eq!(refused("http://engine/?key=1"), Err(BadUrl::Query));
        assert_eq!(refused("http://engine/#top"), Err(BadUrl::Fragment));
    }
}
