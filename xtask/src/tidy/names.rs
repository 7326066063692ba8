//! Names without meaning, which no type or module may have.

use super::rust::RustFile;
use super::{File, Finding};

const VAGUE_MODULES: &[&str] = &["common", "util", "utils", "helper", "helpers", "data", "info"];
const VAGUE_TYPES: &[&str] = &["Manager", "Helper"];
/// Names that the specifications give.
const SPECIFIED_TYPES: &[&str] = &["OptimizedLoadManager", "LoadManagerConfig"];

pub(super) fn types(file: &RustFile) -> Vec<Finding> {
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
    let numbered = |name: &str| {
        name.strip_prefix("Handler").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let handler_numbered = name.match_indices("Handler").any(|(index, _)| numbered(&name[index..]));
    let vague = handler_numbered || VAGUE_TYPES.iter().any(|word| name.contains(word));
    vague && !SPECIFIED_TYPES.contains(&name)
}

/// Finds modules by the names of their files and directories.
pub(super) fn modules(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_suffix(".rs") else { return Vec::new() };
    let found = path.split('/').find(|part| VAGUE_MODULES.contains(part));
    found
        .map(|part| Finding { path: file.path.clone(), line: 1, message: vague_module(part), rule: "names" })
        .into_iter()
        .collect()
}

/// Finds modules that are defined inside a file.
pub(super) fn inline_modules(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for three in file.tokens.windows(3) {
        let [keyword, name, open] = three else { continue };
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
        let lines: Vec<_> = types(&rust("a.rs", text)).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3, 4]);
    }

    #[test]
    fn specified_names_and_foreign_types_pass() {
        let text = "struct OptimizedLoadManager(ext::Manager);\nstruct LoadManagerConfig;\nstruct Handler;\n";
        assert_eq!(messages(&types(&rust("a.rs", text))), []);
    }

    #[test]
    fn vague_module_names_are_found() {
        for bad in ["crates/a/src/utils.rs", "crates/a/tests/common/server.rs"] {
            assert_eq!(modules(&file(bad, "")).len(), 1, "{bad}");
        }
        let findings = inline_modules(&rust("a.rs", "\nmod helpers {}\n"));
        assert_eq!(
            messages(&findings),
            [(2, "a module called `helpers` can hold anything; name it after its contents")]
        );
    }

    #[test]
    fn modules_named_after_their_contents_pass() {
        for good in ["crates/a/src/database.rs", "docs/data/numbers.csv"] {
            assert_eq!(messages(&modules(&file(good, ""))), [], "{good}");
        }
        assert_eq!(messages(&inline_modules(&rust("a.rs", "mod utils;\nmod pipeline {}\n"))), []);
    }
}
