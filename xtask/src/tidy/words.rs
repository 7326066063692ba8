//! Text as a sequence of words, so that a phrase is found whether it is written with spaces, hyphens, underscores or
//! in camel case, and across the line breaks of a comment.

/// A run of letters and digits; `QueueActor` and `queue_actor` are two words each.
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
    /// The text between the previous word and this one.
    pub(super) gap: &'a str,
}

/// Splits text into its words.
pub(super) fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut line = 1;
    let mut gap_start = 0;
    let mut word_start = None;
    let mut before = ' ';
    for (index, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let is_camel_case_boundary = before.is_lowercase() && c.is_uppercase();
        if let Some(start) = word_start
            && (is_camel_case_boundary || !c.is_alphanumeric())
        {
            words.push(Word { text: &text[start..index], line, gap: &text[gap_start..start] });
            gap_start = index;
            word_start = None;
        }
        if c.is_alphanumeric() && word_start.is_none() {
            word_start = Some(index);
        }
        line += usize::from(c == '\n');
        before = c;
    }
    words
}

/// Reports whether a gap is a line break within one comment or paragraph.
pub(super) fn is_line_break(gap: &str) -> bool {
    gap.contains('\n')
        && !gap.contains("\n\n")
        && gap.chars().all(|c| c.is_whitespace() || "/!*>#-".contains(c))
}

/// Reports whether two words with this gap between them read as one phrase or belong to one identifier.
pub(super) fn joins(gap: &str) -> bool {
    gap.chars().all(|c| " -_".contains(c)) || is_line_break(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_at_underscores_and_camel_case_boundaries() {
        assert_eq!(
            split("run_permit RunPermit HTTP2Server"),
            ["run", "permit", "Run", "Permit", "HTTP2Server"]
        );
    }

    #[test]
    fn each_word_has_its_line() {
        let lines: Vec<_> = words("one\n\ntwo three\nfour").iter().map(|word| word.line).collect();
        assert_eq!(lines, [1, 3, 3, 4]);
    }

    #[test]
    fn a_phrase_may_continue_on_the_next_line_of_the_same_comment() {
        assert!(joins("\n    /// ") && joins("\n//! ") && joins("\n> ") && joins("-") && joins(""));
        assert!(!joins(". ") && !joins("\n\n") && !joins(", ") && !joins("::"));
    }

    fn split(text: &str) -> Vec<&str> {
        words(text).iter().map(|word| word.text).collect()
    }
}
