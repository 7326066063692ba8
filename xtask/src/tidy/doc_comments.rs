//! Beginnings of doc comments: a sentence about the item, never a clause that starts with a question word.

use super::Finding;
use super::rust::RustFile;
use super::words::words;

const RULE: &str = "doc-comments";

const BEGINNINGS: &[&str] = &[
    "What",
    "Who",
    "Whom",
    "Whose",
    "Whether",
    "Which",
    "How",
    "Why",
    "Where",
    "When",
    "Until when",
    "Since when",
    "So many",
    "Has",
    "Says",
    "Tells",
];

const VAGUE: &[&str] = &["whoever", "somebody"];

pub(super) fn beginnings(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for doc in &file.docs {
        let found = words(&doc.text);
        let begins_with = |beginning: &&&str| {
            let expected: Vec<_> = beginning.split(' ').collect();
            let matches =
                |(word, expected): (&super::words::Word, &&str)| word.text.eq_ignore_ascii_case(expected);
            expected.len() <= found.len()
                && starts_with_prose(&doc.text)
                && found.iter().zip(&expected).all(matches)
        };
        if let Some(beginning) = BEGINNINGS.iter().find(begins_with) {
            let message = format!("doc comment begins with \"{beginning}\"; begin with a verb or a noun");
            findings.push(file.finding(doc.line, message, RULE));
        }
        for word in &found {
            if let Some(vague) = VAGUE.iter().find(|vague| word.text.eq_ignore_ascii_case(vague)) {
                let message = format!("doc comment contains \"{vague}\"; name the caller, client or worker");
                findings.push(file.finding(doc.line + word.line - 1, message, RULE));
            }
        }
    }
    findings
}

/// Reports whether a doc comment starts with a word, possibly emphasised or in a heading, and not with code.
fn starts_with_prose(text: &str) -> bool {
    let start = text.trim_start_matches(|c: char| c.is_whitespace() || "#*_".contains(c));
    start.starts_with(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, rust};
    use super::*;

    #[test]
    fn every_question_word_at_the_beginning_is_found() {
        for beginning in BEGINNINGS {
            for comment in ["/// {} it is.\nfn a() {}\n", "//! {} it is.\n", "/** {} it is. */\nfn a() {}\n"]
            {
                let text = comment.replace("{}", beginning);
                let expected =
                    format!("doc comment begins with \"{beginning}\"; begin with a verb or a noun");
                assert_eq!(messages(&beginnings(&rust("a.rs", &text))), [(1, expected.as_str())], "{text}");
            }
        }
    }

    #[test]
    fn attributes_fields_and_macros_are_read_too() {
        for bad in [
            "#[doc = \"What it is.\"]\nfn a() {}",
            "#![doc = \"How it works.\"]",
            "#[cfg_attr(a, doc = \"Who it is.\")]\nfn a() {}",
            "struct A {\n    /// Whom to tell.\n    b: u8,\n}",
            "proptest! {\n    /// What's up.\n    fn a() {}\n}",
            "/// **Why** it is.\nfn a() {}",
        ] {
            assert_eq!(beginnings(&rust("a.rs", bad)).len(), 1, "{bad}");
        }
    }

    #[test]
    fn only_the_first_words_of_a_block_count() {
        for good in [
            "/// Returns the key\n/// which is next.\n///\n/// When idle, it returns `None`.\nfn a() {}",
            "// What it is.\nfn a() {}",
            "/// `What` is a type.\nfn a() {}",
            "/// However it ends.\nfn a() {}",
            "/// So that it ends.\nfn a() {}",
            "/// Until it ends.\nfn a() {}",
            "#[doc(hidden)]\nfn what() {}",
        ] {
            assert_eq!(messages(&beginnings(&rust("a.rs", good))), [], "{good}");
        }
    }

    #[test]
    fn two_blocks_in_a_row_are_two_comments() {
        let text = "//! Header.\n\n/// What it is.\nfn a() {}\n";
        assert_eq!(beginnings(&rust("a.rs", text)).len(), 1);
        let text = "//! Header.\n/// What it is.\nfn a() {}\n";
        assert_eq!(beginnings(&rust("a.rs", text))[0].line, 2);
    }

    #[test]
    fn vague_persons_are_found_on_their_line() {
        let text = "/// Wakes the worker\n/// or whoever waits,\n/// or Somebody else.\nfn a() {}\n";
        assert_eq!(
            messages(&beginnings(&rust("a.rs", text))),
            [
                (2, "doc comment contains \"whoever\"; name the caller, client or worker"),
                (3, "doc comment contains \"somebody\"; name the caller, client or worker")
            ]
        );
    }
}
