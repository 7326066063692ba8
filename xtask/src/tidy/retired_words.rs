//! Rejects words that earlier code used instead of the usual terms, and identifiers made of them.
//!
//! Only the files in [`EXEMPT`] may contain them.

use super::rust::RustFile;
use super::words::{Word, joins, words};
use super::{File, Finding};

const RULE: &str = "retired-words";

/// Files that quote retired words on purpose.
const EXEMPT: &[&str] = &[
    "docs/words.md",
    "CHANGELOG.md",
    "xtask/src/tidy/retired_words.rs",
    // Lists old configuration keys with their replacements.
    "crates/evenkeel/src/config/renamed_keys.rs",
];

/// Each retired word or phrase with the term to use instead.
const RETIRED: &[(&str, &str)] = &[
    ("keeper", "queue actor, or idle reaper for a pool"),
    ("keepers", "queue actors"),
    ("parcel", "lease guard"),
    ("parcels", "lease guards"),
    ("errand", "request"),
    ("errands", "requests"),
    ("vigil", "drop notifier"),
    ("shelf", "segment"),
    ("shelves", "segments"),
    ("burial", "dead-lettering"),
    ("bury", "dead-letter"),
    ("buried", "dead-lettered"),
    ("spared", "in cooldown"),
    ("crew", "workers, or worker slots"),
    ("door", "API, or server"),
    ("doors", "APIs, or server"),
    ("desk", "staging context"),
    ("pushed out", "evicted"),
    ("push out", "evict"),
    ("the run right", "run permit"),
    ("a run right", "run permit"),
    ("its run right", "run permit"),
    ("the walk", "the pipeline"),
    ("a walk", "a pipeline"),
    ("one walk", "one pipeline"),
    ("its walk", "its pipeline"),
    ("walk's", "the pipeline's"),
    ("spare_secs", "cooldown_secs"),
    ("spare_max", "cooldown_max"),
];

/// A word that no identifier may contain; it is allowed in prose.
const RETIRED_PART: &str = "told";

/// Finds retired words and phrases in Rust files and Markdown, identifiers included.
pub(super) fn phrases(file: &File) -> Vec<Finding> {
    if !is_checked(&file.path) {
        return Vec::new();
    }
    let phrases: Vec<Vec<Word>> = RETIRED.iter().map(|(phrase, _)| words(phrase)).collect();
    let found = words(&file.text);
    let mut findings: Vec<Finding> = Vec::new();
    for index in 0..found.len() {
        for (phrase, (spelling, instead)) in phrases.iter().zip(RETIRED) {
            if matches_phrase(&found[index..], phrase) && !is_off_the_shelf(&found[..=index]) {
                let message = format!("\"{spelling}\" is retired; use: {instead}");
                findings.push(Finding {
                    path: file.path.clone(),
                    line: found[index].line,
                    message,
                    rule: RULE,
                });
            }
        }
    }
    findings.dedup();
    findings
}

fn is_checked(path: &str) -> bool {
    (path.ends_with(".rs") || path.ends_with(".md")) && !EXEMPT.contains(&path)
}

fn matches_phrase(found: &[Word], phrase: &[Word]) -> bool {
    if found.len() < phrase.len() {
        return false;
    }
    found.iter().zip(phrase).enumerate().all(|(index, (word, expected))| {
        let connected = match expected.gap {
            _ if index == 0 => true,
            "'" => word.gap == "'" || word.gap == "\u{2019}",
            "_" => word.gap == "_",
            _ => joins(word.gap),
        };
        connected && word.text.eq_ignore_ascii_case(expected.text)
    })
}

fn is_off_the_shelf(found: &[Word]) -> bool {
    let Some([off, the, last]) = found.last_chunk() else { return false };
    [off, the, last]
        .into_iter()
        .zip(["off", "the", "shelf"])
        .all(|(word, expected)| word.text.eq_ignore_ascii_case(expected))
}

/// Finds identifiers that contain the retired part.
pub(super) fn identifiers(file: &RustFile) -> Vec<Finding> {
    if !is_checked(&file.path) {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = Vec::new();
    for token in file.tokens.iter().filter(|token| token.is_name()) {
        if words(&token.text).iter().any(|word| word.text.eq_ignore_ascii_case(RETIRED_PART)) {
            let message = format!("identifier `{}` has the retired part `{RETIRED_PART}`", token.text);
            findings.push(file.finding(token.line, message, RULE));
        }
    }
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    #[test]
    fn retired_words_are_found_in_prose_and_identifiers_in_any_case() {
        for bad in [
            "the Keeper of it",
            "keepers_replaced",
            "QueueDoor",
            "LLM doors",
            "evenkeel-door",
            "a keeper's end",
            "was pushed out",
            "was pushed\n/// out",
            "PushedOut",
            "push-out",
            "the run right",
            "its\n    // walk",
            "the walk's end",
            "spare_max_secs = 1",
        ] {
            assert!(!phrases(&file("crates/a/src/b.rs", bad)).is_empty(), "{bad}");
            assert!(!phrases(&file("docs/b.md", bad)).is_empty(), "{bad}");
        }
    }

    #[test]
    fn other_words_pass() {
        for good in [
            "an off-the-shelf proxy",
            "an outdoor desktop",
            "we walk the tree, and walking is fine",
            "it was pushed. Out of order",
            "run right away",
            "a spare max",
        ] {
            assert_eq!(messages(&phrases(&file("a.md", good))), [], "{good}");
        }
    }

    #[test]
    fn a_finding_names_the_line_and_the_usual_term() {
        assert_eq!(
            messages(&phrases(&file("a.md", "# Title\n\nA shelf.\n"))),
            [(3, "\"shelf\" is retired; use: segment")]
        );
    }

    #[test]
    fn a_phrase_is_reported_where_it_starts() {
        assert_eq!(
            messages(&phrases(&file("a.rs", "// it was pushed\n// out\n"))),
            [(1, "\"pushed out\" is retired; use: evicted")]
        );
    }

    #[test]
    fn other_file_types_and_exempt_files_are_not_checked() {
        for path in ["a.toml", "docs/words.md", "CHANGELOG.md", "xtask/src/tidy/retired_words.rs"] {
            assert_eq!(messages(&phrases(&file(path, "keeper"))), [], "{path}");
        }
    }

    #[test]
    fn told_is_found_as_a_part_of_identifiers_only() {
        let text = "fn a() {\n    let told_x = 1;\n    let x_told = told;\n    let b = PoolTold;\n}\n";
        let found = identifiers(&rust("a.rs", text));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3, 3, 4]);
        let good = "// told\nfn untold(toldest: u8) -> &'static str {\n    \"told\"\n}\n";
        assert_eq!(messages(&identifiers(&rust("a.rs", good))), []);
    }
}
