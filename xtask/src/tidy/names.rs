//! Names that say nothing, which nothing of ours may have.

use super::rust::RustFile;
use super::{File, Finding};

const EMPTY_MODULES: &[&str] = &["common", "util", "utils", "helper", "helpers", "data", "info"];
const EMPTY_TYPES: &[&str] = &["Manager", "Helper"];
/// Names the specification gives; they stay as given.
const GIVEN_TYPES: &[&str] = &["OptimizedLoadManager", "LoadManagerConfig"];

pub(super) fn types(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in file.type_definitions() {
        if says_nothing(&name.text) {
            let message = format!("`{}` does not say what it does; find its verb or its noun", name.text);
            findings.push(file.finding(name.line, message, "names"));
        }
    }
    findings
}

fn says_nothing(name: &str) -> bool {
    let numbered = |name: &str| {
        name.strip_prefix("Handler").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let handler_numbered = name.match_indices("Handler").any(|(at, _)| numbered(&name[at..]));
    let empty = handler_numbered || EMPTY_TYPES.iter().any(|word| name.contains(word));
    empty && !GIVEN_TYPES.contains(&name)
}

/// Finds modules by their files' and folders' names.
pub(super) fn modules(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_suffix(".rs") else { return Vec::new() };
    let found = path.split('/').find(|part| EMPTY_MODULES.contains(part));
    found
        .map(|part| Finding { path: file.path.clone(), line: 1, message: empty_module(part), rule: "names" })
        .into_iter()
        .collect()
}

/// Finds modules without a file of their own.
pub(super) fn inline_modules(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for three in file.tokens.windows(3) {
        let [keyword, name, open] = three else { continue };
        if keyword.text == "mod" && open.text == "{" && EMPTY_MODULES.contains(&name.text.as_str()) {
            findings.push(file.finding(name.line, empty_module(&name.text), "names"));
        }
    }
    findings
}

fn empty_module(name: &str) -> String {
    format!("a module called `{name}` can hold anything; name it after what it holds")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    #[test]
    fn types_that_say_nothing_are_found() {
        let text = "struct NodeManager;\npub enum HelperKind {}\ntrait Handler2 {}\ntype SqlHandler3 = u8;\n";
        let lines: Vec<_> = types(&rust("a.rs", text)).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3, 4]);
    }

    #[test]
    fn given_names_and_other_peoples_types_stay() {
        let text = "struct OptimizedLoadManager(ext::Manager);\nstruct LoadManagerConfig;\nstruct Handler;\n";
        assert_eq!(messages(&types(&rust("a.rs", text))), []);
    }

    #[test]
    fn modules_that_can_hold_anything_are_found() {
        for bad in ["crates/a/src/utils.rs", "crates/a/tests/common/server.rs"] {
            assert_eq!(modules(&file(bad, "")).len(), 1, "{bad}");
        }
        let findings = inline_modules(&rust("a.rs", "\nmod helpers {}\n"));
        assert_eq!(
            messages(&findings),
            [(2, "a module called `helpers` can hold anything; name it after what it holds")]
        );
    }

    #[test]
    fn modules_named_after_what_they_hold_pass() {
        for good in ["crates/a/src/database.rs", "docs/data/numbers.csv"] {
            assert_eq!(messages(&modules(&file(good, ""))), [], "{good}");
        }
        assert_eq!(messages(&inline_modules(&rust("a.rs", "mod utils;\nmod walk {}\n"))), []);
    }
}
