//! An ErrorResponse of the server, with every field that the protocol defines.

use core::fmt;

use crate::backend::{Malformed, MessageBody};

/// An error that the server reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DbError {
    /// `ERROR`, `FATAL` or `PANIC`, never localized.
    pub severity: String,
    /// SQLSTATE, five characters.
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// Position in the statement, in characters from 1.
    pub position: Option<u32>,
    /// Position in `internal_query`, in characters from 1.
    pub internal_position: Option<u32>,
    /// Statement that the server generated itself, such as one of a PL/pgSQL function.
    pub internal_query: Option<String>,
    /// Call stack of procedural languages.
    pub context: Option<String>,
    pub schema: Option<String>,
    pub table: Option<String>,
    pub column: Option<String>,
    pub data_type: Option<String>,
    pub constraint: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub routine: Option<String>,
}

impl DbError {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut error = Self::default();
        let mut body = MessageBody(body);
        loop {
            let field = body.u8()?;
            if field == 0 {
                return Ok(error);
            }
            let text = String::from_utf8_lossy(body.text()?).into_owned();
            match field {
                // The localized severity comes first; servers before 9.6 send no other.
                b'S' if error.severity.is_empty() => error.severity = text,
                b'V' => error.severity = text,
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'P' => error.position = text.parse().ok(),
                b'p' => error.internal_position = text.parse().ok(),
                b'q' => error.internal_query = Some(text),
                b'W' => error.context = Some(text),
                b's' => error.schema = Some(text),
                b't' => error.table = Some(text),
                b'c' => error.column = Some(text),
                b'd' => error.data_type = Some(text),
                b'n' => error.constraint = Some(text),
                b'F' => error.file = Some(text),
                b'L' => error.line = text.parse().ok(),
                b'R' => error.routine = Some(text),
                _ => {}
            }
        }
    }

    /// Reports whether the server closes the connection after this error.
    pub fn is_fatal(&self) -> bool {
        self.severity == "FATAL" || self.severity == "PANIC"
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_skipped_and_the_unlocalized_severity_wins() {
        let body = b"SFEHLER\0VERROR\0C42601\0Mbad\0ZZ\0P7\0\0";
        let error = DbError::parse(body).unwrap();
        assert_eq!(error.severity, "ERROR");
        assert_eq!(error.code, "42601");
        assert_eq!(error.position, Some(7));
        assert_eq!(error.to_string(), "bad (SQLSTATE 42601)");
    }

    #[test]
    fn a_truncated_error_is_malformed() {
        let body = b"VERROR\0C42601\0Mbad";
        for end in 0..body.len() {
            assert!(DbError::parse(&body[..end]).is_err(), "{end}");
        }
    }
}
