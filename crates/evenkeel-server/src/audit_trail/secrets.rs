//! Removes secrets from what an audit record shows.

use serde_json::{Value, json};

use crate::api_key::KEY_PREFIX;

/// Parts of the names of fields whose values are secrets; case and separators do not matter, so that a name with a typo
/// does not reveal the value. (The request is rejected, but still recorded.)
const SECRET_NAMES: [&str; 5] = ["secret", "passw", "token", "authorization", "credential"];
/// Shortest text that is replaced in the reason for a refusal.
const SECRET_BYTES_MIN: usize = 4;
/// Fields with URLs. A value without a scheme is replaced entirely, because its credentials cannot be located.
const URL_FIELDS: [&str; 3] = ["url", "paths", "target"];
/// Fewest hexadecimal digits after the prefix of an API key; the gateway's keys have 64.
const KEY_DIGITS_MIN: usize = 32;
/// Replaces a secret.
pub(super) const HIDDEN: &str = "[hidden]";

/// Replaces the values of secret fields, and removes credentials, queries and fragments from URLs; adds what it replaces to `hidden`.
pub(super) fn hide_secrets(value: &mut Value, hidden: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if (is_secret(name) && !value.is_null()) || is_malformed_url(name, value) {
                    collect_texts(value, hidden);
                    *value = json!(HIDDEN);
                } else {
                    hide_secrets(value, hidden);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| hide_secrets(item, hidden)),
        Value::String(text) => {
            let shown = without_keys(&without_credentials(text));
            if shown != *text {
                hidden.push(core::mem::replace(text, shown));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_secret(field: &str) -> bool {
    let name: String = field.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = name.to_ascii_lowercase();
    // Budgets are numbers of tokens, not secrets.
    let is_budget = ["tokensperday", "tokenspermonth"].contains(&name.as_str());
    !is_budget && (name.ends_with("key") || SECRET_NAMES.iter().any(|part| name.contains(part)))
}

fn is_malformed_url(field: &str, value: &Value) -> bool {
    let is_malformed = |text: &str| !text.contains("://") && text.contains(['@', '?']);
    let is_malformed = |value: &Value| value.as_str().is_some_and(is_malformed);
    URL_FIELDS.contains(&field)
        && (is_malformed(value) || value.as_array().is_some_and(|items| items.iter().any(is_malformed)))
}

/// Replaces API keys of the gateway, which people pass where a name is expected.
pub(super) fn without_keys(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find(KEY_PREFIX) {
        let (before, key) = rest.split_at(position);
        let digits = &key[KEY_PREFIX.len()..];
        let len = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
        shown.push_str(before);
        shown.push_str(if KEY_DIGITS_MIN <= len { HIDDEN } else { &key[..KEY_PREFIX.len() + len] });
        rest = &digits[len..];
    }
    shown + rest
}

/// Adds the texts in a value, which error messages may quote; not those that are too short for a secret, because they may
/// be part of any word.
fn collect_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) if SECRET_BYTES_MIN <= text.len() => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields.values().for_each(|value| collect_texts(value, texts)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_field_with_a_typo_is_replaced() {
        for field in ["apikey", "API-Key", "apiKey", "Authorization", "client_secret", "passwd", "auth_token"]
        {
            let (shown, hidden) = hide(json!({"name": "a", field: {"nested": ["sk-1"]}}));
            assert_eq!(shown, json!({"name": "a", field: HIDDEN}));
            assert_eq!(hidden, ["sk-1"]);
        }
        let plain =
            json!({"key_name": "ci", "keys": ["a"], "keep_old": true, "tokens_per_day": 3, "api_key": null});
        assert_eq!(hide(plain.clone()), (plain, vec![]));
    }

    #[test]
    fn users_and_queries_are_cut_from_urls_and_what_is_no_url_is_replaced() {
        let (shown, hidden) = hide(json!({"target": "https://u:pw@h/x?token=t", "n": [1]}));
        assert_eq!(shown, json!({"target": "https://h/x", "n": [1]}));
        assert_eq!(hidden, ["https://u:pw@h/x?token=t"]);
        let (shown, hidden) =
            hide(json!({"url": "u:pw@h", "paths": ["http://h", "h/?token=t"], "target": "h:80"}));
        assert_eq!(shown, json!({"url": HIDDEN, "paths": HIDDEN, "target": "h:80"}));
        assert!(hidden.contains(&"u:pw@h".to_owned()), "{hidden:?}");
    }

    #[test]
    fn api_keys_are_replaced_wherever_they_are() {
        let key = format!("ek-{}", "0a".repeat(32));
        assert_eq!(without_keys(&format!("/ek-a/{key}/{key}?ek-")), "/ek-a/[hidden]/[hidden]?ek-");
        assert_eq!(hide(json!({"name": key})).0, json!({"name": HIDDEN}));
        assert_eq!(without_keys("ek-0a0a"), "ek-0a0a");
    }

    fn hide(mut value: Value) -> (Value, Vec<String>) {
        let mut hidden = Vec::new();
        hide_secrets(&mut value, &mut hidden);
        (value, hidden)
    }
}
