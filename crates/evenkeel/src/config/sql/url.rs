//! URLs of datasources: `sqlite:PATH` and `postgres://…`. No error and no output contains a password.

use std::path::{Component, Path, PathBuf};

use evenkeel_postgres::ConnectConfig;
use evenkeel_telemetry::Secret;
use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::DatabaseAddress;
use crate::config::value::{ConfigValue, HIDDEN};

const SQLITE: &str = "sqlite:";
const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];

/// A URL as configured; it may contain a password.
#[derive(Clone, Debug)]
pub(super) struct DatasourceUrl(Secret<String>);

impl DatasourceUrl {
    pub(super) fn new(url: &str) -> Self {
        Self(Secret::new(url.to_owned()))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.expose() == other.0.expose()
    }

    pub(super) fn parse(&self) -> Result<DatabaseAddress, String> {
        let url = self.0.expose();
        if let Some(path) = url.strip_prefix(SQLITE) {
            return parse_path(path).map(DatabaseAddress::Sqlite);
        }
        if !POSTGRES.iter().any(|scheme| url.starts_with(scheme)) {
            return Err("url must begin with sqlite: or postgres://".to_owned());
        }
        let config = ConnectConfig::parse(url).map_err(|error| error.to_string())?;
        Ok(DatabaseAddress::Postgres(Box::new(config)))
    }
}

fn parse_path(path: &str) -> Result<PathBuf, String> {
    let message = if path == ":memory:" {
        "sqlite::memory: is not supported, because each connection would have a database of its own; use a file"
    } else if path.is_empty() {
        "url has no path; write sqlite:PATH"
    } else if path.starts_with("//") || path.starts_with("file:") {
        "write sqlite:PATH, such as sqlite:app.db or sqlite:/var/lib/app.db"
    } else if path.contains(['?', '\0']) {
        "the path of a SQLite file has no options, and contains neither ? nor a zero byte"
    } else if Path::new(path)
        .components()
        .next_back()
        .is_none_or(|last| !matches!(last, Component::Normal(_)))
    {
        "the path of a SQLite file must end with the name of a file"
    } else {
        return Ok(Path::new(path).components().filter(|part| *part != Component::CurDir).collect());
    };
    Err(message.to_owned())
}

/// Replaces the password of a valid URL.
fn without_password(url: &str) -> Option<String> {
    let scheme = POSTGRES.into_iter().find(|scheme| url.starts_with(scheme))?;
    let rest = &url[scheme.len()..];
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let login = &authority[..authority.rfind('@')?];
    let shown = match login.split_once(':') {
        Some((user, _)) => format!("{user}:{HIDDEN}"),
        None => login.to_owned(),
    };
    Some(format!("{scheme}{shown}{}", &rest[login.len()..]))
}

impl ConfigValue for DatasourceUrl {
    fn kind() -> String {
        String::kind()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().map(Self::new)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::new(text))
    }

    fn to_json(&self) -> Json {
        let url = self.0.expose();
        if url.starts_with(SQLITE) {
            json!(url)
        } else {
            json!(without_password(url).as_deref().unwrap_or(HIDDEN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> Result<PathBuf, String> {
        match DatasourceUrl::new(url).parse()? {
            DatabaseAddress::Sqlite(path) => Ok(path),
            DatabaseAddress::Postgres(_) => Err("not SQLite".to_owned()),
        }
    }

    #[test]
    fn a_path_is_read_as_it_is_without_dots() {
        for (url, expected) in [
            ("sqlite:sql.db", "sql.db"),
            ("sqlite:./a/./b.db", "a/b.db"),
            ("sqlite:/var/a b%20.db", "/var/a b%20.db"),
            ("sqlite:../x", "../x"),
        ] {
            assert_eq!(path(url).as_deref(), Ok(Path::new(expected)), "{url}");
        }
    }

    #[test]
    fn a_url_that_is_not_a_file_is_rejected() {
        for (url, message) in [
            ("sqlite::memory:", "database of its own"),
            ("sqlite:", "no path"),
            ("sqlite:///var/a.db", "write sqlite:PATH"),
            ("sqlite://a.db", "write sqlite:PATH"),
            ("sqlite:file:a.db", "write sqlite:PATH"),
            ("sqlite:a.db?mode=memory", "no options"),
            ("sqlite:..", "name of a file"),
            ("sqlite:/", "name of a file"),
            ("mysql://u@h/d", "begin with sqlite: or postgres://"),
            ("postgres://h/d", "user is missing"),
        ] {
            let error = path(url).unwrap_err();
            assert!(error.contains(message), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_is_replaced_and_the_rest_is_shown() {
        for (url, shown) in [
            (
                "postgres://u:hunter2@h:5432/d?sslmode=disable",
                "postgres://u:[hidden]@h:5432/d?sslmode=disable",
            ),
            ("postgresql://u:a@hunter2:x@h/d", "postgresql://u:[hidden]@h/d"),
            ("postgres://u:hunter2@:5432?host=/run/a", "postgres://u:[hidden]@:5432?host=/run/a"),
            ("postgres://u@h/d", "postgres://u@h/d"),
            ("sqlite:sql.db", "sqlite:sql.db"),
            ("mysql://u:hunter2@h/d", HIDDEN),
        ] {
            assert_eq!(DatasourceUrl::new(url).to_json(), json!(shown));
            assert!(!format!("{:?}", DatasourceUrl::new(url)).contains("hunter2"));
        }
    }
}
