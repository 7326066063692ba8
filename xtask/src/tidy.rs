//! `cargo xtask tidy`: checks the house rules that neither the compiler nor clippy checks.
//!
//! Each check is a pure function from text to findings; this file reads the tree and prints the findings.

mod code_references;
mod doc_comments;
mod documents;
mod field_terms;
mod guides;
mod layers;
mod leftovers;
mod length;
mod module_graph;
mod names;
mod paths;
mod readmes;
mod retired_types;
mod retired_words;
mod rust;
mod tuples;
mod type_names;
mod words;

use crate::error::TaskError;
use crate::metadata::{self, Package};
use crate::process::Cmd;
use rust::RustFile;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Check the house rules that no compiler checks
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints `file:line: message [rule]` for every finding, then a count per rule.

Example:
  cargo xtask tidy | grep retired-words")]
pub(crate) struct TidyArgs {}

/// A text file of the repository.
struct File {
    /// Relative to the repository's root, with forward slashes.
    path: String,
    text: String,
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
    rule: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.message, self.rule)
    }
}

/// Checks of one text file.
const FILE_CHECKS: &[fn(&File) -> Vec<Finding>] = &[
    leftovers::unnumbered,
    paths::machine_paths,
    paths::mod_files,
    names::check_module_path,
    documents::architecture,
    retired_words::phrases,
];

/// Checks of one Rust file.
const RUST_CHECKS: &[fn(&RustFile) -> Vec<Finding>] = &[
    length::file,
    length::functions,
    leftovers::macros,
    leftovers::unsafety,
    names::check_types,
    names::check_inline_modules,
    retired_words::identifiers,
    retired_types::definitions,
    doc_comments::check,
    tuples::parallel_lets,
    tuples::tuple_parameters,
];

/// Checks every file that git tracks or would track, and prints every finding.
pub(crate) fn check() -> Result<(), TaskError> {
    let files = read_tree()?;
    let findings = find(&metadata::packages()?, &files);
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("{} files, no findings", files.len());
        return Ok(());
    }
    println!("\n{}", counts(&findings));
    Err(TaskError::new(format!("{} findings in {} files", findings.len(), files.len())))
}

/// Runs every check; the findings are sorted by file and line.
fn find(packages: &[Package], files: &[File]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = files.iter().flat_map(check_text).collect();
    let mut rust_files = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        match RustFile::parse(file) {
            Ok(rust) => rust_files.push(rust),
            Err(finding) => findings.push(finding),
        }
    }
    findings.extend(rust_files.iter().flat_map(check_rust));
    findings.extend(type_names::repeated(&rust_files));
    findings.extend(layers::dependencies(packages, files));
    findings.extend(readmes::missing_readmes(packages, files));
    findings.extend(documents::links(files));
    findings.extend(code_references::missing(files, &rust_files));
    findings.extend(module_graph::false_arrows(files, &rust_files));
    findings.extend(field_terms::presence(files));
    findings.extend(guides::untested(files));
    findings.sort();
    findings
}

fn check_text(file: &File) -> Vec<Finding> {
    FILE_CHECKS.iter().flat_map(|check| check(file)).collect()
}

fn check_rust(file: &RustFile) -> Vec<Finding> {
    RUST_CHECKS.iter().flat_map(|check| check(file)).collect()
}

/// Writes a line with the number of findings for each rule that has some.
fn counts(findings: &[Finding]) -> String {
    let mut by_rule: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings {
        *by_rule.entry(finding.rule).or_default() += 1;
    }
    let lines: Vec<_> = by_rule.iter().map(|(rule, count)| format!("{count:>6}  {rule}")).collect();
    lines.join("\n")
}

fn read_tree() -> Result<Vec<File>, TaskError> {
    // CI often runs as another user than the owner of the checkout, which git refuses by default.
    let git = Cmd::new("git", "-c safe.directory=* ls-files -z");
    let listed = git.args(["--cached", "--others", "--exclude-standard", "--deduplicate"]).output()?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        // Skip files that are deleted but not yet committed, and links, whose targets are checked anyway.
        if !Path::new(path).is_file() || Path::new(path).is_symlink() {
            continue;
        }
        let bytes = std::fs::read(path).map_err(|error| TaskError::new(format!("{path}: {error}")))?;
        // Skip binary files, to which no rule applies.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_displayed_as_place_message_and_rule() {
        assert_eq!(finding("src/a.rs", 3, "too long", "length").to_string(), "src/a.rs:3: too long [length]");
    }

    #[test]
    fn rust_that_does_not_lex_is_one_finding() {
        let in_file = |text| {
            let findings = find(&[], &[file("src/a.rs", text)]).into_iter();
            findings
                .filter(|finding| finding.path == "src/a.rs")
                .map(|finding| finding.rule)
                .collect::<Vec<_>>()
        };
        assert_eq!(in_file("fn a() {\n    \"\n}\n"), ["parse"]);
        assert_eq!(in_file("fn a() {}\n"), [] as [&str; 0]);
    }

    #[test]
    fn findings_are_counted_by_rule() {
        let findings = [
            finding("a.rs", 1, "", "length"),
            finding("b.rs", 1, "", "words"),
            finding("b.rs", 2, "", "length"),
        ];
        assert_eq!(counts(&findings), "     2  length\n     1  words");
    }

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn rust(path: &str, text: &str) -> RustFile {
        RustFile::parse(&file(path, text)).expect("the example lexes")
    }

    /// Returns the line and the message of each finding.
    pub(super) fn messages(findings: &[Finding]) -> Vec<(usize, &str)> {
        findings.iter().map(|finding| (finding.line, finding.message.as_str())).collect()
    }

    pub(super) fn finding(path: &str, line: usize, message: &str, rule: &'static str) -> Finding {
        Finding { path: path.to_owned(), line, message: message.to_owned(), rule }
    }
}
