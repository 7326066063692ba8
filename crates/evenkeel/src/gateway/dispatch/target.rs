//! What jobs are sent to: a route of the LLM door, or a URL.

use core::fmt;

use evenkeel_llm::JobTarget as Route;
use evenkeel_upstream::{Origin, UrlError};
use http::uri::PathAndQuery;

/// What the jobs of a queue are sent to.
#[derive(Clone, Debug)]
pub(super) enum DispatchTarget {
    /// A route of the LLM door.
    Route(Route),
    /// Whoever listens there.
    Url(Url),
}

/// A URL that jobs are posted to.
#[derive(Clone, Debug)]
pub(super) struct Url {
    pub(super) origin: Origin,
    pub(super) path: PathAndQuery,
}

impl DispatchTarget {
    /// Reads a target as a queue is told it.
    pub(super) fn parse(given: &str) -> Result<Self, BadTarget> {
        if given.contains("://") {
            let wrong = |why| BadTarget::Url { given: given.to_owned(), why };
            return Url::parse(given).map(Self::Url).map_err(wrong);
        }
        let unknown = || BadTarget::Unknown { given: given.to_owned() };
        Route::from_path(given).map(Self::Route).ok_or_else(unknown)
    }
}

impl Url {
    fn parse(given: &str) -> Result<Self, UrlError> {
        let host = given.find("://").map_or(0, |at| at + "://".len());
        let end = given[host..].find(['/', '?', '#']).map_or(given.len(), |at| host + at);
        let origin = Origin::parse(&given[..end])?;
        let path = &given[end..];
        if path.contains('#') {
            return Err(UrlError::Fragment);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { origin, path: PathAndQuery::try_from(path).map_err(|_| UrlError::Syntax)? })
    }
}

/// Without its query, which may be a secret that tenants are not told.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path.path())
    }
}

/// Why jobs cannot be sent there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::gateway) enum BadTarget {
    /// It is neither a route for jobs nor a URL.
    Unknown {
        /// What was given.
        given: String,
    },
    /// It is a URL that nothing can be posted to.
    Url {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: UrlError,
    },
}

impl fmt::Display for BadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { given } => {
                let routes = Route::paths().join(", ");
                write!(f, "no target {given:?}; there is {routes}, and URLs of http:// and https://")
            }
            // A password would be shown to everybody who may look at the queue.
            Self::Url { why: UrlError::Credentials, .. } => f.write_str("target: URL carries credentials"),
            Self::Url { given, why } => write!(f, "target {given:?}: {why}"),
        }
    }
}

impl core::error::Error for BadTarget {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_posted_to_as_it_stands() {
        for (given, path, shown) in [
            ("http://worker:8080/jobs", "/jobs", "http://worker:8080/jobs"),
            ("https://worker/v1/jobs?kind=a&b=%20", "/v1/jobs?kind=a&b=%20", "https://worker:443/v1/jobs"),
            ("http://worker:9/v1", "/v1", "http://worker:9/v1"),
            ("http://worker", "/", "http://worker:80/"),
            ("http://worker?a=b", "/?a=b", "http://worker:80/"),
            ("http://worker/to/", "/to/", "http://worker:80/to/"),
        ] {
            let Ok(DispatchTarget::Url(url)) = DispatchTarget::parse(given) else { panic!("{given}") };
            assert_eq!((url.path.as_str(), url.to_string().as_str()), (path, shown));
        }
        assert!(matches!(DispatchTarget::parse("/v1/embeddings"), Ok(DispatchTarget::Route(_))));
    }

    #[test]
    fn what_nothing_can_be_sent_to_is_refused_with_the_reason() {
        for (given, said) in [
            ("ftp://worker/x", "target \"ftp://worker/x\": URL begins with neither http:// nor https://"),
            ("http:///x", "target \"http:///x\": not a URL"),
            ("http://worker:0/x", "target \"http://worker:0/x\": URL's port is not between 1 and 65535"),
            ("http://worker/x#y", "target \"http://worker/x#y\": URL carries a fragment"),
            ("http://worker/a b", "target \"http://worker/a b\": not a URL"),
            ("http://me:secret@worker/x", "target: URL carries credentials"),
        ] {
            assert_eq!(DispatchTarget::parse(given).unwrap_err().to_string(), said);
        }
        for given in ["worker:8080/x", "/v1/models", ""] {
            let said = DispatchTarget::parse(given).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("no target {given:?}; there is /v1/chat/completions, ")),
                "{said}"
            );
            assert!(said.ends_with(", and URLs of http:// and https://"), "{said}");
        }
    }
}
