//! Rejects `let (a, b) = (x, y)` and tuple patterns in function parameters.

use super::Finding;
use super::rust::{RustFile, Token};

/// Finds `let (a, b) = (x, y);`.
///
/// Destructuring the result of a call is fine, and so is matching two values at once (`if let`, `let .. else`).
pub(super) fn parallel_lets(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, token) in file.tokens.iter().enumerate() {
        // `&&` is lexed as two tokens.
        let conditional =
            index > 0 && ["if", "while", "&", "|"].contains(&file.tokens[index - 1].text.as_str());
        if token.text == "let" && !conditional && is_parallel(&file.tokens[index + 1..]) {
            let message = "`let` destructures a tuple literal; use one `let` per variable".to_owned();
            findings.push(file.finding(token.line, message, "parallel-let"));
        }
    }
    findings
}

/// Reports whether these tokens, which follow `let`, assign a tuple expression to a tuple pattern.
fn is_parallel(tokens: &[Token]) -> bool {
    let Some((pattern, rest)) = split_parenthesized(tokens) else { return false };
    let Some(rest) = after_assignment(rest) else { return false };
    let Some((values, after)) = split_parenthesized(rest) else { return false };
    has_comma(pattern) && has_comma(values) && after.first().is_some_and(|token| token.text == ";")
}

/// Finds parameters such as `(a, b): (A, B)` of functions; closure parameters are allowed to destructure.
pub(super) fn tuple_parameters(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, pair) in file.tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        if keyword.text != "fn" || !name.is_name() {
            continue;
        }
        let Some((parameters, _)) = split_parenthesized(after_generics(&file.tokens[index + 2..])) else {
            continue;
        };
        for line in tuple_patterns(parameters) {
            let message = format!(
                "`{}` destructures a tuple parameter; use separate parameters or a struct",
                name.text
            );
            findings.push(file.finding(line, message, "tuple-parameters"));
        }
    }
    findings
}

/// Lists the lines of the tuple patterns among a function's parameters.
fn tuple_patterns(parameters: &[Token]) -> Vec<usize> {
    let mut lines = Vec::new();
    let Some(depth) = parameters.first().map(|token| token.depth) else { return lines };
    for (index, token) in parameters.iter().enumerate() {
        let previous = index.checked_sub(1).map(|index| &parameters[index]);
        let starts_pattern = previous
            .is_none_or(|token| token.depth == depth && [",", "&", "]"].contains(&token.text.as_str()));
        if token.depth != depth || token.text != "(" || !starts_pattern {
            continue;
        }
        let Some((_, rest)) = split_parenthesized(&parameters[index..]) else { continue };
        let texts = rest.iter().take(2).map(|token| token.text.as_str()).collect::<Vec<_>>();
        if texts.first() == Some(&":") && texts.get(1) != Some(&":") {
            lines.push(token.line);
        }
    }
    lines
}

/// Splits off a leading parenthesized group: returns its contents and the rest.
fn split_parenthesized(tokens: &[Token]) -> Option<(&[Token], &[Token])> {
    let open = tokens.first().filter(|token| token.text == "(")?;
    let close = tokens.iter().position(|token| token.text == ")" && token.depth == open.depth)?;
    Some((&tokens[1..close], &tokens[close + 1..]))
}

fn has_comma(tuple: &[Token]) -> bool {
    tuple
        .first()
        .is_some_and(|first| tuple.iter().any(|token| token.text == "," && token.depth == first.depth))
}

/// Skips `<..>` after a function's name.
fn after_generics(tokens: &[Token]) -> &[Token] {
    if tokens.first().is_none_or(|token| token.text != "<") {
        return tokens;
    }
    let mut open = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        let is_arrow = index > 0 && tokens[index - 1].text == "-";
        match token.text.as_str() {
            "<" => open += 1,
            ">" if !is_arrow => open = open.saturating_sub(1),
            _ => {}
        }
        if open == 0 {
            return &tokens[index + 1..];
        }
    }
    &[]
}

/// Skips an optional type annotation and the `=` after it.
fn after_assignment(tokens: &[Token]) -> Option<&[Token]> {
    let depth = tokens.first()?.depth;
    let mut angles = 0_usize;
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.depth == depth) {
        match token.text.as_str() {
            "<" => angles += 1,
            ">" => angles = angles.saturating_sub(1),
            ";" => return None,
            "=" if angles == 0 => return Some(&tokens[index + 1..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, rust};
    use super::*;

    #[test]
    fn a_parallel_let_is_reported() {
        for bad in [
            "fn a() {\n    let (a, b) = (1, 2);\n}",
            "fn a() {\n    let (mut a, b): (Vec<u8>, [u8; 2]) = (Vec::new(), [1, 2]);\n}",
            "fn a() {\n    let (a, _, (b, c)) = (\n        f(),\n        g(1, 2),\n        h(),\n    );\n}",
            "proptest! { fn a() {\n    let (a, b) = (1, 2);\n} }",
        ] {
            assert_eq!(
                messages(&parallel_lets(&rust("a.rs", bad))),
                [(2, "`let` destructures a tuple literal; use one `let` per variable")],
                "{bad}"
            );
        }
    }

    #[test]
    fn other_tuples_and_matches_of_two_values_pass() {
        for good in [
            "let (a, b) = f(1, 2);",
            "let (a, b) = (f(1, 2)).split_at(3);",
            "let pair = (1, 2);",
            "let (a, b) = pair;",
            "let Some((a, b)) = (1, 2).get() else { return };",
            "let (Some(a), Some(b)) = (f(), g()) else { return };",
            "if let (Some(a), Some(b)) = (f(), g()) {}",
            "while let (Some(a), Some(b)) = (f(), g()) {}",
            "if c && let (Some(a), Some(b)) = (f(), g()) {}",
            "(a, b) = (b, a);",
            "let (a, b) = if c { (1, 2) } else { (3, 4) };",
        ] {
            let text = format!("fn a() {{ {good} }}");
            assert_eq!(messages(&parallel_lets(&rust("a.rs", &text))), [], "{good}");
        }
    }

    #[test]
    fn a_tuple_parameter_is_reported() {
        for bad in [
            "fn f((a, b): (u8, u8)) {}",
            "fn f(x: u8, &(a, b): &(u8, u8)) {}",
            "fn f<F: Fn((u8, u8)) -> u8>(&self, (a, b): (u8, u8), f: F) {}",
            "impl A { fn f(&self, #[cfg(x)] (a, b): (u8, u8)) {} }",
        ] {
            assert_eq!(
                messages(&tuple_parameters(&rust("a.rs", bad))),
                [(1, "`f` destructures a tuple parameter; use separate parameters or a struct")],
                "{bad}"
            );
        }
    }

    #[test]
    fn tuples_in_types_closures_and_bodies_pass() {
        for good in [
            "fn f(pairs: &[(u8, u8)], map: Map<u8, (u8, u8)>) {}",
            "fn f(g: impl Fn(u8, (u8, u8)) -> (u8, u8)) {}",
            "fn f<F: Fn((u8, u8)) -> u8>(f: F) { f((1, 2)); }",
            "fn f() { g(|(a, b): (u8, u8)| a + b); }",
            "fn f(Point(a, b): Point, [c, d]: [u8; 2]) {}",
            "fn f();",
        ] {
            assert_eq!(messages(&tuple_parameters(&rust("a.rs", good))), [], "{good}");
        }
    }
}
