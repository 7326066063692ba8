//! Rejects vague names of types and modules.

use super::rust::RustFile;
use super::{File, Finding};

const VAGUE_MODULES: &[&str] = &["common", "util", "utils", "helper", "helpers", "data", "info"];
const VAGUE_TYPES: &[&str] = &["Manager", "Helper"];
/// Exceptions: names that docs/specs.md requires.
const ALLOWED_TYPES: &[&str] = &["OptimizedLoadManager", "LoadManagerConfig"];

pub(super) fn check_types(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in file.type_definitions() {
        if is_vague(&name.text) {
            let message = format!("the name `{}` does not say what it does", name.text);
            findings.push(file.finding(name.line, message, "names"));
        }
    }
    findings
}

fn is_vague(name: &str) -> bool {
    let is_numbered_handler = |name: &str| {
        name.strip_prefix("Handler").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let has_numbered_handler =
        name.match_indices("Handler").any(|(index, _)| is_numbered_handler(&name[index..]));
    let vague = has_numbered_handler || VAGUE_TYPES.iter().any(|word| name.contains(word));
    vague && !ALLOWED_TYPES.contains(&name)
}

/// Finds vague module names in a file's path.
pub(super) fn check_module_path(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_suffix(".rs") else { return Vec::new() };
    let found = path.split('/').find(|part| VAGUE_MODULES.contains(part));
    found
        .map(|part| Finding { path: file.path.clone(), line: 1, message: vague_module(part), rule: "names" })
        .into_iter()
        .collect()
}

/// Finds vague names of inline modules (`mod name { … }`).
pub(super) fn check_inline_modules(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for window in file.tokens.windows(3) {
        let [keyword, name, open] = window else { continue };
        if keyword.text == "mod" && open.text == "{" && VAGUE_MODULES.contains(&name.text.as_str()) {
            findings.push(file.finding(name.line, vague_module(&name.text), "names"));
        }
    }
    findings
}

fn vague_module(name: &str) -> String {
    format!("a module called `{name}` can hold anything; name it after its contents")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    #[test]
    fn vague_type_names_are_found() {
        let text = "struct NodeManager;\npub enum HelperKind {}\ntrait Handler2 {}\ntype SqlHandler3 = u8;\n";
        let lines: Vec<_> = check_types(&rust("a.rs", text)).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3, 4]);
    }

    #[test]
    fn specified_names_and_foreign_types_pass() {
        let text = "struct OptimizedLoadManager(ext::Manager);\nstruct LoadManagerConfig;\nstruct Handler;\n";
        assert_eq!(messages(&check_types(&rust("a.rs", text))), []);
    }

    #[test]
    fn vague_module_names_are_found() {
        for bad in ["crates/a/src/utils.rs", "crates/a/tests/common/server.rs"] {
            assert_eq!(check_module_path(&file(bad, "")).len(), 1, "{bad}");
        }
        let findings = check_inline_modules(&rust("a.rs", "\nmod helpers {}\n"));
        assert_eq!(
            messages(&findings),
            [(2, "a module called `helpers` can hold anything; name it after its contents")]
        );
    }

    #[test]
    fn modules_named_after_their_contents_pass() {
        assert_eq!(messages(&check_module_path(&file("crates/a/src/database.rs", ""))), []);
        assert_eq!(messages(&check_inline_modules(&rust("a.rs", "mod pipeline {}\n"))), []);
    }

    #[test]
    fn other_files_and_module_declarations_are_skipped() {
        assert_eq!(messages(&check_module_path(&file("docs/data/numbers.csv", ""))), []);
        assert_eq!(messages(&check_inline_modules(&rust("a.rs", "mod utils;\n"))), []);
    }
}
