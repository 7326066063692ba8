//! References from Markdown to functions, written `path/to/file.rs::function` or `path/to/file.rs::Type::function`
//! between backticks, with the path relative to the repository's root.
//!
//! Every reference in every page must exist, and ARCHITECTURE.md must have the section that follows a request from
//! function to function.

use super::rust::RustFile;
use super::{File, Finding};

const RULE: &str = "code-references";
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const LIFE_OF_A_REQUEST: &str = "## The life of a request";
/// The changelog, which may mention removed functions.
const CHANGELOG: &str = "CHANGELOG.md";

/// A backticked reference and the line that has it.
struct Reference<'a> {
    line: usize,
    text: &'a str,
    path: &'a str,
    type_name: Option<&'a str>,
    function: &'a str,
}

/// Finds references to missing files or functions, and the missing section of ARCHITECTURE.md.
pub(super) fn missing(files: &[File], rust_files: &[RustFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md") && file.path != CHANGELOG) {
        for reference in references(&file.text) {
            if let Some(message) = violation(&reference, rust_files) {
                findings.push(Finding { path: file.path.clone(), line: reference.line, message, rule: RULE });
            }
        }
        if file.path == ARCHITECTURE && !describes_a_request(&file.text) {
            let message =
                format!("the section \"{LIFE_OF_A_REQUEST}\" with references to functions is missing");
            findings.push(Finding { path: file.path.clone(), line: 1, message, rule: RULE });
        }
    }
    findings
}

fn violation(reference: &Reference, rust_files: &[RustFile]) -> Option<String> {
    let Reference { text, path, type_name, function, .. } = reference;
    let Some(file) = rust_files.iter().find(|file| file.path == *path) else {
        return Some(format!("`{text}`: there is no file {path}"));
    };
    let defines = |keywords: &[&str], name: &str| {
        file.tokens.windows(2).any(|pair| keywords.contains(&pair[0].text.as_str()) && pair[1].text == name)
    };
    if !defines(&["fn"], function) {
        return Some(format!("`{text}`: {path} defines no function `{function}`"));
    }
    let is_absent = |name: &&&str| !file.tokens.iter().any(|token| token.text == **name);
    type_name.as_ref().filter(is_absent).map(|name| format!("`{text}`: {path} has no type `{name}`"))
}

/// Reports whether the section exists and has at least one reference.
fn describes_a_request(markdown: &str) -> bool {
    let after = markdown.lines().skip_while(|line| line.trim_end() != LIFE_OF_A_REQUEST).skip(1);
    let section: Vec<_> =
        after.take_while(|line| !line.starts_with("## ") && !line.starts_with("# ")).collect();
    !references(&section.join("\n")).is_empty()
}

/// Lists the references of a page; code blocks are ignored.
fn references(markdown: &str) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    let mut in_code_block = false;
    for (index, line) in markdown.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        } else if !in_code_block {
            // Every second piece is between backticks.
            let codes = line.split('`').skip(1).step_by(2);
            found.extend(codes.filter_map(|code| parse(code, index + 1)));
        }
    }
    found
}

fn parse(text: &str, line: usize) -> Option<Reference<'_>> {
    let (stem, names) = text.split_once(".rs::")?;
    let path = &text[..stem.len() + ".rs".len()];
    let names = names.strip_suffix("()").unwrap_or(names);
    let (type_name, function) = match names.rsplit_once("::") {
        Some((type_name, function)) => (Some(type_name), function),
        None => (None, names),
    };
    Some(Reference { line, text, path, type_name, function })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages, rust};
    use super::*;

    const PATH: &str = "crates/a/src/b.rs";

    #[test]
    fn references_to_existing_functions_pass() {
        for good in [
            "`crates/a/src/b.rs::handle`",
            "| 1 | `crates/a/src/b.rs::Proxy::handle` | parses |",
            "- `crates/a/src/b.rs::handle()` and `crates/a/src/b.rs::Proxy::poll`",
            "a path alone, `crates/a/src/c.rs`, and `Type::function`",
            "```\n`crates/a/src/c.rs::gone`\n```",
        ] {
            assert_eq!(check(good), [] as [String; 0], "{good}");
        }
    }

    #[test]
    fn references_to_missing_files_functions_and_types_are_found() {
        assert_eq!(
            check("`crates/a/src/c.rs::handle`"),
            ["3: `crates/a/src/c.rs::handle`: there is no file crates/a/src/c.rs"]
        );
        assert_eq!(
            check("`crates/a/src/b.rs::gone`"),
            ["3: `crates/a/src/b.rs::gone`: crates/a/src/b.rs defines no function `gone`"]
        );
        assert_eq!(
            check("`crates/a/src/b.rs::Gone::handle`"),
            ["3: `crates/a/src/b.rs::Gone::handle`: crates/a/src/b.rs has no type `Gone`"]
        );
    }

    #[test]
    fn a_call_or_a_comment_is_not_a_definition() {
        assert_eq!(check("`crates/a/src/b.rs::called`").len(), 1);
        assert_eq!(check("`crates/a/src/b.rs::mentioned`").len(), 1);
    }

    #[test]
    fn every_page_but_the_changelog_is_checked() {
        let page = |path| missing(&[file(path, "`crates/a/src/c.rs::gone`")], &[]).len();
        assert_eq!((page("docs/specs.md"), page("CHANGELOG.md"), page("a.rs")), (1, 0, 0));
    }

    #[test]
    fn the_architecture_must_have_the_section_on_the_life_of_a_request() {
        let check_architecture = |text: &str| messages_of(&[file(ARCHITECTURE, text)]);
        let expected =
            ["1: the section \"## The life of a request\" with references to functions is missing"];
        assert_eq!(check_architecture("# Architecture\n"), expected);
        assert_eq!(
            check_architecture(
                "## The life of a request\n\nNothing.\n\n## Next\n\n`crates/a/src/b.rs::handle`\n"
            ),
            expected
        );
        assert_eq!(
            check_architecture("## The life of a request\n\n### A chat\n\n- `crates/a/src/b.rs::handle`\n"),
            [] as [String; 0]
        );
    }

    fn check(text: &str) -> Vec<String> {
        messages_of(&[file("docs/page.md", &format!("# Page\n\n{text}\n"))])
    }

    fn messages_of(files: &[File]) -> Vec<String> {
        let source =
            "impl Proxy {\n    pub async fn handle() { called() } // fn mentioned\n    fn poll() {}\n}\n";
        let findings = missing(files, &[rust(PATH, source)]);
        messages(&findings).iter().map(|(line, message)| format!("{line}: {message}")).collect()
    }
}
