//! Statements that a stream handles itself, and the kind of access that the others need.

use crate::datasource::AccessMode;
use crate::datasource::sqlite::sql_text;

/// Most words of a statement that begins a transaction or sets a pragma.
const WORDS_READ_MAX: usize = 5;
/// Words that may follow `BEGIN`. libSQL adds `READONLY` and `CONCURRENT` to those of SQLite.
const BEGIN_WORDS: [&str; 6] =
    ["TRANSACTION", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", "CONCURRENT", "READONLY"];

/// Kind of a statement outside a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementKind {
    /// `BEGIN` in any form.
    Begin(AccessMode),
    /// `COMMIT`, `END` or `ROLLBACK`.
    End,
    /// `PRAGMA foreign_keys` with a value.
    SetForeignKeys(ForeignKeyChecks),
    Read,
    Write,
}

/// Enforcement of foreign keys in the transactions that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignKeyChecks {
    On,
    Off,
}

impl StatementKind {
    pub(super) fn of(sql: &str) -> Self {
        let words: Vec<String> =
            sql_text::words(sql).take(WORDS_READ_MAX).map(str::to_ascii_uppercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["BEGIN", rest @ ..] if rest.iter().all(|word| BEGIN_WORDS.contains(word)) => {
                let is_readonly = rest.contains(&"READONLY");
                Self::Begin(if is_readonly { AccessMode::ReadOnly } else { AccessMode::ReadWrite })
            }
            ["COMMIT" | "END" | "ROLLBACK", ..] => Self::End,
            ["PRAGMA", "FOREIGN_KEYS", "OFF" | "0" | "NO" | "FALSE"] => {
                Self::SetForeignKeys(ForeignKeyChecks::Off)
            }
            ["PRAGMA", "FOREIGN_KEYS", "ON" | "1" | "YES" | "TRUE"] => {
                Self::SetForeignKeys(ForeignKeyChecks::On)
            }
            _ => match sql_text::command(sql).as_deref() {
                Some("SELECT" | "VALUES" | "EXPLAIN" | "PRAGMA") => Self::Read,
                _ => Self::Write,
            },
        }
    }

    /// Reports whether a statement begins or ends a transaction, or prepares for one.
    pub(super) fn is_control(self) -> bool {
        match self {
            Self::Begin(_) | Self::End | Self::SetForeignKeys(_) => true,
            Self::Read | Self::Write => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_begin_is_recognised() {
        for sql in [
            "BEGIN",
            "begin;",
            "BEGIN IMMEDIATE",
            "begin deferred transaction",
            "/* x */ BEGIN EXCLUSIVE TRANSACTION;",
            "BEGIN CONCURRENT",
        ] {
            assert_eq!(StatementKind::of(sql), StatementKind::Begin(AccessMode::ReadWrite), "{sql}");
        }
        for sql in ["BEGIN READONLY", "BEGIN TRANSACTION READONLY", "begin transaction readonly;"] {
            assert_eq!(StatementKind::of(sql), StatementKind::Begin(AccessMode::ReadOnly), "{sql}");
        }
        for sql in ["BEGIN; DROP TABLE t", "BEGIN SOMEHOW"] {
            assert_eq!(StatementKind::of(sql), StatementKind::Write, "{sql}");
        }
    }

    #[test]
    fn only_queries_read() {
        for sql in ["select 1", "WITH a AS (SELECT 1) SELECT * FROM a", "values (1)", "pragma table_info(t)"]
        {
            assert_eq!(StatementKind::of(sql), StatementKind::Read, "{sql}");
        }
        for sql in
            ["insert into t values (1)", "WITH a AS (SELECT 1) DELETE FROM t", "create table t (a)", ""]
        {
            assert_eq!(StatementKind::of(sql), StatementKind::Write, "{sql}");
        }
    }

    #[test]
    fn the_end_of_a_transaction_and_the_foreign_keys_are_recognised() {
        for sql in ["COMMIT", "end transaction", "rollback", "ROLLBACK TO a"] {
            assert_eq!(StatementKind::of(sql), StatementKind::End, "{sql}");
        }
        for (sql, checks) in [
            ("PRAGMA foreign_keys=off", ForeignKeyChecks::Off),
            ("pragma foreign_keys(0);", ForeignKeyChecks::Off),
            ("PRAGMA foreign_keys = ON", ForeignKeyChecks::On),
        ] {
            assert_eq!(StatementKind::of(sql), StatementKind::SetForeignKeys(checks), "{sql}");
        }
        assert_eq!(StatementKind::of("PRAGMA foreign_keys"), StatementKind::Read);
    }
}
