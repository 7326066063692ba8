//! The first words of a statement, and the white space and comments around them, which the engines read differently.

use crate::datasource::EngineKind;

/// Reports whether a statement is COMMIT or END.
pub(crate) fn is_commit(sql: &str, engine: EngineKind) -> bool {
    first_words(sql, engine).next().is_some_and(|word| is_any(word, &["commit", "end"]))
}

/// Reports whether a statement would take the transaction away from its connection (two-phase commit).
pub(crate) fn is_prepare_transaction(sql: &str, engine: EngineKind) -> bool {
    first_words(sql, engine).take(2).map(str::to_ascii_lowercase).eq(["prepare", "transaction"])
}

/// Reports whether a statement begins or ends a transaction; a savepoint is none.
pub(crate) fn is_transaction_control(sql: &str, engine: EngineKind) -> bool {
    let Some(first) = first_words(sql, engine).next() else { return false };
    if is_any(first, &["rollback"]) {
        return !first_words(sql, engine).take(3).any(|word| is_any(word, &["to"]));
    }
    is_any(first, &["begin", "start", "commit", "end", "abort"]) || is_prepare_transaction(sql, engine)
}

fn is_any(word: &str, names: &[&str]) -> bool {
    names.iter().any(|name| word.eq_ignore_ascii_case(name))
}

/// Returns the words up to the first character that belongs to none, except for semicolons.
fn first_words(sql: &str, engine: EngineKind) -> impl Iterator<Item = &str> {
    let mut rest = sql;
    core::iter::from_fn(move || {
        rest = skip_space(rest, engine);
        while let Some(after) = rest.strip_prefix(';') {
            rest = skip_space(after, engine);
        }
        let (word, after) = rest.split_at(rest.find(|c| !is_word_char(c)).unwrap_or(rest.len()));
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Reports whether a character is part of a word.
pub(crate) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Skips white space and comments.
pub(crate) fn skip_space(sql: &str, engine: EngineKind) -> &str {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, '\x0b' | '\u{feff}'));
        let length = match rest.as_bytes() {
            [b'-', b'-', ..] => line_comment_len(rest.as_bytes(), engine),
            [b'/', b'*', ..] => block_comment_len(rest.as_bytes(), engine),
            _ => return rest,
        };
        rest = &rest[length..];
    }
}

/// Returns the length of a comment up to the end of its line.
pub(crate) fn line_comment_len(bytes: &[u8], engine: EngineKind) -> usize {
    let is_end = |byte: &u8| *byte == b'\n' || (*byte == b'\r' && engine == EngineKind::Postgres);
    bytes.iter().position(is_end).unwrap_or(bytes.len())
}

/// Returns the length of `/*…*/`; PostgreSQL's comments nest.
pub(crate) fn block_comment_len(bytes: &[u8], engine: EngineKind) -> usize {
    let mut depth = 1_usize;
    let mut at = 2;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] if engine == EngineKind::Postgres => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINES: [EngineKind; 2] = [EngineKind::Postgres, EngineKind::Sqlite];

    #[test]
    fn a_commit_is_recognised_behind_white_space_and_comments() {
        for engine in ENGINES {
            for sql in [
                "commit",
                "END;",
                " \t\r\n\x0b\x0cCommit work",
                "/* app */ commit",
                "-- app\ncommit",
                "; /**/ ; --\n/* a */-- b\nend transaction",
            ] {
                assert!(is_commit(sql, engine), "{engine:?}: {sql}");
                assert!(is_transaction_control(sql, engine), "{engine:?}: {sql}");
            }
            for sql in ["", "/* commit", "-- commit", "'commit'", "select 1; commit", "commits", "(commit)"] {
                assert!(!is_commit(sql, engine), "{engine:?}: {sql}");
            }
        }
    }

    #[test]
    fn comments_end_where_the_engine_ends_them() {
        for (sql, on_postgres, on_sqlite) in [
            ("/* a /* b */ c */ commit", true, false),
            ("/* /* */ commit", false, true),
            ("/*/ */ commit", true, true),
            ("-- a\rcommit", true, false),
        ] {
            let found = ENGINES.map(|engine| is_commit(sql, engine));
            assert_eq!(found, [on_postgres, on_sqlite], "{sql}");
        }
    }

    #[test]
    fn savepoints_are_not_transaction_control() {
        for engine in ENGINES {
            for sql in
                ["begin", "start transaction", "abort", "rollback", "/* to */ rollback work", "rollback; "]
            {
                assert!(is_transaction_control(sql, engine), "{sql}");
            }
            for sql in ["rollback to a", "rollback /* x */ work -- y\n to a", "savepoint a", "release a"] {
                assert!(!is_transaction_control(sql, engine), "{sql}");
            }
            assert!(is_prepare_transaction("/* x */ Prepare -- y\n transaction 'a'", engine));
            assert!(!is_prepare_transaction("prepare transactions", engine));
        }
    }
}
