//! The error of every task, as the phrase that its user reads.

/// A task that could not be done.
///
/// There is one kind only: every caller passes it up and `main` prints it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TaskError(String);

impl TaskError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
