//! Settings of a connection, parsed from a URL.
//!
//! No error and no debug output contains the password.

mod url;

use core::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::tls;
use url::UrlParts;

/// Time limit for opening a connection, unless the URL has `connect_timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address, login and TLS mode of a database.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    pub(crate) user: String,
    pub(crate) password: Option<Password>,
    pub(crate) server: ServerAddress,
    pub(crate) database: String,
    pub(crate) encryption: Encryption,
    pub(crate) application_name: String,
    pub(crate) connect_timeout: Duration,
}

/// Address of a server as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Tcp {
        host: String,
        port: u16,
    },
    /// Path of the socket itself.
    Unix(PathBuf),
}

/// Use of TLS; ignored on unix sockets.
#[derive(Clone, Debug)]
pub(crate) enum Encryption {
    Disabled,
    /// Plain if the server does not offer TLS.
    Preferred(Arc<ClientConfig>),
    Required(Arc<ClientConfig>),
}

/// A password that debug output hides.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(pub(crate) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A database URL that is invalid, or names a CA file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid database URL: {reason}")]
pub struct ConnectConfigError {
    pub reason: String,
}

impl ConnectConfigError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl ConnectConfig {
    /// Parses `postgres://user:password@host:port/database?sslmode=…`.
    ///
    /// Options: `sslmode` (`disable`, `prefer`, `require`, `verify-full`; default `prefer`), `sslrootcert` (a PEM file, with
    /// `verify-full`), `application_name`, `connect_timeout` (seconds) and `host` (the directory of a unix socket).
    pub fn parse(url: &str) -> Result<Self, ConnectConfigError> {
        let UrlParts { user, password, host, port, database, options } = UrlParts::parse(url)?;
        let connect_timeout = match &options.connect_timeout {
            None => CONNECT_TIMEOUT,
            Some(seconds) => parse_seconds(seconds)?,
        };
        let host = options.host.clone().unwrap_or(host);
        Ok(Self {
            encryption: encryption(options.sslmode.as_deref(), options.sslrootcert.as_deref())?,
            server: server_address(host, port)?,
            database: database.unwrap_or_else(|| user.clone()),
            user,
            password: password.map(Password),
            application_name: options.application_name.unwrap_or_else(|| "evenkeel".to_owned()),
            connect_timeout,
        })
    }

    pub fn database(&self) -> &str {
        &self.database
    }

    pub fn user(&self) -> &str {
        &self.user
    }
}

impl FromStr for ConnectConfig {
    type Err = ConnectConfigError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        Self::parse(url)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, ConnectConfigError> {
    match text.parse::<u32>() {
        Ok(seconds) if 0 < seconds => Ok(Duration::from_secs(u64::from(seconds))),
        _ => Err(ConnectConfigError::new("connect_timeout is not a positive number of seconds")),
    }
}

fn server_address(host: String, port: u16) -> Result<ServerAddress, ConnectConfigError> {
    if host.is_empty() {
        return Err(ConnectConfigError::new("the host is missing"));
    }
    if host.contains(',') {
        return Err(ConnectConfigError::new("only one host is supported"));
    }
    if host.starts_with('/') {
        return Ok(ServerAddress::Unix(PathBuf::from(host).join(format!(".s.PGSQL.{port}"))));
    }
    Ok(ServerAddress::Tcp { host, port })
}

fn encryption(mode: Option<&str>, ca_file: Option<&str>) -> Result<Encryption, ConnectConfigError> {
    if ca_file.is_some() && mode != Some("verify-full") {
        return Err(ConnectConfigError::new("sslrootcert needs sslmode=verify-full"));
    }
    match mode {
        Some("disable") => Ok(Encryption::Disabled),
        None | Some("prefer") => Ok(Encryption::Preferred(tls::encrypt_only())),
        Some("require") => Ok(Encryption::Required(tls::encrypt_only())),
        Some("verify-full") => match ca_file {
            None => Ok(Encryption::Required(tls::verify_public())),
            Some(file) => tls::verify_file(file.as_ref())
                .map(Encryption::Required)
                .map_err(|error| ConnectConfigError::new(format!("sslrootcert {file:?}: {error}"))),
        },
        Some(other) => Err(ConnectConfigError::new(format!(
            "sslmode {other:?} is not supported; use disable, prefer, require or verify-full"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> ConnectConfig {
        ConnectConfig::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn reason(url: &str) -> String {
        ConnectConfig::parse(url).err().unwrap_or_else(|| panic!("{url} is accepted")).reason
    }

    #[test]
    fn every_part_of_a_url_is_read() {
        let config = parse(
            "postgresql://al%40ice:p%2Fw%3A@db.example:6432/my%20db?sslmode=require&application_name=a%26b&connect_timeout=7",
        );
        assert_eq!(config.user, "al@ice");
        assert_eq!(config.password, Some(Password("p/w:".to_owned())));
        assert_eq!(config.server, ServerAddress::Tcp { host: "db.example".to_owned(), port: 6432 });
        assert_eq!(config.database, "my db");
        assert!(matches!(config.encryption, Encryption::Required(_)));
        assert_eq!(config.application_name, "a&b");
        assert_eq!(config.connect_timeout, Duration::from_secs(7));
    }

    #[test]
    fn missing_parts_have_defaults() {
        let config = parse("postgres://alice@db");
        assert_eq!(config.password, None);
        assert_eq!(config.server.to_string(), "db:5432");
        assert_eq!(config.database, "alice");
        assert!(matches!(config.encryption, Encryption::Preferred(_)));
        assert_eq!(config.application_name, "evenkeel");
        assert_eq!(config.connect_timeout, CONNECT_TIMEOUT);
    }

    #[test]
    fn ipv6_addresses_and_unix_sockets_are_hosts() {
        assert_eq!(parse("postgres://u@[::1]:6432/d").server.to_string(), "[::1]:6432");
        let socket = ServerAddress::Unix(PathBuf::from("/run/pg/.s.PGSQL.6432"));
        assert_eq!(parse("postgres://u@:6432/d?host=/run/pg").server, socket);
        assert_eq!(parse("postgres://u@%2Frun%2Fpg:6432/d").server, socket);
    }

    #[test]
    fn mistakes_are_errors() {
        for (url, expected) in [
            ("mysql://u@h/d", "begin with postgres://"),
            ("postgres://h/d", "user is missing"),
            ("postgres://u@/d", "host is missing"),
            ("postgres://u@a,b/d", "only one host"),
            ("postgres://u@h:99999/d", "port"),
            ("postgres://u@h:x/d", "port"),
            ("postgres://u@[::1/d", "brackets"),
            ("postgres://u@h/d?sslmod=disable", "unknown option \"sslmod\""),
            ("postgres://u@h/d?sslmode=disable&sslmode=require", "\"sslmode\" is repeated"),
            ("postgres://u@h/d?sslmode", "no value"),
            ("postgres://u@h/d?sslmode=verify-ca", "not supported"),
            ("postgres://u@h/d?sslrootcert=/ca.pem", "needs sslmode=verify-full"),
            ("postgres://u@h/d?sslmode=verify-full&sslrootcert=/does/not/exist", "/does/not/exist"),
            ("postgres://u@h/d?connect_timeout=0", "connect_timeout"),
            ("postgres://u%zz@h/d", "percent"),
            ("postgres://u%ff@h/d", "UTF-8"),
            ("postgres://u%00@h/d", "zero byte"),
        ] {
            assert!(reason(url).contains(expected), "{url}: {}", reason(url));
        }
    }

    #[test]
    fn neither_debug_output_nor_errors_contain_the_password() {
        let config = parse("postgres://u:hunter2@h/d");
        assert!(!format!("{config:?}").contains("hunter2"));
        for url in [
            "postgres://u:hunter2@h:x/d",
            "postgres://u:hunter2@h/d?bad=1",
            "postgres://u:hunter2%zz@h/d",
            "postgres://u:a@b?hunter2@h/d",
        ] {
            let error = ConnectConfig::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
