//! Mapping of SQLite's result codes to SQLSTATE.
//!
//! SQLite's own message is kept. Classes 53, 58 and XX are faults of the node (disk full, I/O error, damaged file); the
//! others are the client's.

use rusqlite::ffi;

use crate::error::{DatabaseError, StatementError};

/// Statement text that an error's position refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlSource<'a>(pub(super) &'a str);

impl SqlSource<'_> {
    /// Returns the position in characters, from 1, of a byte offset into the text without its leading white space.
    fn position(self, offset: i32) -> Option<u32> {
        let leading = self.0.len() - self.0.trim_start().len();
        let end = leading + usize::try_from(offset).ok()?;
        let before = self.0.get(..end)?;
        u32::try_from(before.chars().count() + 1).ok()
    }
}

/// Creates an error of the engine itself.
pub(super) fn statement_error(code: &str, message: impl Into<String>) -> DatabaseError {
    DatabaseError::Statement(Box::new(described(code, message.into())))
}

fn described(code: &str, message: String) -> StatementError {
    StatementError {
        code: code.to_owned(),
        message,
        severity: "ERROR".to_owned(),
        ..StatementError::default()
    }
}

/// Converts an error of SQLite.
///
/// `denial` is the authorizer's reason, if it denied something.
pub(super) fn database_error(
    error: &rusqlite::Error,
    sql: SqlSource<'_>,
    denial: Option<String>,
) -> DatabaseError {
    if let Some(reason) = denial {
        return statement_error("0A000", format!("not authorized: {reason}"));
    }
    let mut described = match error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            let message = message.clone().unwrap_or_else(|| failure.to_string());
            described(sqlstate(failure.extended_code, &message), message)
        }
        rusqlite::Error::SqlInputError { error, msg, offset, .. } => {
            let mut described = described(sqlstate(error.extended_code, msg), msg.clone());
            described.position = sql.position(*offset);
            described
        }
        rusqlite::Error::MultipleStatement => {
            described("42601", "the text contains more than one statement".to_owned())
        }
        other => described("XX000", other.to_string()),
    };
    if described.code == "25006" {
        described.hint = Some("this request may only read; send the statement as a write".to_owned());
    }
    name_constraint(&mut described);
    DatabaseError::Statement(Box::new(described))
}

/// Returns the SQLSTATE of an extended result code.
fn sqlstate(extended_code: i32, message: &str) -> &'static str {
    match extended_code {
        ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_ROWID => {
            return "23505";
        }
        ffi::SQLITE_CONSTRAINT_NOTNULL => return "23502",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => return "23503",
        ffi::SQLITE_CONSTRAINT_CHECK => return "23514",
        ffi::SQLITE_CONSTRAINT_TRIGGER => return "P0001",
        ffi::SQLITE_CONSTRAINT_DATATYPE => return "22018",
        ffi::SQLITE_BUSY_SNAPSHOT => return "40001",
        ffi::SQLITE_ABORT_ROLLBACK => return "40000",
        ffi::SQLITE_READONLY => return "25006",
        _ => {}
    }
    match extended_code & 0xff {
        ffi::SQLITE_ERROR => sqlstate_of_message(message),
        ffi::SQLITE_CONSTRAINT => "23000",
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL => "55P03",
        ffi::SQLITE_INTERRUPT => "57014",
        ffi::SQLITE_FULL => "53100",
        ffi::SQLITE_NOMEM => "53200",
        ffi::SQLITE_TOOBIG => "54000",
        ffi::SQLITE_MISMATCH => "22018",
        ffi::SQLITE_RANGE => "22023",
        ffi::SQLITE_AUTH => "0A000",
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => "XX001",
        // Read-only for another reason than the request's: the file was moved, or cannot be written.
        ffi::SQLITE_READONLY | ffi::SQLITE_IOERR | ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM => "58030",
        ffi::SQLITE_SCHEMA => "40001",
        _ => "XX000",
    }
}

/// Beginnings of messages of the generic result code, and the SQLSTATE of each.
const MESSAGE_PREFIXES: [(&str, &str); 22] = [
    ("no such table", "42P01"),
    ("no such view", "42P01"),
    ("no such column", "42703"),
    ("no such function", "42883"),
    ("wrong number of arguments to function", "42883"),
    ("no such index", "42704"),
    ("no such trigger", "42704"),
    ("no such collation", "42704"),
    ("no such module", "42704"),
    ("no such savepoint", "3B001"),
    ("no such", "42704"),
    ("ambiguous column name", "42702"),
    ("duplicate column name", "42701"),
    ("cannot start a transaction within a transaction", "25001"),
    ("cannot VACUUM from within a transaction", "25001"),
    ("cannot commit - no transaction is active", "25P01"),
    ("cannot rollback - no transaction is active", "25P01"),
    ("integer overflow", "22003"),
    ("malformed JSON", "22032"),
    ("incomplete input", "42601"),
    ("unrecognized token", "42601"),
    ("too many", "54000"),
];

/// Parts of messages of the generic result code, and the SQLSTATE of each.
const MESSAGE_PARTS: [(&str, &str); 7] = [
    ("pattern too complex", "54000"),
    ("syntax error", "42601"),
    ("already exists", "42P07"),
    ("already another table or index", "42P07"),
    ("values were supplied", "42601"),
    ("values for", "42601"),
    ("Expression tree is too large", "54001"),
];

fn sqlstate_of_message(message: &str) -> &'static str {
    let prefix = MESSAGE_PREFIXES.iter().find(|(prefix, _)| message.starts_with(prefix));
    let part = || MESSAGE_PARTS.iter().find(|(part, _)| message.contains(part));
    // SQLite has no code of its own for everything else: a statement that cannot be compiled or evaluated.
    prefix.or_else(part).map_or("42000", |(_, code)| *code)
}

/// Fills in the table, column or constraint that a constraint's message names.
fn name_constraint(error: &mut StatementError) {
    let Some((kind, names)) = error.message.split_once(" constraint failed: ") else { return };
    if kind == "CHECK" {
        error.constraint = Some(names.to_owned());
        return;
    }
    let mut columns = names.split(", ").filter_map(|name| name.split_once('.'));
    let Some((table, column)) = columns.next() else { return };
    let is_only_column = columns.next().is_none();
    let table = table.to_owned();
    let column = is_only_column.then(|| column.to_owned());
    error.table = Some(table);
    error.column = column;
}

/// Reports whether an error leaves the connection in doubt, so that it is discarded when it is released.
pub(super) fn breaks_connection(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::Statement(error) => {
            ["58030", "XX000", "XX001", "53200"].contains(&error.code.as_str())
        }
        DatabaseError::Unavailable { .. } | DatabaseError::OutcomeUnknown => true,
        DatabaseError::Cancelled | DatabaseError::Unsupported { .. } | DatabaseError::Param { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32, message: &str) -> StatementError {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(message.to_owned()));
        match database_error(&error, SqlSource(""), None) {
            DatabaseError::Statement(error) => *error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn result_codes_have_the_sqlstate_of_their_class() {
        for (code, expected) in [
            (ffi::SQLITE_CONSTRAINT_ROWID, "23505"),
            (ffi::SQLITE_CONSTRAINT_VTAB, "23000"),
            (ffi::SQLITE_BUSY, "55P03"),
            (ffi::SQLITE_BUSY_RECOVERY, "55P03"),
            (ffi::SQLITE_BUSY_SNAPSHOT, "40001"),
            (ffi::SQLITE_LOCKED_SHAREDCACHE, "55P03"),
            (ffi::SQLITE_READONLY, "25006"),
            (ffi::SQLITE_READONLY_DBMOVED, "58030"),
            (ffi::SQLITE_IOERR_FSYNC, "58030"),
            (ffi::SQLITE_CORRUPT_VTAB, "XX001"),
            (ffi::SQLITE_NOTADB, "XX001"),
            (ffi::SQLITE_INTERRUPT, "57014"),
            (ffi::SQLITE_FULL, "53100"),
            (ffi::SQLITE_NOMEM, "53200"),
            (ffi::SQLITE_TOOBIG, "54000"),
            (ffi::SQLITE_MISUSE, "XX000"),
        ] {
            let error = failure(code, "a message");
            assert_eq!(error.code, expected, "{code}");
            assert_eq!(error.message, "a message");
        }
    }

    #[test]
    fn messages_of_the_generic_code_have_their_own_sqlstate() {
        for (message, expected) in [
            ("no such table: t", "42P01"),
            ("no such column: a", "42703"),
            ("near \"x\": syntax error", "42601"),
            ("table t already exists", "42P07"),
            ("table t has 3 columns but 2 values were supplied", "42601"),
            ("cannot rollback - no transaction is active", "25P01"),
            ("something new", "42000"),
        ] {
            assert_eq!(failure(ffi::SQLITE_ERROR, message).code, expected, "{message}");
        }
    }

    #[test]
    fn a_constraint_is_named() {
        let unique = failure(ffi::SQLITE_CONSTRAINT_UNIQUE, "UNIQUE constraint failed: t.a, t.b");
        assert_eq!((unique.table.as_deref(), unique.column), (Some("t"), None));
        let not_null = failure(ffi::SQLITE_CONSTRAINT_NOTNULL, "NOT NULL constraint failed: t.a");
        assert_eq!((not_null.table.as_deref(), not_null.column.as_deref()), (Some("t"), Some("a")));
        let check = failure(ffi::SQLITE_CONSTRAINT_CHECK, "CHECK constraint failed: positive");
        assert_eq!((check.table, check.constraint.as_deref()), (None, Some("positive")));
        let foreign_key = failure(ffi::SQLITE_CONSTRAINT_FOREIGNKEY, "FOREIGN KEY constraint failed");
        assert_eq!((foreign_key.table, foreign_key.constraint), (None, None));
    }

    #[test]
    fn a_position_counts_characters_of_the_whole_text() {
        let sql = "  \nSELECT 'é' FRM t";
        let offset = i32::try_from(sql.trim_start().find("FRM").unwrap()).unwrap();
        assert_eq!(SqlSource(sql).position(offset), Some(15));
        assert_eq!(SqlSource("x").position(-1), None);
        assert_eq!(SqlSource("x").position(7), None);
    }
}
