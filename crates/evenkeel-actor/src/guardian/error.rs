//! What went wrong in an actor.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::fmt;

/// A failure of an actor, as its supervisor sees it.
///
/// One word, because it is the rare half of what every handler returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorError(Box<Failure>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    kind: ErrorKind,
    message: Cow<'static, str>,
}

/// Where a failure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The handler returned it.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The mailbox cannot be used any more.
    Mailbox,
    /// A child failed, and its supervisor passed it on.
    Escalated,
}

impl ActorError {
    /// Makes the error a handler returns.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self::of(ErrorKind::Failed, message.into())
    }

    /// Makes the error of a handler that panicked.
    pub fn panicked(message: impl Into<Cow<'static, str>>) -> Self {
        Self::of(ErrorKind::Panicked, message.into())
    }

    /// Makes the error of a mailbox that cannot be used any more.
    pub fn mailbox(message: impl Into<Cow<'static, str>>) -> Self {
        Self::of(ErrorKind::Mailbox, message.into())
    }

    /// Makes the error of an actor that fails in its child's place.
    pub fn escalated(message: impl Into<Cow<'static, str>>) -> Self {
        Self::of(ErrorKind::Escalated, message.into())
    }

    fn of(kind: ErrorKind, message: Cow<'static, str>) -> Self {
        Self(Box::new(Failure { kind, message }))
    }

    /// Says where it went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Says what went wrong, in a phrase.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for ActorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message();
        match self.kind() {
            ErrorKind::Failed => f.write_str(message),
            ErrorKind::Panicked => write!(f, "the handler panicked: {message}"),
            ErrorKind::Mailbox => write!(f, "the mailbox is broken: {message}"),
            ErrorKind::Escalated => write!(f, "a child failed: {message}"),
        }
    }
}

impl core::error::Error for ActorError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    #[test]
    fn an_error_says_where_it_comes_from() {
        let owned = String::from("no route");
        assert_eq!(ActorError::new(owned).to_string(), "no route");
        assert_eq!(ActorError::panicked("boom").to_string(), "the handler panicked: boom");
        assert_eq!(ActorError::mailbox("lost its lane").to_string(), "the mailbox is broken: lost its lane");
        assert_eq!(ActorError::escalated("no route").to_string(), "a child failed: no route");
    }
}
