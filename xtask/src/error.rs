//! Error type of the tasks: a message for the terminal.

/// Failure of a task, with the message to print.
///
/// It is not an enum, because no caller distinguishes errors: `main` prints them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TaskError(String);

impl TaskError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
