//! URLs of a PostgreSQL server, and SQL through `psql`, so that this crate needs no client library.

use crate::installation::Installation;
use crate::program::{Program, ProgramError, RUN_MAX};
use std::fmt;

const CONNECT_SECONDS_MAX: &str = "10";

/// Address and login of a server: a URL without the database.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    user: String,
    password: String,
    /// `host:port`.
    address: String,
    /// Empty, or begins with `?`.
    query: String,
}

/// A text that is no URL of a server. The text is not shown, because it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a URL such as postgres://user:password@host:port/database")]
pub struct ServerUrlError;

impl ServerUrl {
    pub(crate) fn new(user: &str, password: &str, address: &str) -> Self {
        Self {
            user: user.to_owned(),
            password: password.to_owned(),
            address: address.to_owned(),
            query: String::new(),
        }
    }

    /// Parses a URL with a user name; its database is ignored.
    pub fn parse(url: &str) -> Result<Self, ServerUrlError> {
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
        let rest = &url[scheme.ok_or(ServerUrlError)?.len()..];
        let query_start = rest.find('?').unwrap_or(rest.len());
        let authority = rest[..query_start].split('/').next().unwrap_or("");
        let (login, address) = authority.rsplit_once('@').ok_or(ServerUrlError)?;
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if user.is_empty() || address.is_empty() {
            return Err(ServerUrlError);
        }
        Ok(Self {
            user: percent_decode(user).ok_or(ServerUrlError)?,
            password: percent_decode(password).ok_or(ServerUrlError)?,
            address: address.to_owned(),
            query: rest[query_start..].to_owned(),
        })
    }

    /// Returns the URL of a database, with user name and password.
    pub fn url(&self, database: &str) -> String {
        self.url_as(database, &self.user, &self.password)
    }

    /// Returns the URL of a database for another user.
    pub fn url_as(&self, database: &str, user: &str, password: &str) -> String {
        let login = format!("{}:{}", percent_encode(user), percent_encode(password));
        format!("postgres://{login}@{}/{}{}", self.address, percent_encode(database), self.query)
    }

    /// Runs SQL statements and returns their rows: a line each, columns separated by `|`.
    ///
    /// Stops at the first statement that fails; the earlier ones are committed. Limit: 60 s.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, ProgramError> {
        let program = Installation::find()
            .map_or_else(|| Program::new("psql"), |installation| installation.program("psql"));
        let user = percent_encode(&self.user);
        let database = percent_encode(database);
        program
            .args(["-XAtqw", "-v", "ON_ERROR_STOP=1", "-f", "-"])
            .args([format!("postgres://{user}@{}/{database}{}", self.address, self.query)])
            .env("PGPASSWORD", &self.password)
            .env("PGCONNECT_TIMEOUT", CONNECT_SECONDS_MAX)
            .run_within(sql, RUN_MAX)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl(postgres://{}:…@{})", self.user, self.address)
    }
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut pieces = text.split('%');
    bytes.extend(pieces.next()?.bytes());
    for piece in pieces {
        let digits = piece.get(..2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(piece[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_url_gives_urls_of_other_databases() {
        let server =
            ServerUrl::parse("postgresql://al%40ice:s%3Acret@db.test:5433/first?sslmode=require").unwrap();
        assert_eq!(server.url("second"), "postgres://al%40ice:s%3Acret@db.test:5433/second?sslmode=require");
        assert_eq!(server.url_as("c", "bob", "x/y"), "postgres://bob:x%2Fy@db.test:5433/c?sslmode=require");
        assert_eq!(server.password, "s:cret");
    }

    #[test]
    fn texts_that_are_no_url_of_a_server_are_rejected() {
        for bad in [
            "",
            "mysql://a@b/c",
            "postgres://host/db",
            "postgres://@host",
            "postgres://a@",
            "postgres://%4@b",
        ] {
            assert_eq!(ServerUrl::parse(bad), Err(ServerUrlError), "{bad}");
        }
    }

    #[test]
    fn debug_output_omits_the_password() {
        let server = ServerUrl::parse("postgres://alice:hidden@host/db").unwrap();
        assert!(!format!("{server:?}").contains("hidden"));
    }
}
