//! Markdown: ARCHITECTURE.md stays short, and links between files are not broken.

use super::{File, Finding};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_MAX: usize = 150;

pub(super) fn architecture(file: &File) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if file.path != ARCHITECTURE || lines <= ARCHITECTURE_MAX {
        return Vec::new();
    }
    vec![Finding {
        path: file.path.clone(),
        line: ARCHITECTURE_MAX + 1,
        message: format!("the page has {lines} lines, the limit is {ARCHITECTURE_MAX}"),
        rule: "architecture-length",
    }]
}

/// Finds links in Markdown to missing files of the repository.
pub(super) fn links(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in targets(&file.text) {
            if !exists(&file.path, &target, files) {
                let message = format!("the link to `{target}` is broken");
                findings.push(Finding { path: file.path.clone(), line, message, rule: "links" });
            }
        }
    }
    findings
}

/// Lists link targets with their lines; links in code are ignored.
fn targets(markdown: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in markdown.lines().enumerate() {
        let marker = ["```", "~~~"].into_iter().find(|marker| line.trim_start().starts_with(marker));
        match (fence, marker) {
            (Some(open), Some(marker)) if open == marker => fence = None,
            (None, Some(marker)) => fence = Some(marker),
            (Some(_), _) => {}
            (None, None) => {
                found.extend(line_targets(&without_code(line)).into_iter().map(|target| (index + 1, target)));
            }
        }
    }
    found
}

fn without_code(line: &str) -> String {
    // Every second piece is code; an odd backtick starts none.
    let pieces: Vec<_> = line.split('`').collect();
    if pieces.len() % 2 == 0 {
        return line.to_owned();
    }
    pieces.into_iter().step_by(2).collect::<Vec<_>>().join("``")
}

fn line_targets(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (index, _) in line.match_indices(opening) {
            let rest = &line[index + opening.len()..];
            found.extend(rest.find(closing).map(|end| first_word(&rest[..end])));
        }
    }
    let definition = line.trim_start().strip_prefix('[').filter(|rest| !rest.starts_with('^'));
    found.extend(definition.and_then(|rest| rest.split_once("]: ")).map(|(_, target)| first_word(target)));
    found
}

/// Removes a link's title and the angle brackets around its target.
fn first_word(target: &str) -> String {
    let word = target.split_whitespace().next().unwrap_or("");
    word.trim_start_matches('<').trim_end_matches('>').to_owned()
}

fn exists(from: &str, target: &str, files: &[File]) -> bool {
    let path = target.split(['#', '?']).next().unwrap_or("");
    let has_scheme = path.split('/').next().is_some_and(|start| start.contains(':'));
    let within_page = path.is_empty() && !target.is_empty();
    if has_scheme || within_page {
        return true;
    }
    if target.is_empty() {
        return false;
    }
    let Some(path) = resolve(from, path) else { return false };
    let directory = format!("{path}/");
    path.is_empty() || files.iter().any(|file| file.path == path || file.path.starts_with(&directory))
}

/// Resolves a path relative to a file; `None` if it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect(),
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    #[test]
    fn an_architecture_of_150_lines_passes_and_of_151_fails() {
        assert_eq!(messages(&architecture(&file("ARCHITECTURE.md", &"line\n".repeat(150)))), []);
        assert_eq!(
            messages(&architecture(&file("ARCHITECTURE.md", &"line\n".repeat(151)))),
            [(151, "the page has 151 lines, the limit is 150")]
        );
        assert_eq!(messages(&architecture(&file("README.md", &"line\n".repeat(151)))), []);
    }

    #[test]
    fn broken_links_are_found() {
        for bad in [
            "see [it](missing.md)",
            "see [it](../README.md \"title\") and [that](gone/)",
            "[it]: ../missing.md",
            "<img src=\"shot.png\">",
            "[out](../../elsewhere/README.md)",
            "an unpaired ` and [it](missing.md)",
            "[empty]()",
        ] {
            let findings = links(&tree(&format!("# Page\n\n{bad}\n")));
            assert_eq!(findings.len(), 1, "{bad}");
            assert_eq!(findings[0].line, 3);
        }
    }

    #[test]
    fn working_links_pass() {
        for good in [
            "[a](../README.md), [b](other.md#part), [c](/docs/design), [d](./other.md), [e](..)",
            "[a](https://example.org/x), [b](mailto:a@b), [c](#part), [d](<other.md>)",
            "[a]: other.md",
            "[^1]: a footnote about nothing",
            "in code: `[a](missing.md)`",
            "```\n[a](missing.md)\n```",
        ] {
            assert_eq!(messages(&links(&tree(good))), [], "{good}");
        }
    }

    fn tree(page: &str) -> Vec<File> {
        vec![
            file("README.md", ""),
            file("docs/page.md", page),
            file("docs/other.md", ""),
            file("docs/design/x.md", ""),
        ]
    }
}
