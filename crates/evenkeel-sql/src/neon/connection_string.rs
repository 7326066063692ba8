//! The connection string that Neon's driver sends in a header of each request.
//!
//! Guarantees: no error and no debug output repeats a part of it, because it has a password.

use core::fmt;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::percent;
use http::{HeaderMap, HeaderName};

const NEON_CONNECTION_STRING: HeaderName = HeaderName::from_static("neon-connection-string");
/// Longest accepted connection string.
const BYTES_MAX: usize = 4_096;

/// The parts of a connection string that select a tenant and a datasource; user, host and options select nothing.
#[derive(PartialEq, Eq)]
pub(super) struct ConnectionString {
    /// The tenant's API key.
    pub(super) password: Option<String>,
    /// Name of a datasource, or of the database behind it.
    pub(super) database: Option<String>,
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionString").field("database", &self.database).finish_non_exhaustive()
    }
}

impl ConnectionString {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut values = headers.get_all(NEON_CONNECTION_STRING).iter();
        let value = values.next().ok_or_else(|| ApiError::invalid("Neon-Connection-String is missing"))?;
        if values.next().is_some() {
            return Err(ApiError::invalid("Neon-Connection-String is repeated"));
        }
        let text = value.to_str().map_err(|_| {
            ApiError::invalid("Neon-Connection-String has characters that must be percent-encoded")
        })?;
        Self::parse(text)
    }

    /// Parses `postgresql://user:password@host/database?options`.
    fn parse(text: &str) -> Result<Self, ApiError> {
        if BYTES_MAX < text.len() {
            let message = format!("Neon-Connection-String is longer than {BYTES_MAX} bytes");
            return Err(ApiError::invalid(message));
        }
        let rest = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"));
        let rest = rest.ok_or_else(|| {
            ApiError::invalid("Neon-Connection-String must be postgresql://user:API-KEY@host/database")
        })?;
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let login = authority.rsplit_once('@').map_or("", |(login, _)| login);
        let password = login.split_once(':').map(|(_, password)| decode(password));
        let database = Some(decode(database)).filter(|name| !name.is_empty());
        Ok(Self { password, database })
    }
}

/// Decodes a part of the URL. A percent sign without digits stands for itself, as in the driver's URL parser.
fn decode(part: &str) -> String {
    percent::decode(part).unwrap_or_else(|| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn parsed(text: &str) -> ConnectionString {
        ConnectionString::parse(text).unwrap()
    }

    #[test]
    fn the_password_and_the_database_are_decoded() {
        for (text, password, database) in [
            ("postgresql://u:ek-1@h/main", Some("ek-1"), Some("main")),
            ("postgres://u:p%40%2F%3a@h:5432/my%20db?sslmode=require&x=@/y", Some("p@/:"), Some("my db")),
            ("postgresql://u:a:b@c@h/d#f", Some("a:b@c"), Some("d")),
            ("postgresql://u:50%@h/d", Some("50%"), Some("d")),
            ("postgresql://u@h/d", None, Some("d")),
            ("postgresql://u:@h", Some(""), None),
            ("postgresql://h/", None, None),
        ] {
            let expected = ConnectionString {
                password: password.map(str::to_owned),
                database: database.map(str::to_owned),
            };
            assert!(parsed(text) == expected, "{text}");
        }
    }

    #[test]
    fn neither_errors_nor_debug_output_contain_the_password() {
        for text in ["mysql://u:secret@h/d", "u:secret@h/d", ""] {
            let error = ConnectionString::parse(text).unwrap_err().to_string();
            assert!(error.contains("postgresql://user:API-KEY@host/database"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(!format!("{:?}", parsed("postgresql://u:secret@h/d")).contains("secret"));
    }

    #[test]
    fn the_length_is_limited() {
        let text = |len: usize| format!("{:x<len$}", "postgresql://u:p@h/");
        assert!(ConnectionString::parse(&text(BYTES_MAX)).is_ok());
        assert!(ConnectionString::parse(&text(BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn the_header_occurs_once() {
        let mut headers = HeaderMap::new();
        let from = |headers: &HeaderMap| ConnectionString::from_headers(headers).map_err(|e| e.to_string());
        assert_eq!(from(&headers), Err("Neon-Connection-String is missing".to_owned()));
        headers.append(NEON_CONNECTION_STRING, HeaderValue::from_static("postgres://u:p@h/d"));
        assert!(from(&headers).is_ok());
        headers.append(NEON_CONNECTION_STRING, HeaderValue::from_static("postgres://u:q@h/d"));
        assert_eq!(from(&headers), Err("Neon-Connection-String is repeated".to_owned()));
        headers.insert(NEON_CONNECTION_STRING, HeaderValue::from_bytes(b"postgres://u:\xe9@h/d").unwrap());
        assert!(from(&headers).unwrap_err().contains("percent-encoded"));
    }
}
