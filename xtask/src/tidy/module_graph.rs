//! Graphs of modules in Markdown: a `mermaid` block whose second line is `%% modules of <directory>`.
//!
//! Every arrow `a --> b` must exist: module `a` names `crate::b`. A module below another is written `a/b`, or as a node
//! `a_b["a/b"]`. Tests and models of a module are not part of it.

use super::rust::{RustFile, Token};
use super::{File, Finding};
use std::collections::BTreeMap;

const RULE: &str = "module-graph";
const MARKER: &str = "%% modules of ";
/// Parts of a path that hold tests or models.
const TEST_PARTS: [&str; 2] = ["tests", "loom_models"];

/// Finds arrows between modules of which the first does not use the second.
pub(super) fn false_arrows(files: &[File], rust_files: &[RustFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for graph in graphs(&file.text) {
            let violations = graph.violations(rust_files);
            findings.extend(violations.into_iter().map(|(line, message)| Finding {
                path: file.path.clone(),
                line,
                message,
                rule: RULE,
            }));
        }
    }
    findings
}

/// One block, and the number of its first line.
struct Graph<'a> {
    directory: &'a str,
    first_line: usize,
    lines: Vec<&'a str>,
}

impl Graph<'_> {
    fn violations(&self, rust_files: &[RustFile]) -> Vec<(usize, String)> {
        let labels = self.labels();
        let mut violations = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            let Some((from, to)) = line.split_once("-->") else { continue };
            let name = |node: &str| labels.get(node_id(node)).copied().unwrap_or(node_id(node)).to_owned();
            let from = name(from);
            let to = name(to);
            let message = match self.uses(&from, &to, rust_files) {
                None => format!("there is no module `{from}` in {}", self.directory),
                Some(false) => format!("`{from}` does not use `crate::{}`", to.replace('/', "::")),
                Some(true) => continue,
            };
            violations.push((self.first_line + index, message));
        }
        violations
    }

    /// Returns the labels of the nodes that have one.
    fn labels(&self) -> BTreeMap<&str, &str> {
        self.lines.iter().filter_map(|line| labelled_node(line)).collect()
    }

    /// Reports whether a module uses another; `None` if the module does not exist.
    fn uses(&self, from: &str, to: &str, rust_files: &[RustFile]) -> Option<bool> {
        let path: Vec<_> = ["crate"].into_iter().chain(to.split('/')).collect();
        let file = format!("{}/{from}.rs", self.directory);
        let directory = format!("{}/{from}/", self.directory);
        let belongs = |rust: &&RustFile| {
            let below = rust.path.strip_prefix(&directory);
            let is_test = below.is_some_and(|below| {
                below.trim_end_matches(".rs").split('/').any(|part| TEST_PARTS.contains(&part))
            });
            rust.path == file || (below.is_some() && !is_test)
        };
        let mut parts = rust_files.iter().filter(belongs).peekable();
        parts.peek()?;
        Some(parts.any(|rust| names_path(&rust.tokens, &path)))
    }
}

/// Reports whether the tokens contain a path, in which two colons stand between two names.
fn names_path(tokens: &[Token], path: &[&str]) -> bool {
    let expected: Vec<&str> = path.iter().flat_map(|name| [":", ":", name]).skip(2).collect();
    tokens
        .windows(expected.len())
        .any(|window| window.iter().map(|token| token.text.as_str()).eq(expected.iter().copied()))
}

/// Lists the marked blocks of a page.
fn graphs(markdown: &str) -> Vec<Graph<'_>> {
    let lines: Vec<_> = markdown.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(directory) = line.trim().strip_prefix(MARKER) else { continue };
        let block: Vec<_> =
            lines[index + 1..].iter().take_while(|line| !line.trim().starts_with("```")).copied().collect();
        found.push(Graph { directory: directory.trim_end_matches('/'), first_line: index + 2, lines: block });
    }
    found
}

/// Returns identifier and label of the node that a line defines.
fn labelled_node(line: &str) -> Option<(&str, &str)> {
    let (id, rest) = line.trim().split_once("[\"")?;
    Some((id, rest.split_once("\"]")?.0))
}

/// Returns the identifier of a node, without its label.
fn node_id(node: &str) -> &str {
    let node = node.trim();
    node.split(['[', '(']).next().unwrap_or(node)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    #[test]
    fn an_arrow_that_exists_passes() {
        for good in ["a --> b", "a --> b_c", "b --> d", "b_c[\"b/c\"]", "classDef default fill:none"] {
            assert_eq!(check(good), [] as [(usize, String); 0], "{good}");
        }
    }

    #[test]
    fn an_arrow_that_does_not_exist_is_found() {
        assert_eq!(check("b --> a"), [(5, "`b` does not use `crate::a`".to_owned())]);
        assert_eq!(check("a --> d"), [(5, "`a` does not use `crate::d`".to_owned())]);
        assert_eq!(check("e --> a"), [(5, "there is no module `e` in src".to_owned())]);
    }

    #[test]
    fn what_only_a_test_uses_is_no_arrow() {
        assert_eq!(check("b --> t").len(), 1);
    }

    #[test]
    fn other_blocks_are_ignored() {
        let page = file("a.md", "```mermaid\nflowchart TD\nx --> y\n```\n");
        assert_eq!(messages(&false_arrows(&[page], &[])), []);
    }

    fn check(line: &str) -> Vec<(usize, String)> {
        let page =
            format!("```mermaid\nflowchart TD\n%% modules of src\nb_c[\"b/c\"]\n{line}\n```\nz --> a\n");
        let sources = [
            rust("src/a.rs", "use crate::b::c::Item; // crate::d"),
            rust("src/b.rs", ""),
            rust("src/b/c.rs", "fn f() { crate::d::g() }"),
            rust("src/b/tests.rs", "use crate::t;"),
        ];
        let findings = false_arrows(&[file("a.md", &page)], &sources);
        messages(&findings).into_iter().map(|(line, message)| (line, message.to_owned())).collect()
    }
}
