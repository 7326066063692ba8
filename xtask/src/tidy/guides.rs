//! Checks that the programs in the guides of the actor runtime are doc tests of its crate.

use super::{File, Finding};

const GUIDES: &str = "docs/actor/";
/// The file that includes the guides as doc tests.
const DOC_TESTS: &str = "crates/evenkeel-actor/src/lib.rs";

/// Finds guides with a Rust program that the crate does not include.
pub(super) fn untested(files: &[File]) -> Vec<Finding> {
    let doc_tests = files.iter().find(|file| file.path == DOC_TESTS).map_or("", |file| &file.text);
    let includes = |path: &str| {
        let include = format!("#[doc = include_str!(\"../../../{path}\")]");
        doc_tests.lines().any(|line| line.trim() == include)
    };
    let guides = files.iter().filter(|file| file.path.starts_with(GUIDES) && file.path.ends_with(".md"));
    let untested = guides.filter(|guide| !includes(&guide.path)).filter_map(|guide| {
        let program = guide.text.lines().position(|line| line.trim().starts_with("```rust"))?;
        Some(Finding {
            path: guide.path.clone(),
            line: program + 1,
            message: format!(
                "this program is not tested: {DOC_TESTS} does not include the guide in its doc tests"
            ),
            rule: "guides",
        })
    });
    untested.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn a_guide_with_a_program_must_be_included_in_the_doc_tests() {
        let with_program = "# Guide\n\n```rust\nfn main() {}\n```\n";
        let include = "    #[doc = include_str!(\"../../../docs/actor/a.md\")]\n    struct A;\n";
        assert_eq!(check("docs/actor/a.md", with_program, include), [0; 0]);
        assert_eq!(check("docs/actor/a.md", "# Guide\n\n```toml\n```\n", ""), [0; 0]);
        assert_eq!(check("docs/queue/a.md", with_program, ""), [0; 0]);
        assert_eq!(check("docs/actor/b.md", with_program, include), [3]);
        assert_eq!(check("docs/actor/a.md", with_program, &include.replace("#[doc", "// #[doc")), [3]);
    }

    /// Returns the lines of the findings.
    fn check(path: &str, guide: &str, doc_tests: &str) -> Vec<usize> {
        let findings = untested(&[file(path, guide), file(DOC_TESTS, doc_tests)]);
        findings.iter().map(|finding| finding.line).collect()
    }
}
