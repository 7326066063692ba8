//! A Rust file as the checks use it: a flat list of tokens, the doc comments, and the lines of code.
//!
//! It has tokens rather than a syntax tree, because checks must also look into macros such as `proptest!`, which a
//! syntax tree does not cover, and must ignore words in strings and comments.

use super::{File, Finding};
use proc_macro2::{Delimiter, LineColumn, Span, TokenStream, TokenTree};

pub(super) struct RustFile {
    pub(super) path: String,
    pub(super) tokens: Vec<Token>,
    pub(super) docs: Vec<Doc>,
    /// For each line, counted from 0: true if it holds more than whitespace and comments.
    code: Vec<bool>,
}

/// A doc comment: a block of `///` or `//!` lines, one `/** .. */`, or one `doc = ".."` attribute.
pub(super) struct Doc {
    pub(super) text: String,
    pub(super) line: usize,
    /// The marker that starts each of its lines.
    marker: &'static str,
}

/// An identifier, a literal, a single punctuation mark or a single bracket.
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
    /// Number of brackets around it; an opening bracket and its closing bracket have the same depth.
    pub(super) depth: usize,
}

impl RustFile {
    pub(super) fn parse(file: &File) -> Result<Self, Finding> {
        let stream: TokenStream = file.text.parse().map_err(|error: proc_macro2::LexError| Finding {
            path: file.path.clone(),
            line: error.span().start().line,
            message: "cannot tokenize this file as Rust".to_owned(),
            rule: "parse",
        })?;
        let lines: Vec<&str> = file.text.lines().collect();
        let mut collector =
            SyntaxCollector { code: vec![false; lines.len()], lines, tokens: Vec::new(), docs: Vec::new() };
        collector.push_stream(stream, 0);
        collector.push_doc_attributes();
        Ok(Self {
            path: file.path.clone(),
            tokens: collector.tokens,
            docs: collector.docs,
            code: collector.code,
        })
    }

    /// Lists the names that follow `struct`, `enum`, `union`, `trait` and `type`.
    pub(super) fn type_definitions(&self) -> impl Iterator<Item = &Token> {
        self.tokens.windows(2).filter_map(|pair| {
            let [keyword, name] = pair else { return None };
            let defines = ["struct", "enum", "union", "trait", "type"].contains(&keyword.text.as_str());
            (defines && name.is_name()).then_some(name)
        })
    }

    /// Counts the lines of code among `first..=last`, counted from 1.
    pub(super) fn code_lines(&self, first: usize, last: usize) -> usize {
        self.code.iter().skip(first - 1).take(last + 1 - first).filter(|code| **code).count()
    }

    pub(super) fn code_lines_total(&self) -> usize {
        self.code_lines(1, self.code.len())
    }

    pub(super) fn finding(&self, line: usize, message: String, rule: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, message, rule }
    }
}

impl Token {
    pub(super) fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Collects the tokens, doc comments and lines of code of a file.
struct SyntaxCollector<'a> {
    lines: Vec<&'a str>,
    tokens: Vec<Token>,
    docs: Vec<Doc>,
    code: Vec<bool>,
}

impl SyntaxCollector<'_> {
    fn push_stream(&mut self, stream: TokenStream, depth: usize) {
        let mut doc_comment = None;
        for tree in stream {
            // The lexer turns a doc comment into `#[doc = ".."]`, whose tokens all start where the comment starts.
            let start = tree.span().start();
            if doc_comment == Some(start) {
                continue;
            }
            match tree {
                TokenTree::Punct(mark) if mark.as_char() == '#' && self.is_comment(start) => {
                    doc_comment = Some(start);
                    self.push_doc_comment(start);
                }
                TokenTree::Group(group) => {
                    let (open, close) = brackets(group.delimiter());
                    self.push(open.to_owned(), group.span_open(), depth);
                    self.push_stream(group.stream(), depth + 1);
                    self.push(close.to_owned(), group.span_close(), depth);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.push(tree.to_string(), tree.span(), depth);
                }
            }
        }
    }

    fn push(&mut self, text: String, span: Span, depth: usize) {
        let first = span.start().line;
        for line in first..=span.end().line {
            // A string may contain blank lines.
            self.code[line - 1] |= !self.lines[line - 1].trim().is_empty();
        }
        self.tokens.push(Token { text, line: first, depth });
    }

    /// Adds a doc comment; a line that continues the block on the line before is appended to that block.
    fn push_doc_comment(&mut self, start: LineColumn) {
        let rest: String = self.lines[start.line - 1].chars().skip(start.column).collect();
        let Some(marker) = ["///", "//!", "/**", "/*!"].into_iter().find(|marker| rest.starts_with(marker))
        else {
            return;
        };
        let mut text = rest[marker.len()..].to_owned();
        if marker.starts_with("/*") {
            for line in &self.lines[start.line..] {
                if text.contains("*/") {
                    break;
                }
                text = format!("{text}\n{line}");
            }
            text.truncate(text.find("*/").unwrap_or(text.len()));
        } else if let Some(block) = self.docs.last_mut()
            && block.marker == marker
            && block.line + block.text.split('\n').count() == start.line
        {
            block.text = format!("{}\n{text}", block.text);
            return;
        }
        self.docs.push(Doc { text, line: start.line, marker });
    }

    /// Adds attributes such as `#[doc = ".."]`.
    fn push_doc_attributes(&mut self) {
        for three in self.tokens.windows(3) {
            let [name, equals, literal] = three else { continue };
            if name.text == "doc" && equals.text == "=" && literal.text.contains('"') {
                let text =
                    literal.text.trim_start_matches('r').trim_matches('#').trim_matches('"').to_owned();
                self.docs.push(Doc { text, line: literal.line, marker: "#[doc]" });
            }
        }
    }

    fn is_comment(&self, start: LineColumn) -> bool {
        let mut rest = self.lines[start.line - 1].chars().skip(start.column);
        rest.next() == Some('/') && matches!(rest.next(), Some('/' | '*'))
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rust;

    #[test]
    fn blank_lines_and_comments_are_not_code() {
        let text = "//! Header.\n\n// why\n/* long\n   why */\n/// Does it.\n\n#[inline]\nfn a() {\n    \
                    // because\n    b(); // why\n}\n";
        assert_eq!(rust("a.rs", text).code_lines_total(), 4);
    }

    #[test]
    fn a_string_over_several_lines_is_code_even_if_it_has_slashes() {
        assert_eq!(rust("a.rs", "const A: &str = \"one\n// two\n\nthree\";\n").code_lines_total(), 3);
    }

    #[test]
    fn words_in_strings_and_comments_are_not_tokens() {
        let file = rust("a.rs", "/// unsafe\nconst A: &str = \"unsafe\"; // unsafe\n");
        assert!(file.tokens.iter().all(|token| token.text != "unsafe"));
        assert!(file.tokens.iter().any(|token| token.text == "A" && token.line == 2));
    }
}
