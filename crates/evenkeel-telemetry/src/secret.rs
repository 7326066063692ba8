//! Secrets that must not appear in logs, errors or dumps.

use std::fmt;

/// A key, a password or a token; every way of printing it prints `[hidden]`.
///
/// [`expose`](Self::expose) is the only access to the value, so that a search finds every use. There is no `==`: a
/// comparison that stops at the first difference tells an attacker how much of a guess was right.
#[derive(Clone, Default)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_of_printing_shows_a_secret() {
        let secret = Secret::new("ek-123".to_owned());
        let within = Some((1, &secret));
        for printed in
            [format!("{secret}"), format!("{secret:?}"), format!("{secret:#?}"), format!("{within:?}")]
        {
            assert!(printed.contains("[hidden]") && !printed.contains("ek-123"), "{printed}");
        }
        assert_eq!(secret.expose(), "ek-123");
    }
}
