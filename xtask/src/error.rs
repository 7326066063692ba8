//! Why a chore ended badly, as the phrase its user reads.

use std::fmt;

/// A chore that could not be done.
///
/// One kind only: whatever failed, every caller passes it up and `main` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskError(String);

impl TaskError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
