//! Messages of errors that a server answers with: SQLSTATE, message, detail, hint and position.

use http::StatusCode;
use serde_json::Value;

use super::keyword::Effect;
use super::{KEY_VARIABLE, SqlCall};

/// Code of a statement that writes where it may only read.
const READ_ONLY: &str = "25006";
/// Longest line of a statement that is shown with the position of an error.
const LINE_CHARS_MAX: usize = 160;

/// Describes an error in one or more lines.
pub(super) fn describe(status: StatusCode, error: &Value, call: &SqlCall) -> String {
    let text = |key: &str| error[key].as_str();
    let (Some(code), Some(message)) = (text("code"), text("message")) else {
        return format!("the server answered {status}");
    };
    let mut lines = vec![format!("{code}: {message}")];
    lines.extend(text("detail").map(|detail| format!("  detail: {detail}")));
    lines.extend(text("hint").map(|hint| format!("  hint: {hint}")));
    if let Some(position) = error["position"].as_u64().and_then(|position| usize::try_from(position).ok()) {
        lines.push(describe_position(&call.statement, position));
    }
    if let Some(millis) = error["retryAfterMs"].as_u64() {
        lines.push(format!("  retry after {millis} ms"));
    }
    if code == READ_ONLY && call.effect == Effect::Read {
        lines.push("  use --write to let the statement write".to_owned());
    }
    if status == StatusCode::UNAUTHORIZED {
        lines.push(format!("  set {KEY_VARIABLE} to the API key of a tenant"));
    }
    lines.join("\n")
}

/// Shows a position, counted in characters from 1, with its line.
fn describe_position(statement: &str, position: usize) -> String {
    let before: String = statement.chars().take(position.saturating_sub(1)).collect();
    let number = before.matches('\n').count();
    let column = before.chars().rev().take_while(|c| *c != '\n').count();
    let shown = format!("  at line {}, column {}", number + 1, column + 1);
    let line = statement.lines().nth(number).unwrap_or_default();
    if LINE_CHARS_MAX < line.chars().count() {
        return shown;
    }
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{shown}:\n    {line}\n    {}^", " ".repeat(column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn described(status: u16, error: &Value, statement: &str) -> String {
        let call = SqlCall { statement: statement.to_owned(), effect: Effect::Read, body: String::new() };
        describe(StatusCode::from_u16(status).unwrap(), error, &call)
    }

    #[test]
    fn every_field_is_shown() {
        let error = json!({
            "code": "42703", "message": "no column", "detail": "of t", "hint": "try n", "position": 10
        });
        let expected = "42703: no column\n  detail: of t\n  hint: try n\n  at line 2, column 3:\n    é\tx from t\n      ^";
        assert_eq!(described(400, &error, "select\né\tx from t"), expected.replace('\t', " "));
    }

    #[test]
    fn a_position_beyond_the_statement_is_shown_at_its_end() {
        let error = json!({"code": "42601", "message": "incomplete", "position": 99});
        assert_eq!(
            described(400, &error, "select"),
            "42601: incomplete\n  at line 1, column 7:\n    select\n          ^"
        );
        let long = "x".repeat(LINE_CHARS_MAX + 1);
        assert_eq!(described(400, &error, &long).lines().count(), 2);
    }

    #[test]
    fn the_remedy_is_named() {
        let read_only = json!({"code": "25006", "message": "cannot write"});
        assert!(described(400, &read_only, "with").ends_with("use --write to let the statement write"));
        let no_key = json!({"code": "invalid_api_key", "message": "no key"});
        assert!(described(401, &no_key, "").ends_with("set EVENKEEL_API_KEY to the API key of a tenant"));
        let busy = json!({"code": "queue_full", "message": "full", "retryAfterMs": 20});
        assert!(described(503, &busy, "").ends_with("retry after 20 ms"));
        assert_eq!(described(502, &Value::Null, ""), "the server answered 502 Bad Gateway");
    }
}
