//! Syntax of database URLs.

use super::ConnectConfigError;

const PORT: u16 = 5432;

/// A URL, split and percent-decoded.
pub(super) struct UrlParts {
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: Option<String>,
    pub(super) options: UrlOptions,
}

/// The query of a URL.
#[derive(Default)]
pub(super) struct UrlOptions {
    pub(super) host: Option<String>,
    pub(super) sslmode: Option<String>,
    pub(super) sslrootcert: Option<String>,
    pub(super) application_name: Option<String>,
    pub(super) connect_timeout: Option<String>,
}

impl UrlParts {
    pub(super) fn parse(url: &str) -> Result<Self, ConnectConfigError> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or_else(|| ConnectConfigError::new("it does not begin with postgres://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            // Probably a password with a question mark; errors about options would repeat a part of it.
            return Err(ConnectConfigError::new(
                "an @ follows the ?; percent-encode both in names and passwords",
            ));
        }
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, address) = authority
            .rsplit_once('@')
            .filter(|(login, _)| !login.is_empty() && !login.starts_with(':'))
            .ok_or_else(|| ConnectConfigError::new("the user is missing"))?;
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(decode(password)?)),
            None => (login, None),
        };
        let (host, port) = split_port(address)?;
        let database = decode(database)?;
        Ok(Self {
            user: decode(user)?,
            password,
            host: decode(host)?,
            port,
            database: Some(database).filter(|name| !name.is_empty()),
            options: UrlOptions::parse(query)?,
        })
    }
}

impl UrlOptions {
    fn parse(query: &str) -> Result<Self, ConnectConfigError> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) =
                option.split_once('=').ok_or_else(|| ConnectConfigError::new("an option has no value"))?;
            let field = match key {
                "host" => &mut options.host,
                "sslmode" => &mut options.sslmode,
                "sslrootcert" => &mut options.sslrootcert,
                "application_name" => &mut options.application_name,
                "connect_timeout" => &mut options.connect_timeout,
                _ => return Err(ConnectConfigError::new(format!("unknown option {key:?}"))),
            };
            if field.replace(decode(value)?).is_some() {
                return Err(ConnectConfigError::new(format!("option {key:?} is repeated")));
            }
        }
        Ok(options)
    }
}

fn split_port(address: &str) -> Result<(&str, u16), ConnectConfigError> {
    let (host, port) = if let Some(bracketed) = address.strip_prefix('[') {
        let (host, rest) = bracketed
            .split_once(']')
            .ok_or_else(|| ConnectConfigError::new("the brackets of the IPv6 address are not closed"))?;
        (host, rest.strip_prefix(':').unwrap_or(rest))
    } else {
        address.split_once(':').unwrap_or((address, ""))
    };
    match port {
        "" => Ok((host, PORT)),
        port => match port.parse() {
            Ok(port) if 0 < port => Ok((host, port)),
            _ => Err(ConnectConfigError::new("the port is not a number from 1 to 65535")),
        },
    }
}

fn decode(text: &str) -> Result<String, ConnectConfigError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.split_first_chunk::<2>().and_then(|(digits, after)| {
            rest = after;
            let high = char::from(digits[0]).to_digit(16)?;
            let low = char::from(digits[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        });
        bytes.push(
            digits.ok_or_else(|| ConnectConfigError::new("a percent sign is not followed by two digits"))?,
        );
    }
    if bytes.contains(&0) {
        return Err(ConnectConfigError::new("it contains a zero byte"));
    }
    String::from_utf8(bytes).map_err(|_| ConnectConfigError::new("a percent-encoded part is not UTF-8"))
}
