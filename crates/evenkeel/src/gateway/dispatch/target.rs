//! Targets of dispatched jobs: a route of the LLM API, or a URL.

use core::fmt;

use evenkeel_llm::JobTarget as Route;
use evenkeel_upstream::{LinkLocalError, Origin, UrlError};
use http::uri::PathAndQuery;
use thiserror::Error;

/// Target of a queue's jobs.
#[derive(Clone, Debug)]
pub(super) enum DispatchTarget {
    /// A route of the LLM API.
    Route(Route),
    Url(Url),
}

/// A webhook URL.
#[derive(Clone, Debug)]
pub(super) struct Url {
    pub(super) origin: Origin,
    pub(super) path: PathAndQuery,
}

impl DispatchTarget {
    /// Parses the `target` of a queue.
    pub(super) fn parse(target: &str) -> Result<Self, BadTarget> {
        if target.contains("://") {
            let invalid = |error| match error {
                UrlError::Credentials => BadTarget::Credentials,
                error => BadTarget::Url { target: target.to_owned(), error },
            };
            return Url::parse(target).map(Self::Url).map_err(invalid);
        }
        let unknown = || BadTarget::Unknown { target: target.to_owned() };
        Route::from_path(target).map(Self::Route).ok_or_else(unknown)
    }
}

impl Url {
    fn parse(url: &str) -> Result<Self, UrlError> {
        let host = url.find("://").map_or(0, |index| index + "://".len());
        let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |index| host + index);
        let origin = Origin::parse(&url[..end])?;
        let path = &url[end..];
        if path.contains('#') {
            return Err(UrlError::Fragment);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { origin, path: PathAndQuery::try_from(path).map_err(|_| UrlError::Syntax)? })
    }
}

/// Omits the query, which may contain a secret that tenants must not see.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path.path())
    }
}

/// Reason to reject a dispatch target.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::gateway) enum BadTarget {
    #[error("unknown target {target:?}; use one of {}, or an http:// or https:// URL", Route::paths().join(", "))]
    Unknown { target: String },
    #[error("target {target:?}: {error}")]
    Url {
        target: String,
        #[source]
        error: UrlError,
    },
    #[error("target: {0}")]
    LinkLocal(#[from] LinkLocalError),
    /// Does not contain the URL, because its password would be visible to every reader of the error.
    #[error("target: URL carries credentials")]
    Credentials,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_path_and_query() {
        for (target, path, displayed) in [
            ("http://worker:8080/jobs", "/jobs", "http://worker:8080/jobs"),
            ("https://worker/v1/jobs?kind=a&b=%20", "/v1/jobs?kind=a&b=%20", "https://worker:443/v1/jobs"),
            ("http://worker:9/v1", "/v1", "http://worker:9/v1"),
            ("http://worker", "/", "http://worker:80/"),
            ("http://worker?a=b", "/?a=b", "http://worker:80/"),
            ("http://worker/to/", "/to/", "http://worker:80/to/"),
        ] {
            let Ok(DispatchTarget::Url(url)) = DispatchTarget::parse(target) else { panic!("{target}") };
            assert_eq!((url.path.as_str(), url.to_string().as_str()), (path, displayed));
        }
        assert!(matches!(DispatchTarget::parse("/v1/embeddings"), Ok(DispatchTarget::Route(_))));
    }

    #[test]
    fn an_invalid_target_is_rejected_with_the_reason() {
        for (target, message) in [
            ("ftp://worker/x", "target \"ftp://worker/x\": URL begins with neither http:// nor https://"),
            ("http:///x", "target \"http:///x\": not a URL"),
            ("http://worker:0/x", "target \"http://worker:0/x\": URL's port is not between 1 and 65535"),
            ("http://worker/x#y", "target \"http://worker/x#y\": URL carries a fragment"),
            ("http://worker/a b", "target \"http://worker/a b\": not a URL"),
            ("http://me:secret@worker/x", "target: URL carries credentials"),
        ] {
            assert_eq!(DispatchTarget::parse(target).unwrap_err().to_string(), message);
        }
        for target in ["worker:8080/x", "/v1/models", ""] {
            let message = DispatchTarget::parse(target).unwrap_err().to_string();
            let start = format!("unknown target {target:?}; use one of /v1/chat/completions, ");
            assert!(message.starts_with(&start), "{message}");
            assert!(message.ends_with(", or an http:// or https:// URL"), "{message}");
        }
    }
}
