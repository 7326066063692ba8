//! The little that is read from SQL text itself: the command, an empty statement, and where a statement ends.

use crate::datasource::EngineKind;
use crate::sql_words::{is_word_char, skip_space};

/// Returns the first keyword in upper case; for a statement with common table expressions, the keyword after them.
///
/// `None` if the text consists of white space, comments and semicolons only.
pub(crate) fn command(sql: &str) -> Option<String> {
    let mut tokens = Tokens { rest: sql };
    let first = tokens.find(|token| *token != Token::Punctuation(';'))?;
    let Token::Word(word) = first else { return Some(String::new()) };
    let keyword = word.to_ascii_uppercase();
    if keyword != "WITH" {
        return Some(keyword);
    }
    Some(command_after_with(&mut tokens).unwrap_or(keyword))
}

/// Returns the keyword after the closing parenthesis of the last common table expression.
fn command_after_with(tokens: &mut Tokens<'_>) -> Option<String> {
    let mut depth = 0_usize;
    let mut is_after_parenthesis = false;
    for token in tokens {
        match token {
            Token::Punctuation('(') => depth += 1,
            Token::Punctuation(')') => {
                depth = depth.saturating_sub(1);
                is_after_parenthesis = depth == 0;
                continue;
            }
            // `name (columns) AS (…)`: the expression itself follows.
            Token::Word(word) if is_after_parenthesis && !word.eq_ignore_ascii_case("AS") => {
                return Some(word.to_ascii_uppercase());
            }
            Token::Word(_) | Token::Quoted | Token::Punctuation(_) => {}
        }
        is_after_parenthesis = false;
    }
    None
}

/// Reports whether a `ROLLBACK` only returns to a savepoint.
pub(crate) fn is_rollback_to_savepoint(sql: &str) -> bool {
    let tokens = Tokens { rest: sql };
    let is_to = |token: Token<'_>| matches!(token, Token::Word(word) if word.eq_ignore_ascii_case("TO"));
    tokens.take(3).any(is_to)
}

/// Returns the words outside of strings, quoted identifiers and comments.
pub(crate) fn words(sql: &str) -> impl Iterator<Item = &str> {
    let word = |token| match token {
        Token::Word(word) => Some(word),
        Token::Quoted | Token::Punctuation(_) => None,
    };
    Tokens { rest: sql }.filter_map(word)
}

/// Splits a text into its statements, by the rules of SQLite's `sqlite3_complete`: the body of a trigger, which contains
/// semicolons, ends with `; END;`. A part may consist of white space and comments only.
pub(crate) fn split(sql: &str) -> impl Iterator<Item = &str> {
    let mut rest = sql;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (statement, after) = rest.split_at(first_statement_length(rest));
        rest = after;
        Some(statement)
    })
}

/// Position in a statement, as far as it decides where the statement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitState {
    Start,
    /// After `CREATE` or `CREATE TEMP`.
    Create,
    InTrigger,
    /// After a semicolon in a trigger's body.
    TriggerSemicolon,
    /// After the `END` of a trigger's body.
    TriggerEnd,
    InStatement,
}

fn first_statement_length(sql: &str) -> usize {
    let mut tokens = Tokens { rest: sql };
    let mut state = SplitState::Start;
    while let Some(token) = tokens.next() {
        let is_word = |names: &[&str]| match token {
            Token::Word(word) => names.iter().any(|name| word.eq_ignore_ascii_case(name)),
            Token::Quoted | Token::Punctuation(_) => false,
        };
        state = match state {
            SplitState::InTrigger | SplitState::TriggerSemicolon if token == Token::Punctuation(';') => {
                SplitState::TriggerSemicolon
            }
            _ if token == Token::Punctuation(';') => return sql.len() - tokens.rest.len(),
            SplitState::Start if is_word(&["EXPLAIN"]) => SplitState::Start,
            SplitState::Start if is_word(&["CREATE"]) => SplitState::Create,
            SplitState::Create if is_word(&["TEMP", "TEMPORARY"]) => SplitState::Create,
            SplitState::Create if is_word(&["TRIGGER"]) => SplitState::InTrigger,
            SplitState::TriggerSemicolon if is_word(&["END"]) => SplitState::TriggerEnd,
            SplitState::InTrigger | SplitState::TriggerSemicolon | SplitState::TriggerEnd => {
                SplitState::InTrigger
            }
            SplitState::Start | SplitState::Create | SplitState::InStatement => SplitState::InStatement,
        };
    }
    sql.len()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// A string, or an identifier in quotes.
    Quoted,
    Punctuation(char),
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.rest = skip_space(self.rest, EngineKind::Sqlite);
        let first = self.rest.chars().next()?;
        let length = match first {
            '\'' | '"' | '`' => quoted_length(self.rest, first),
            '[' => quoted_length(self.rest, ']'),
            c if is_word_char(c) => self.rest.find(|c| !is_word_char(c)).unwrap_or(self.rest.len()),
            c => c.len_utf8(),
        };
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(match first {
            '\'' | '"' | '`' | '[' => Token::Quoted,
            c if is_word_char(c) => Token::Word(token),
            c => Token::Punctuation(c),
        })
    }
}

/// Returns the length of a quoted token; a doubled quote is read as two tokens, which makes no difference here.
fn quoted_length(text: &str, end: char) -> usize {
    text.char_indices().skip(1).find(|(_, c)| *c == end).map_or(text.len(), |(index, c)| index + c.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_first_keyword() {
        for (sql, expected) in [
            ("select 1", "SELECT"),
            ("  \n\tInsert into t values (1)", "INSERT"),
            ("-- a comment\n/* another; */ update t set a = 1", "UPDATE"),
            ("; ;delete from t", "DELETE"),
            ("\u{feff}values (1)", "VALUES"),
            ("explain select 1", "EXPLAIN"),
            ("COMMIT;", "COMMIT"),
        ] {
            assert_eq!(command(sql).as_deref(), Some(expected), "{sql}");
        }
    }

    #[test]
    fn the_command_follows_common_table_expressions() {
        for (sql, expected) in [
            ("WITH a AS (SELECT 1) SELECT * FROM a", "SELECT"),
            (
                "with recursive a(x, y) as (select (1), 2), b as materialized (select ')') insert into t select 1",
                "INSERT",
            ),
            ("WITH replace AS (VALUES (1)) UPDATE t SET a = 1", "UPDATE"),
            ("WITH \"insert\" (a) AS (VALUES ('it''s )')) /* ) */ DELETE FROM t", "DELETE"),
            ("WITH", "WITH"),
        ] {
            assert_eq!(command(sql).as_deref(), Some(expected), "{sql}");
        }
    }

    #[test]
    fn a_statement_without_tokens_has_no_command() {
        for sql in ["", "  \n", ";", "-- only a comment", "/* open", "/**/;--"] {
            assert_eq!(command(sql), None, "{sql}");
        }
        assert_eq!(command("(select 1)").as_deref(), Some(""));
    }

    #[test]
    fn a_text_is_split_into_its_statements() {
        let trigger = "create temp trigger t after insert on a begin\n update b set c = case when 1 then 2 end; \
                       select 'x; end;'; END;";
        for (sql, expected) in [
            ("select 1", vec!["select 1"]),
            ("select 1; select 2;", vec!["select 1;", " select 2;"]),
            ("select ';' /* ; */; -- ;\nselect \";\"", vec!["select ';' /* ; */;", " -- ;\nselect \";\""]),
            (trigger, vec![trigger]),
            ("create table trigger_end (x); end;", vec!["create table trigger_end (x);", " end;"]),
            ("select 'open; text", vec!["select 'open; text"]),
            ("", vec![]),
            (";", vec![";"]),
        ] {
            assert_eq!(split(sql).collect::<Vec<_>>(), expected, "{sql}");
        }
        let both = format!("{trigger} select 1");
        assert_eq!(split(&both).collect::<Vec<_>>(), [trigger, " select 1"]);
    }

    #[test]
    fn a_rollback_to_a_savepoint_is_recognised() {
        for sql in ["rollback to a", "ROLLBACK TRANSACTION TO SAVEPOINT a", "/* x */ rollback\nto a"] {
            assert!(is_rollback_to_savepoint(sql), "{sql}");
        }
        for sql in ["rollback", "ROLLBACK TRANSACTION", "rollback;"] {
            assert!(!is_rollback_to_savepoint(sql), "{sql}");
        }
    }
}
