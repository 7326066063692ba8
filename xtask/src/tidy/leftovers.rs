//! Leftovers: unfinished work, debugging macros, and `unsafe` outside of its directory.

use super::rust::RustFile;
use super::{File, Finding};

const LEFTOVERS: &[&str] = &["todo", "unimplemented", "dbg"];

/// Each mark is split in two, because this file is checked, too.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// The only other file that may use `unsafe`: it sets up the heap of the firmware.
const FIRMWARE_HEAP: &str = "firmware/src/heap.rs";
const UNSAFE_DIRECTORY: &str = "crates/evenkeel-actor/src/raw/";

/// Finds macros that are for unfinished code.
pub(super) fn macros(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for three in file.tokens.windows(3) {
        let [name, mark, open] = three else { continue };
        let called = mark.text == "!" && ["(", "[", "{"].contains(&open.text.as_str());
        if called && LEFTOVERS.contains(&name.text.as_str()) {
            let message = format!("`{}!` may not be committed", name.text);
            findings.push(file.finding(name.line, message, "leftovers"));
        }
    }
    findings
}

pub(super) fn unsafety(file: &RustFile) -> Vec<Finding> {
    if file.path.starts_with(UNSAFE_DIRECTORY) || file.path == FIRMWARE_HEAP {
        return Vec::new();
    }
    let found = file.tokens.iter().filter(|token| token.text == "unsafe");
    found
        .map(|token| {
            file.finding(token.line, format!("`unsafe` is allowed in {UNSAFE_DIRECTORY} only"), "unsafe")
        })
        .collect()
}

/// Finds marks of unfinished work without an issue number on the same line.
///
/// A mark between backticks is allowed.
pub(super) fn unnumbered(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let marked = UNFINISHED.iter().find(|mark| has_mark(line, mark));
        if let Some(mark) = marked.filter(|_| !names_issue(line)) {
            findings.push(Finding {
                path: file.path.clone(),
                line: index + 1,
                message: format!("{mark} has no issue number; write `{mark}(#12): ...`"),
                rule: "unfinished",
            });
        }
    }
    findings
}

fn has_mark(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + mark.len()..].chars().next();
        let in_word = [before, after].into_iter().flatten().any(|c| c.is_alphanumeric() || c == '_');
        let in_backticks = before == Some('`') && after == Some('`');
        !in_word && !in_backticks
    })
}

fn names_issue(line: &str) -> bool {
    let digit_follows = |index: usize| line[index..].starts_with(|c: char| c.is_ascii_digit());
    ["#", "issue "]
        .iter()
        .any(|sign| line.match_indices(sign).any(|(index, _)| digit_follows(index + sign.len())))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    #[test]
    fn macros_for_unfinished_code_are_found_anywhere() {
        let text = "fn a() {\n    todo!()\n}\nproptest! { fn b() {\n    let c = std::dbg![1];\n} }\n";
        assert_eq!(
            messages(&macros(&rust("a.rs", text))),
            [(2, "`todo!` may not be committed"), (5, "`dbg!` may not be committed")]
        );
        assert_eq!(macros(&rust("a.rs", "fn a() { unimplemented!(\"later\") }")).len(), 1);
    }

    #[test]
    fn the_macro_names_without_a_call_pass() {
        let text = "// todo!()\nfn dbg(todo: u8) -> bool {\n    todo != 1 && \"todo!()\".is_empty()\n}\n";
        assert_eq!(messages(&macros(&rust("a.rs", text))), []);
    }

    #[test]
    fn unsafe_is_found_outside_of_its_directory() {
        let text = "fn a() {\n    unsafe { b() }\n}\n";
        assert_eq!(
            messages(&unsafety(&rust("crates/evenkeel-queue/src/a.rs", text))),
            [(2, "`unsafe` is allowed in crates/evenkeel-actor/src/raw/ only")]
        );
        assert_eq!(messages(&unsafety(&rust("crates/evenkeel-actor/src/raw/a.rs", text))), []);
        assert_eq!(messages(&unsafety(&rust(FIRMWARE_HEAP, text))), []);
        assert_eq!(messages(&unsafety(&rust("a.rs", "#![forbid(unsafe_code)] // unsafe"))), []);
    }

    #[test]
    fn unfinished_work_needs_an_issue_number() {
        for mark in UNFINISHED {
            for bad in ["// MARK: later", "# MARK(me)", "no MARK without"] {
                let text = format!("\n{}\n", bad.replace("MARK", mark));
                let findings = unnumbered(&file("a.toml", &text));
                assert_eq!(findings.len(), 1, "{text}");
                assert_eq!(findings[0].line, 2);
            }
            for good in ["// MARK(#12): later", "// MARK, issue 7", "write a `MARK`", "autoMARK"] {
                let text = good.replace("MARK", mark);
                assert_eq!(messages(&unnumbered(&file("a.rs", &text))), [], "{text}");
            }
        }
    }
}
