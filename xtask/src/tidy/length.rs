//! Length limits of files and functions, in lines that are neither blank nor comment.

use super::Finding;
use super::rust::{RustFile, Token};

const FILE_MAX: usize = 500;
const FUNCTION_MAX: usize = 70;

pub(super) fn file(file: &RustFile) -> Vec<Finding> {
    let lines = file.code_lines_total();
    if lines <= FILE_MAX {
        return Vec::new();
    }
    let message = format!("the file has {lines} lines of code, the limit is {FILE_MAX}; split it");
    vec![file.finding(1, message, "file-length")]
}

pub(super) fn functions(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, pair) in file.tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        if keyword.text != "fn" || !name.is_name() {
            continue;
        }
        let Some(last) = body_end(&file.tokens[index..]) else { continue };
        let lines = file.code_lines(keyword.line, last);
        if lines > FUNCTION_MAX {
            let message = format!("`{}` has {lines} lines of code, the limit is {FUNCTION_MAX}", name.text);
            findings.push(file.finding(keyword.line, message, "function-length"));
        }
    }
    findings
}

/// Finds the line of the closing brace of the function that starts `tokens`; `None` if it has no body.
fn body_end(tokens: &[Token]) -> Option<usize> {
    let depth = tokens.first()?.depth;
    let mut siblings = tokens.iter().filter(|token| token.depth == depth);
    siblings.find(|token| token.text == "{" || token.text == ";").filter(|token| token.text == "{")?;
    siblings.find(|token| token.text == "}").map(|brace| brace.line)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, rust};
    use super::*;

    #[test]
    fn a_file_of_500_lines_passes_and_of_501_fails() {
        let at_limit = format!("//! Doc.\n\n{}", "const A: u8 = 1;\n".repeat(500));
        assert_eq!(messages(&file(&rust("a.rs", &at_limit))), []);
        let past_limit = format!("{at_limit}const A: u8 = 1;\n");
        assert_eq!(
            messages(&file(&rust("a.rs", &past_limit))),
            [(1, "the file has 501 lines of code, the limit is 500; split it")]
        );
    }

    #[test]
    fn a_function_of_70_lines_passes_and_of_71_fails() {
        assert_eq!(messages(&functions(&rust("a.rs", &function(70)))), []);
        assert_eq!(
            messages(&functions(&rust("a.rs", &format!("const A: u8 = 1;\n{}", function(71))))),
            [(2, "`long` has 71 lines of code, the limit is 70")]
        );
    }

    #[test]
    fn functions_are_found_in_impls_traits_and_macros() {
        for around in ["impl A", "trait A", "proptest!"] {
            let text = format!("{around} {{\n{}}}\n", function(71));
            assert_eq!(functions(&rust("a.rs", &text)).len(), 1, "{around}");
        }
    }

    #[test]
    fn a_declaration_without_a_body_has_no_length() {
        let text = format!("trait A {{\n    fn short();\n{}}}\n", function(70));
        assert_eq!(messages(&functions(&rust("a.rs", &text))), []);
        let pointer = format!("struct A(fn(u8) -> u8);\n{}", function(70));
        assert_eq!(messages(&functions(&rust("a.rs", &pointer))), []);
    }

    /// Writes a function of `lines` lines of code that also has a comment and a blank line.
    fn function(lines: usize) -> String {
        format!("fn long() {{\n    // why\n\n{}}}\n", "    step();\n".repeat(lines - 2))
    }
}
