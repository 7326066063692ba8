//! The error of a failed actor.

use alloc::borrow::Cow;
use alloc::boxed::Box;

/// A failure of an actor, as its supervisor sees it.
///
/// Boxed, so that the result of every handler stays small.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", self.0.kind.prefix(), self.0.message)]
pub struct ActorError(Box<Failure>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    kind: ErrorKind,
    message: Cow<'static, str>,
}

/// Origin of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The handler returned an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The mailbox is unusable.
    Mailbox,
    /// A child failed, and the failure was escalated.
    Escalated,
}

impl ActorError {
    /// Creates the error that a handler returns.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_kind(ErrorKind::Failed, message.into())
    }

    /// Creates the error of a handler that panicked.
    pub fn panicked(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_kind(ErrorKind::Panicked, message.into())
    }

    /// Creates the error of an unusable mailbox.
    pub fn mailbox(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_kind(ErrorKind::Mailbox, message.into())
    }

    /// Creates the error of an actor that fails in its child's place.
    pub fn escalated(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_kind(ErrorKind::Escalated, message.into())
    }

    fn with_kind(kind: ErrorKind, message: Cow<'static, str>) -> Self {
        Self(Box::new(Failure { kind, message }))
    }

    /// Returns the origin.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl ErrorKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Failed => "",
            Self::Panicked => "the handler panicked: ",
            Self::Mailbox => "the mailbox is broken: ",
            Self::Escalated => "a child failed: ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    #[test]
    fn an_error_names_its_origin() {
        let owned = String::from("no route");
        assert_eq!(ActorError::new(owned).to_string(), "no route");
        assert_eq!(ActorError::panicked("boom").to_string(), "the handler panicked: boom");
        assert_eq!(
            ActorError::mailbox("lost its queue").to_string(),
            "the mailbox is broken: lost its queue"
        );
        assert_eq!(ActorError::escalated("no route").to_string(), "a child failed: no route");
    }
}
