//! Named parameters: `:name` in SQL becomes a placeholder of the database, `$1` or `?1`.
//!
//! Guarantees: only placeholders are written into the text, never values. Strings, quoted identifiers, dollar quotes,
//! comments, casts (`::`) and `:=` stay as they are. The same name gets the same placeholder.
//!
//! Limits: [`PARAMS_MAX`] names.

use std::collections::HashMap;

use crate::datasource::EngineKind;
use crate::request::PARAMS_MAX;
use crate::sql_words::{block_comment_len, line_comment_len};

/// A statement with the placeholders of its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSql {
    pub(super) sql: String,
    /// Names in the order of their placeholders.
    pub(super) names: Vec<String>,
}

/// Reason why named parameters cannot be replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NamedSqlError {
    #[error("the placeholder {0:?} is not supported; use a name, such as :id")]
    Positional(String),
    #[error("the statement has more than {PARAMS_MAX} parameters")]
    TooMany,
}

impl NamedSql {
    pub(super) fn parse(sql: &str, engine: EngineKind) -> Result<Self, NamedSqlError> {
        let mut out = String::with_capacity(sql.len());
        let mut names = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut rest = sql;
        while let Some(piece) = Piece::first(rest, engine) {
            let (text, after) = rest.split_at(piece.len);
            rest = after;
            match piece.kind {
                PieceKind::Other => out.push_str(text),
                PieceKind::Positional => return Err(NamedSqlError::Positional(text.to_owned())),
                PieceKind::Named => {
                    let name = &text[1..];
                    let place = *places.entry(name).or_insert_with(|| {
                        names.push(name.to_owned());
                        names.len()
                    });
                    if PARAMS_MAX < place {
                        return Err(NamedSqlError::TooMany);
                    }
                    // A placeholder right after a word would be part of it.
                    if out.as_bytes().last().is_some_and(|byte| is_word_byte(*byte)) {
                        out.push(' ');
                    }
                    out.push(match engine {
                        EngineKind::Postgres => '$',
                        EngineKind::Sqlite => '?',
                    });
                    out.push_str(&place.to_string());
                }
            }
        }
        Ok(Self { sql: out, names })
    }
}

/// A piece of SQL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    kind: PieceKind,
    /// Length in bytes, at least 1 and up to the boundary of a character.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    /// `:name`.
    Named,
    /// A placeholder of the database itself.
    Positional,
    /// Anything that stays as it is.
    Other,
}

impl Piece {
    /// Reads the first piece; `None` at the end of the text.
    fn first(text: &str, engine: EngineKind) -> Option<Self> {
        let bytes = text.as_bytes();
        let second = bytes.get(1).copied().unwrap_or_default();
        let other = |len: usize| Self { kind: PieceKind::Other, len };
        Some(match (*bytes.first()?, engine) {
            (b'\'', _) => other(quoted_len(bytes, b'\'')),
            (b'"', _) => other(quoted_len(bytes, b'"')),
            (b'`', EngineKind::Sqlite) => other(quoted_len(bytes, b'`')),
            (b'[', EngineKind::Sqlite) => other(find(bytes, b"]").map_or(bytes.len(), |at| at + 1)),
            (b'-', _) if second == b'-' => other(line_comment_len(bytes, engine)),
            (b'/', _) if second == b'*' => other(block_comment_len(bytes, engine)),
            (b':', _) if matches!(second, b':' | b'=') => other(2),
            (b':', _) if is_word_start(second) => {
                Self { kind: PieceKind::Named, len: 1 + word_len(&bytes[1..], is_name_byte) }
            }
            (b'$', EngineKind::Postgres) if is_word_start(second) || second == b'$' => {
                other(dollar_quoted_len(bytes))
            }
            (b'$', EngineKind::Postgres) if second.is_ascii_digit() => positional(bytes),
            (b'?' | b'@' | b'$' | b':', EngineKind::Sqlite) => positional(bytes),
            (b'e' | b'E', EngineKind::Postgres) if second == b'\'' => other(escape_string_len(bytes)),
            (first, _) if is_word_start(first) => other(word_len(bytes, is_word_byte)),
            _ => other(1),
        })
    }
}

fn positional(bytes: &[u8]) -> Piece {
    Piece { kind: PieceKind::Positional, len: 1 + word_len(&bytes[1..], is_word_byte) }
}

/// Letters, the underscore, and every character beyond ASCII.
fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || 0x80 <= byte
}

fn is_name_byte(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit()
}

/// In both databases, a word may contain a dollar sign, so that `a$b$` does not begin a dollar quote.
fn is_word_byte(byte: u8) -> bool {
    is_name_byte(byte) || byte == b'$'
}

fn word_len(bytes: &[u8], is_part: fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !is_part(*byte)).unwrap_or(bytes.len())
}

/// Returns the length of a string or identifier in quotes; a doubled quote does not end it.
fn quoted_len(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        if bytes[at] == quote {
            if bytes.get(at + 1) != Some(&quote) {
                return at + 1;
            }
            at += 1;
        }
        at += 1;
    }
    bytes.len()
}

/// Returns the length of `E'…'`, in which a backslash escapes a quote. A string that continues on another line keeps
/// its kind.
fn escape_string_len(bytes: &[u8]) -> usize {
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => {
                let space = word_len(&bytes[at + 1..], |byte| byte.is_ascii_whitespace());
                let next = at + 1 + space;
                let is_continued = bytes[at + 1..next].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
                if !is_continued || bytes.get(next) != Some(&b'\'') {
                    return at + 1;
                }
                at = next + 1;
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length of `$tag$…$tag$`, or 1 if no dollar quote begins here.
fn dollar_quoted_len(bytes: &[u8]) -> usize {
    let tag_len = 2 + word_len(&bytes[1..], is_name_byte);
    if bytes.get(tag_len - 1) != Some(&b'$') {
        return 1;
    }
    let (tag, rest) = bytes.split_at(tag_len);
    find(rest, tag).map_or(bytes.len(), |at| 2 * tag_len + at)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(sql: &str, engine: EngineKind) -> (String, Vec<String>) {
        let NamedSql { sql, names } = NamedSql::parse(sql, engine).unwrap();
        (sql, names)
    }

    #[track_caller]
    fn assert_postgres(sql: &str, expected: &str, names: &[&str]) {
        let (rewritten, found) = named(sql, EngineKind::Postgres);
        assert_eq!(rewritten, expected);
        assert_eq!(found, names);
    }

    #[track_caller]
    fn assert_unchanged(sql: &str, engine: EngineKind) {
        assert_eq!(named(sql, engine), (sql.to_owned(), Vec::new()));
    }

    #[test]
    fn a_name_becomes_a_placeholder_and_keeps_it() {
        assert_postgres("select :a, :b_1, :a", "select $1, $2, $1", &["a", "b_1"]);
        assert_postgres("values (:a,:b),(:é)", "values ($1,$2),($3)", &["a", "b", "é"]);
        assert_postgres(":a::int + :b :: text", "$1::int + $2 :: text", &["a", "b"]);
        assert_postgres("limit:n offset:m", "limit $1 offset $2", &["n", "m"]);
        assert_postgres("select 1:a, é:b", "select 1 $1, é $2", &["a", "b"]);
        assert_postgres("a=:a-:b--:c", "a=$1-$2--:c", &["a", "b"]);
        assert_eq!(named("select :a, :b, :a", EngineKind::Sqlite).0, "select ?1, ?2, ?1");
        assert_eq!(named("limit:n", EngineKind::Sqlite).0, "limit ?1");
    }

    #[test]
    fn postgresql_text_without_a_name_stays_as_it_is() {
        for sql in [
            "select ':a'",
            "select 'it''s :a'",
            r"select E'it\'s :a'",
            r"select e'\\', E'a''b :c'",
            "select E'a'\n  'b\\' :c'",
            r"select U&'\0041 :a', x'1f', n':a'",
            r#"select ":a", "b"":c""#,
            "select $$ :a $$, $x$ :b $$ :c $x$, $é$ :d $é$",
            "select a$b$, 1 -- :a\n, 2 -- it's",
            "select /* :a /* :b */ :c */ 1",
            "select 1::int, a :=1, a[1:2], a [ 1 : n ]",
            "select '{}'::jsonb ? 'a', @ -1, a@>b",
            "select 'unterminated :a",
            "select /* unterminated :a",
            "select $$ unterminated :a",
            "select E'unterminated \\",
            "$ :",
            "",
        ] {
            assert_unchanged(sql, EngineKind::Postgres);
        }
    }

    #[test]
    fn a_string_ends_where_postgresql_ends_it() {
        assert_postgres(r"select 'a\', :a", r"select 'a\', $1", &["a"]);
        assert_postgres("select te'a', ':b', :a", "select te'a', ':b', $1", &["a"]);
        assert_postgres("select 1e'\\', :a", "select 1e'\\', :a", &[]);
        assert_postgres("select E'a' 'b\\', :a", "select E'a' 'b\\', $1", &["a"]);
        assert_postgres("select $a$ $b$ $a$, :a", "select $a$ $b$ $a$, $1", &["a"]);
        assert_postgres("/* /* */ */ :a */", "/* /* */ */ $1 */", &["a"]);
        assert_postgres("-- x\r:a", "-- x\r$1", &["a"]);
    }

    #[test]
    fn sqlite_has_quotes_and_comments_of_its_own() {
        for sql in
            ["select [a :b], `c :d`, \"e :f\", 'g'':h'", "select 1 -- :a\r :b", "select x'00', a -> '$.b'"]
        {
            assert_unchanged(sql, EngineKind::Sqlite);
        }
        assert_eq!(named("/* /* */ :a", EngineKind::Sqlite).0, "/* /* */ ?1");
        assert_eq!(named(r"select E'\', :a", EngineKind::Sqlite).0, r"select E'\', ?1");
    }

    #[test]
    fn placeholders_of_the_database_are_errors() {
        for (sql, engine, part) in [
            ("select $1", EngineKind::Postgres, "$1"),
            ("select :a, $12::int", EngineKind::Postgres, "$12"),
            ("select ?", EngineKind::Sqlite, "?"),
            ("select ?2", EngineKind::Sqlite, "?2"),
            ("select @a", EngineKind::Sqlite, "@a"),
            ("select $a", EngineKind::Sqlite, "$a"),
            ("select :1", EngineKind::Sqlite, ":1"),
        ] {
            assert_eq!(NamedSql::parse(sql, engine), Err(NamedSqlError::Positional(part.to_owned())));
        }
    }

    #[test]
    fn the_number_of_names_is_limited() {
        let sql = |count: usize| {
            let names: Vec<String> = (0..count).map(|index| format!(":p{index}")).collect();
            NamedSql::parse(&names.join(","), EngineKind::Postgres)
        };
        assert_eq!(sql(PARAMS_MAX).unwrap().names.len(), PARAMS_MAX);
        assert_eq!(sql(PARAMS_MAX + 1), Err(NamedSqlError::TooMany));
    }

    /// Pieces of SQL in which `:n` must not be found, and the engines that read them so.
    fn opaque() -> impl Strategy<Value = String> {
        let text = "[a-z:' \\\\]{0,6}";
        prop_oneof![
            text.prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
            text.prop_map(|text| format!("\"{text}:n\"")),
            "[a-z: ]{0,6}".prop_map(|text| format!("/* {text}:n */")),
            "[a-z:' ]{0,6}".prop_map(|text| format!("-- {text}:n\n")),
        ]
    }

    proptest! {
        #[test]
        fn any_text_is_read_to_its_end_and_only_placeholders_are_written(sql in "[-a-c:'\"$E\\\\/*\\[\\]`?@1\n é]{0,40}") {
            for engine in [EngineKind::Postgres, EngineKind::Sqlite] {
                let Ok(NamedSql { sql: rewritten, names }) = NamedSql::parse(&sql, engine) else { continue };
                prop_assert_eq!(names.is_empty(), rewritten == sql);
                let without_names: usize = sql.matches(':').count() - rewritten.matches(':').count();
                prop_assert!(names.len() <= without_names);
            }
        }

        #[test]
        fn names_are_found_between_any_pieces(pieces in prop::collection::vec(opaque(), 0..8)) {
            for engine in [EngineKind::Postgres, EngineKind::Sqlite] {
                let sql: String = pieces.iter().map(|piece| format!("{piece} :p, ")).collect();
                let mark = if engine == EngineKind::Postgres { "$1" } else { "?1" };
                let expected: String = pieces.iter().map(|piece| format!("{piece} {mark}, ")).collect();
                prop_assert_eq!(named(&sql, engine).0, expected);
            }
        }
    }
}
