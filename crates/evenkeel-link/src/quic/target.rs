//! Ways to the peer as they are configured: `[interface or local address=]remote address`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use tokio::time::timeout;

use super::config::HANDSHAKE_TIMEOUT;
use super::error::ConnectError;

/// Longest interface name that Linux allows.
const INTERFACE_LEN_MAX: usize = 15;
/// Longest host name that DNS allows.
const HOST_LEN_MAX: usize = 253;

/// Path to the peer: how packets leave, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTarget {
    /// Selects the way out.
    pub binding: PathBinding,
    /// Address of the peer.
    pub remote: RemoteAddress,
}

/// Way out of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathBinding {
    /// The routing table decides.
    Any,
    /// Packets leave through the interface of this name.
    Interface(String),
    /// Packets carry this source address; the routing table decides through which interface they leave.
    Local(IpAddr),
}

/// Address of the peer; a name is resolved at every connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteAddress {
    /// An IP address and a port.
    Socket(SocketAddr),
    /// A host name and a port.
    Name {
        /// Name, resolved by the system.
        host: String,
        /// UDP port.
        port: u16,
    },
}

impl PathBinding {
    /// Returns a text to be logged once if the binding alone does not select an interface.
    pub fn warning(&self) -> Option<String> {
        let Self::Local(address) = self else { return None };
        Some(format!(
            "local address {address} selects no interface: packets leave by the first matching route; \
             name the interface instead, or add a rule that routes by source address"
        ))
    }
}

impl FromStr for PathTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (binding, remote) = match text.split_once('=') {
            Some((binding, remote)) => (parse_binding(binding)?, remote),
            None => (PathBinding::Any, text),
        };
        let target = Self { binding, remote: remote.parse()? };
        match &target {
            Self { binding: PathBinding::Local(local), remote: RemoteAddress::Socket(remote) }
                if local.is_ipv4() != remote.is_ipv4() =>
            {
                Err(TargetError::FamiliesDiffer { local: *local, remote: *remote })
            }
            _ => Ok(target),
        }
    }
}

fn parse_binding(text: &str) -> Result<PathBinding, TargetError> {
    if let Ok(address) = without_brackets(text).parse() {
        return Ok(PathBinding::Local(address));
    }
    let is_name = (1..=INTERFACE_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:[]".contains(&byte))
        && text != "."
        && text != "..";
    if !is_name {
        return Err(TargetError::Binding { text: text.to_owned() });
    }
    Ok(PathBinding::Interface(text.to_owned()))
}

fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text)
}

impl FromStr for RemoteAddress {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let owned = || text.to_owned();
        if text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
            return Err(TargetError::Brackets { text: owned() });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| TargetError::NoPort { text: owned() })?;
        let port: u16 = port.parse().map_err(|_| TargetError::Port { text: owned() })?;
        if port == 0 {
            return Err(TargetError::Port { text: owned() });
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Socket(address));
        }
        if host.contains(':') {
            return Err(TargetError::Brackets { text: owned() });
        }
        let is_host = (1..=HOST_LEN_MAX).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        // The last label of a name is never a number, so that a mistyped address is not looked up.
        let is_number =
            host.rsplit('.').next().is_some_and(|label| label.bytes().all(|b| b.is_ascii_digit()));
        if !is_host || is_number {
            return Err(TargetError::Host { text: owned() });
        }
        Ok(Self::Name { host: host.to_owned(), port })
    }
}

impl RemoteAddress {
    /// Returns the current addresses; a name is looked up.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let (host, port) = match self {
            Self::Socket(address) => return Ok(vec![*address]),
            Self::Name { host, port } => (host.as_str(), *port),
        };
        let lookup = timeout(HANDSHAKE_TIMEOUT, tokio::net::lookup_host((host, port))).await;
        let found = lookup
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(|source| ConnectError::Resolve { host: host.to_owned(), source })?;
        Ok(found.collect())
    }
}

impl fmt::Display for PathTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.binding {
            PathBinding::Any => {}
            PathBinding::Interface(name) => write!(f, "{name}=")?,
            PathBinding::Local(address) => write!(f, "{address}=")?,
        }
        self.remote.fmt(f)
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Error for a text that is not a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The part before `=` is neither an interface name nor an IP address.
    #[error("{text:?} is neither an interface name nor an IP address (expected wan0=198.51.100.7:7443)")]
    Binding {
        /// The rejected part.
        text: String,
    },
    /// The remote address has no port.
    #[error("{text:?} has no port (expected 198.51.100.7:7443)")]
    NoPort {
        /// The rejected part.
        text: String,
    },
    /// The port is not a number from 1 to 65535.
    #[error("the port of {text:?} is not a number from 1 to 65535")]
    Port {
        /// The rejected part.
        text: String,
    },
    /// An IPv6 address is not in brackets.
    #[error(
        "the IPv6 address of {text:?} must be in brackets, followed by a port (expected [2001:db8::7]:7443)"
    )]
    Brackets {
        /// The rejected part.
        text: String,
    },
    /// The remote host is neither a name nor an IP address.
    #[error("{text:?} starts with neither a host name nor an IP address")]
    Host {
        /// The rejected part.
        text: String,
    },
    /// One address is IPv4, the other IPv6.
    #[error("{local} cannot reach {remote}: one is IPv4, the other IPv6")]
    FamiliesDiffer {
        /// Local address.
        local: IpAddr,
        /// Remote address.
        remote: SocketAddr,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_an_optional_way_out_and_a_remote_address() {
        for (text, binding) in [
            ("198.51.100.7:7443", PathBinding::Any),
            ("wan0=198.51.100.7:7443", PathBinding::Interface("wan0".to_owned())),
            ("eth0.100@if2=198.51.100.7:7443", PathBinding::Interface("eth0.100@if2".to_owned())),
            ("192.0.2.1=198.51.100.7:7443", PathBinding::Local("192.0.2.1".parse().unwrap())),
        ] {
            let remote = RemoteAddress::Socket("198.51.100.7:7443".parse().unwrap());
            assert_eq!(text.parse(), Ok(PathTarget { binding, remote }));
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn ipv6_addresses_are_in_brackets() {
        let path = parse("[2001:db8::1]=[2001:db8::7]:7443").unwrap();
        assert_eq!(path.binding, PathBinding::Local("2001:db8::1".parse().unwrap()));
        assert_eq!(path.remote, RemoteAddress::Socket("[2001:db8::7]:7443".parse().unwrap()));
        assert_eq!(parse(&path.to_string()), Ok(path));
        for text in ["2001:db8::7", "2001:db8::7:7443", "2001:db8:0:0:0:0:0:7:7443"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("must be in brackets"), "{error}");
        }
    }

    #[test]
    fn a_host_name_is_kept_for_later() {
        let path = parse("wan0=site-b.example:7443").unwrap();
        assert_eq!(path.remote, RemoteAddress::Name { host: "site-b.example".to_owned(), port: 7443 });
    }

    #[test]
    fn errors_show_the_wrong_part() {
        for (text, error) in [
            ("wan0=198.51.100.7", "\"198.51.100.7\" has no port (expected 198.51.100.7:7443)"),
            ("wan0=", "\"\" has no port (expected 198.51.100.7:7443)"),
            ("198.51.100.7:0", "the port of \"198.51.100.7:0\" is not a number from 1 to 65535"),
            ("198.51.100.7:65536", "the port of \"198.51.100.7:65536\" is not a number from 1 to 65535"),
            (
                "198.51.100.700:7443",
                "\"198.51.100.700:7443\" starts with neither a host name nor an IP address",
            ),
            (":7443", "\":7443\" starts with neither a host name nor an IP address"),
            ("a b:7443", "\"a b:7443\" starts with neither a host name nor an IP address"),
            (
                "a/b=h:1",
                "\"a/b\" is neither an interface name nor an IP address (expected wan0=198.51.100.7:7443)",
            ),
            ("=h:1", "\"\" is neither an interface name nor an IP address (expected wan0=198.51.100.7:7443)"),
            ("192.0.2.1=[::1]:1", "192.0.2.1 cannot reach [::1]:1: one is IPv4, the other IPv6"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), error);
        }
        assert!(parse("interface-16-len=h:1").is_err());
    }

    #[test]
    fn only_a_local_address_alone_brings_a_warning() {
        assert_eq!(parse("h:1").unwrap().binding.warning(), None);
        assert_eq!(parse("wan0=h:1").unwrap().binding.warning(), None);
        let warning = parse("192.0.2.1=h:1").unwrap().binding.warning().unwrap();
        assert!(warning.contains("local address 192.0.2.1 selects no interface"), "{warning}");
    }

    fn parse(text: &str) -> Result<PathTarget, TargetError> {
        text.parse()
    }
}
