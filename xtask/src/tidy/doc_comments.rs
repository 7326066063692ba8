//! Checks the first words of doc comments (no "What", "Whether", "Has" ...), and bans vague pronouns
//! anywhere in them.

use super::Finding;
use super::rust::RustFile;
use super::words::words;

const RULE: &str = "doc-comments";

const BANNED_BEGINNINGS: &[&str] = &[
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

const BANNED_WORDS: &[&str] = &["whoever", "somebody"];

pub(super) fn check(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for doc in &file.docs {
        let doc_words = words(&doc.text);
        let begins_with = |beginning: &&&str| {
            let banned: Vec<_> = beginning.split(' ').collect();
            let is_same_word =
                |(word, banned): (&super::words::Word, &&str)| word.text.eq_ignore_ascii_case(banned);
            banned.len() <= doc_words.len()
                && starts_with_prose(&doc.text)
                && doc_words.iter().zip(&banned).all(is_same_word)
        };
        if let Some(beginning) = BANNED_BEGINNINGS.iter().find(begins_with) {
            let message = format!("doc comment begins with \"{beginning}\"; begin with a verb or a noun");
            findings.push(file.finding(doc.line, message, RULE));
        }
        for word in &doc_words {
            if let Some(vague) = BANNED_WORDS.iter().find(|vague| word.text.eq_ignore_ascii_case(vague)) {
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
    fn every_banned_beginning_is_reported() {
        for beginning in BANNED_BEGINNINGS {
            for comment in ["/// {} it is.\nfn a() {}\n", "//! {} it is.\n", "/** {} it is. */\nfn a() {}\n"]
            {
                let text = comment.replace("{}", beginning);
                let expected =
                    format!("doc comment begins with \"{beginning}\"; begin with a verb or a noun");
                assert_eq!(messages(&check(&rust("a.rs", &text))), [(1, expected.as_str())], "{text}");
            }
        }
    }

    #[test]
    fn doc_attributes_fields_and_macro_bodies_are_checked() {
        for bad in [
            "#[doc = \"What it is.\"]\nfn a() {}",
            "#![doc = \"How it works.\"]",
            "#[cfg_attr(a, doc = \"Who it is.\")]\nfn a() {}",
            "struct A {\n    /// Whom to tell.\n    b: u8,\n}",
            "proptest! {\n    /// What's up.\n    fn a() {}\n}",
            "/// **Why** it is.\nfn a() {}",
        ] {
            assert_eq!(check(&rust("a.rs", bad)).len(), 1, "{bad}");
        }
    }

    #[test]
    fn only_the_first_words_of_a_comment_are_checked() {
        for good in [
            "/// Returns the key\n/// which is next.\n///\n/// When idle, it returns `None`.\nfn a() {}",
            "// What it is.\nfn a() {}",
            "/// `What` is a type.\nfn a() {}",
            "/// However it ends.\nfn a() {}",
            "/// So that it ends.\nfn a() {}",
            "/// Until it ends.\nfn a() {}",
            "#[doc(hidden)]\nfn what() {}",
        ] {
            assert_eq!(messages(&check(&rust("a.rs", good))), [], "{good}");
        }
    }

    #[test]
    fn inner_and_outer_docs_in_a_row_are_separate_comments() {
        let text = "//! Header.\n\n/// What it is.\nfn a() {}\n";
        assert_eq!(check(&rust("a.rs", text)).len(), 1);
        let text = "//! Header.\n/// What it is.\nfn a() {}\n";
        assert_eq!(check(&rust("a.rs", text))[0].line, 2);
    }

    #[test]
    fn vague_pronouns_are_reported_with_their_line() {
        let text = "/// Wakes the worker\n/// or whoever waits,\n/// or Somebody else.\nfn a() {}\n";
        assert_eq!(
            messages(&check(&rust("a.rs", text))),
            [
                (2, "doc comment contains \"whoever\"; name the caller, client or worker"),
                (3, "doc comment contains \"somebody\"; name the caller, client or worker")
            ]
        );
    }
}
