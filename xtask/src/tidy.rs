//! `cargo xtask tidy`: the house rules that neither compiler nor clippy checks.
//!
//! Each rule is a pure function from text to findings; this file reads the tree and prints.

mod documents;
mod layers;
mod leftovers;
mod length;
mod names;
mod paths;
mod rust;

use crate::args::{Command, Rest, Words};
use crate::error::TaskError;
use crate::metadata;
use crate::process::Call;
use rust::RustFile;
use std::fmt;
use std::path::Path;

pub(crate) const COMMAND: Command = Command {
    name: "tidy",
    about: "checks the house rules no compiler checks",
    words: Words::None,
    rest: Rest::Refused,
    examples: &[("cargo xtask tidy", "prints file:line: what is wrong [rule]")],
    run: |_| check(),
};

/// A text file of the repository.
struct File {
    /// From the repository's root, with forward slashes.
    path: String,
    text: String,
}

/// One breach of one rule.
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

const FILE_RULES: &[fn(&File) -> Vec<Finding>] =
    &[leftovers::unnumbered, paths::machine_paths, paths::mod_files, names::modules, documents::architecture];

const RUST_RULES: &[fn(&RustFile) -> Vec<Finding>] = &[
    length::file,
    length::functions,
    leftovers::macros,
    leftovers::unsafety,
    names::types,
    names::inline_modules,
];

/// Checks every file git tracks or would track, and prints every finding.
pub(crate) fn check() -> Result<(), TaskError> {
    let files = read_tree()?;
    let mut findings = layers::arrows(&metadata::packages()?, &files);
    findings.extend(documents::links(&files));
    for file in &files {
        findings.extend(FILE_RULES.iter().flat_map(|rule| rule(file)));
        if file.path.ends_with(".rs") {
            findings.extend(check_rust(file));
        }
    }
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("{} files, nothing wrong", files.len());
        return Ok(());
    }
    Err(TaskError::new(format!("{} findings in {} files", findings.len(), files.len())))
}

fn check_rust(file: &File) -> Vec<Finding> {
    match RustFile::parse(file) {
        Ok(rust) => RUST_RULES.iter().flat_map(|rule| rule(&rust)).collect(),
        Err(finding) => vec![finding],
    }
}

fn read_tree() -> Result<Vec<File>, TaskError> {
    // A checkout often belongs to another user than the one CI runs as; git would refuse to list it.
    let git = Call::new("git", "-c safe.directory=* ls-files -z");
    let listed = git.args(["--cached", "--others", "--exclude-standard", "--deduplicate"]).output()?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        // Deleted but not yet committed, or a link to what is checked under its own name.
        if !Path::new(path).is_file() || Path::new(path).is_symlink() {
            continue;
        }
        let bytes = std::fs::read(path).map_err(|error| TaskError::new(format!("{path}: {error}")))?;
        // What is not UTF-8 is no text, and no rule is about it.
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
    fn a_finding_reads_as_place_fault_and_rule() {
        assert_eq!(finding("src/a.rs", 3, "too long", "length").to_string(), "src/a.rs:3: too long [length]");
    }

    #[test]
    fn rust_that_does_not_lex_is_one_finding() {
        let findings = check_rust(&file("src/a.rs", "fn a() {\n    \"\n}\n"));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].rule, "parse");
        assert!(check_rust(&file("src/a.rs", "fn a() {}\n")).is_empty());
    }

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn rust(path: &str, text: &str) -> RustFile {
        RustFile::parse(&file(path, text)).expect("the example lexes")
    }

    /// The line and the fault of each finding.
    pub(super) fn messages(findings: &[Finding]) -> Vec<(usize, &str)> {
        findings.iter().map(|finding| (finding.line, finding.message.as_str())).collect()
    }

    pub(super) fn finding(path: &str, line: usize, message: &str, rule: &'static str) -> Finding {
        Finding { path: path.to_owned(), line, message: message.to_owned(), rule }
    }
}
