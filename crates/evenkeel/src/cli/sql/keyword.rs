//! Finds out by its first word whether a statement may be sent as one that only reads.

/// Words that begin statements that usually only read.
const READING: &[&str] = &["explain", "select", "show", "table", "values", "with"];

/// Effect that a statement may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The server rejects statements that write.
    Read,
    Write,
}

/// Returns the likely effect of a statement.
pub(super) fn effect_of(statement: &str) -> Effect {
    let word = first_word(statement);
    if READING.iter().any(|reading| word.eq_ignore_ascii_case(reading)) {
        Effect::Read
    } else {
        Effect::Write
    }
}

/// Returns the first word after white space, comments and opening parentheses.
fn first_word(statement: &str) -> &str {
    let mut rest = statement;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        let after = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n')
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/")
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            return &rest[..end];
        };
        rest = after.map_or("", |(_, after)| after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_decides() {
        for reading in [
            "select 1",
            "SELECT*from t",
            "  \n\tWith x as (select 1) select * from x",
            "values (1)",
            "explain delete from t",
            "show all",
            "table t",
            "-- a comment\n-- another\nselect 1",
            "/* insert */ /**/ select 1",
            "((select 1))",
        ] {
            assert_eq!(effect_of(reading), Effect::Read, "{reading}");
        }
        for writing in [
            "insert into t select 1",
            "selected",
            "",
            "-- select",
            "/* select",
            "-- select\nupdate t set n = 1",
            "/* select */ delete from t",
            "pragma user_version",
            "é select",
        ] {
            assert_eq!(effect_of(writing), Effect::Write, "{writing}");
        }
    }
}
