//! Evaluation of queue policies, which grant operations on a queue to other accounts.
//!
//! Guarantees: an operation is granted only by a statement whose elements are all known and each have a matching entry; a
//! statement that denies it wins. A policy with a statement that has no valid effect, or an empty list of actions, grants
//! nothing, and neither does one with a duplicate key. A statement with an element that is not known here (`Condition`, `NotPrincipal` …)
//! therefore grants nothing, and denies everything that its known elements cover. Owners are not subject to the policy.

use core::fmt;

use evenkeel_policy::account::AccountNumber;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::SqsError;
use crate::limit::{POLICY_MAX, STATEMENTS_MAX};
use crate::operation::Operation;

/// An operation of another account on a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyRequest<'a> {
    pub(crate) account: AccountNumber,
    pub(crate) operation: Operation,
    /// ARN of the queue.
    pub(crate) arn: &'a str,
}

/// Result of comparing a request with an element of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Yes,
    No,
    /// The element is missing, or its meaning is not known.
    Unknown,
}

impl Operation {
    /// Operations that a policy can grant to other accounts; all others are the owner's. The list is AWS's.
    pub(crate) const GRANTABLE: [Self; 11] = [
        Self::ChangeMessageVisibility,
        Self::ChangeMessageVisibilityBatch,
        Self::DeleteMessage,
        Self::DeleteMessageBatch,
        Self::GetQueueAttributes,
        Self::GetQueueUrl,
        Self::ListDeadLetterSourceQueues,
        Self::PurgeQueue,
        Self::ReceiveMessage,
        Self::SendMessage,
        Self::SendMessageBatch,
    ];

    /// Operations of clients that only send messages to a queue.
    pub(crate) const SENDING: [Self; 5] = [
        Self::GetQueueAttributes,
        Self::GetQueueUrl,
        Self::ListDeadLetterSourceQueues,
        Self::SendMessage,
        Self::SendMessageBatch,
    ];

    /// Returns the action that policies name; a batch needs the same permission as its entries.
    pub(crate) fn action(self) -> &'static str {
        let name = self.name();
        name.strip_suffix("Batch").unwrap_or(name)
    }
}

/// Reports whether a policy grants an operation.
pub(crate) fn grants(policy: &str, request: PolicyRequest<'_>) -> bool {
    let Some(policy) = parse(policy) else { return false };
    let is_known = policy.keys().all(|key| ["Version", "Id", "Statement"].contains(&key.as_str()));
    if !is_known || !Operation::GRANTABLE.contains(&request.operation) {
        return false;
    }
    let Some(statements) = policy.get("Statement") else { return false };
    let Some(statements) = items(statements).map(Value::as_object).collect::<Option<Vec<_>>>() else {
        return false;
    };
    if !statements.iter().all(|statement| is_well_formed(statement)) {
        return false;
    }
    let has = |effect: &str, matches: fn(&Map<String, Value>, PolicyRequest<'_>) -> bool| {
        let with_effect =
            statements.iter().filter(|statement| statement.get("Effect").is_some_and(|e| e == effect));
        with_effect.into_iter().any(|statement| matches(statement, request))
    };
    has("Allow", allows) && !has("Deny", denies)
}

/// Checks a policy that a client sets or extends.
pub(crate) fn check(policy: &str) -> Result<(), SqsError> {
    let invalid = || SqsError::AttributeValue {
        name: "Policy",
        reason: "",
        hint: format!("must be a JSON object of at most {POLICY_MAX} bytes without duplicate keys"),
    };
    let parsed = parse(policy).filter(|_| policy.len() <= POLICY_MAX).ok_or_else(invalid)?;
    let count = parsed.get("Statement").map_or(0, |statements| items(statements).len());
    if STATEMENTS_MAX < count {
        let message =
            format!("{count} statements were found in the submitted policy, max allowed is {STATEMENTS_MAX}");
        return Err(SqsError::OverLimit { message });
    }
    Ok(())
}

/// Parses a policy; `None` unless it is a JSON object without duplicate keys.
fn parse(policy: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(policy) {
        Ok(UniqueKeys(Value::Object(policy))) => Some(policy),
        _ => None,
    }
}

/// JSON in which no object has a key twice; parsers differ in which of the two values counts.
struct UniqueKeys(Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor).map(Self)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without duplicate keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, UniqueKeys(value))) = entries.next_entry::<String, UniqueKeys>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(UniqueKeys(element)) = elements.next_element()? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Reports whether a statement has a known effect and no empty list of actions.
fn is_well_formed(statement: &Map<String, Value>) -> bool {
    let is_effect = statement.get("Effect").is_some_and(|effect| effect == "Allow" || effect == "Deny");
    let has_actions = statement.get("Action").is_none_or(|actions| items(actions).len() > 0);
    is_effect && has_actions
}

fn allows(statement: &Map<String, Value>, request: PolicyRequest<'_>) -> bool {
    let known = ["Sid", "Effect", "Principal", "Action", "Resource"];
    let is_known = statement.keys().all(|key| known.contains(&key.as_str()));
    is_known && compare(statement, request).into_iter().all(|element| element == Match::Yes)
}

fn denies(statement: &Map<String, Value>, request: PolicyRequest<'_>) -> bool {
    compare(statement, request).into_iter().all(|element| element != Match::No)
}

/// Compares a request with the principal, the action and the resource of a statement.
fn compare(statement: &Map<String, Value>, request: PolicyRequest<'_>) -> [Match; 3] {
    let texts = |key: &str, matches: &dyn Fn(&str) -> Match| match statement.get(key) {
        Some(value) => any(value, matches),
        None => Match::Unknown,
    };
    [
        statement
            .get("Principal")
            .map_or(Match::Unknown, |principal| match_principal(principal, request.account)),
        texts("Action", &|pattern| match_action(pattern, request.operation)),
        texts("Resource", &|pattern| if glob(pattern, request.arn) { Match::Yes } else { Match::No }),
    ]
}

/// Matches `"*"` or `{"AWS": …}`.
fn match_principal(principal: &Value, account: AccountNumber) -> Match {
    let one = |text: &str| {
        if text == "*" {
            return Match::Yes;
        }
        match account_of(text) {
            Some(found) if found == account => Match::Yes,
            Some(_) => Match::No,
            None => Match::Unknown,
        }
    };
    match principal {
        Value::String(text) if text == "*" => Match::Yes,
        Value::Object(kinds) if kinds.len() == 1 => {
            kinds.get("AWS").map_or(Match::Unknown, |aws| any(aws, &one))
        }
        _ => Match::Unknown,
    }
}

/// Returns the account in an account number or in the ARN of a user or role.
fn account_of(principal: &str) -> Option<AccountNumber> {
    let parts: Vec<&str> = principal.splitn(6, ':').collect();
    match parts[..] {
        [number] => number.parse().ok(),
        ["arn", _, "iam" | "sts", "", account, _] => account.parse().ok(),
        _ => None,
    }
}

fn match_action(pattern: &str, operation: Operation) -> Match {
    let pattern = pattern.to_ascii_lowercase();
    let action = operation.action().to_ascii_lowercase();
    match pattern.split_once(':') {
        None if pattern == "*" => Match::Yes,
        None => Match::Unknown,
        Some(("sqs", pattern)) if glob(pattern, &action) => Match::Yes,
        Some(_) => Match::No,
    }
}

/// Matches a text, or any text of a list.
fn any(value: &Value, matches: &dyn Fn(&str) -> Match) -> Match {
    let results: Vec<Match> =
        items(value).map(|item| item.as_str().map_or(Match::Unknown, matches)).collect();
    match results {
        _ if results.is_empty() => Match::Unknown,
        _ if results.contains(&Match::Yes) => Match::Yes,
        _ if results.contains(&Match::Unknown) => Match::Unknown,
        _ => Match::No,
    }
}

/// Returns the elements of a list, or a single value.
fn items(value: &Value) -> core::slice::Iter<'_, Value> {
    match value {
        Value::Array(values) => values.iter(),
        one => core::slice::from_ref(one).iter(),
    }
}

/// Matches a text against a pattern in which `*` stands for any text and `?` for one character.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    let text = text.as_bytes();
    let mut at = 0;
    let mut matched = 0;
    // Position after the last `*`, and the end of the text that it stands for.
    let mut star: Option<(usize, usize)> = None;
    while matched < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, matched));
            }
            Some(&expected) if expected == b'?' || expected == text[matched] => {
                at += 1;
                matched += 1;
            }
            _ => {
                let Some((after, end)) = star else { return false };
                at = after;
                matched = end + 1;
                star = Some((after, matched));
            }
        }
    }
    pattern[at..].iter().all(|&rest| rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ARN: &str = "arn:aws:sqs:us-east-1:111111111111:jobs";
    const GUEST: &str = "222222222222";

    fn allowed(policy: &Value, operation: Operation) -> bool {
        grants(&policy.to_string(), PolicyRequest { account: GUEST.parse().unwrap(), operation, arn: ARN })
    }

    /// Returns a policy that allows everything, changed by `changes`; `null` removes an element.
    fn policy(changes: Value) -> Value {
        json!({"Version": "2012-10-17", "Statement": [statement("Allow", changes)]})
    }

    fn statement(effect: &str, changes: Value) -> Value {
        let mut statement =
            json!({"Sid": "1", "Effect": effect, "Principal": "*", "Action": "SQS:*", "Resource": ARN});
        for (key, value) in changes.as_object().unwrap() {
            statement[key] = value.clone();
        }
        let statement = statement.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
        statement.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into()
    }

    fn sends(changes: Value) -> bool {
        allowed(&policy(changes), Operation::SendMessage)
    }

    #[test]
    fn principals_are_accounts_their_users_or_everybody() {
        for principal in [
            json!("*"),
            json!({"AWS": "*"}),
            json!({"AWS": GUEST}),
            json!({"AWS": ["333333333333", GUEST]}),
            json!({"AWS": format!("arn:aws:iam::{GUEST}:root")}),
            json!({"AWS": format!("arn:aws:iam::{GUEST}:user/bob")}),
        ] {
            assert!(sends(json!({"Principal": principal})), "{principal}");
        }
        for principal in [
            json!(null),
            json!(GUEST),
            json!({"AWS": "333333333333"}),
            json!({"AWS": "arn:aws:iam::333333333333:root"}),
            json!({"AWS": "arn:aws:iam::*:root"}),
            json!({"AWS": []}),
            json!({"Service": "sns.amazonaws.com"}),
            json!({"AWS": GUEST, "Service": "sns.amazonaws.com"}),
        ] {
            assert!(!sends(json!({"Principal": principal})), "{principal}");
        }
    }

    #[test]
    fn actions_may_have_wildcards_and_cover_batches() {
        for action in ["*", "sqs:*", "SQS:SendMessage", "sqs:sendmessage", "sqs:Send*", "sqs:?endMessage"] {
            let policy = policy(json!({"Action": action}));
            assert!(allowed(&policy, Operation::SendMessage), "{action}");
            assert!(allowed(&policy, Operation::SendMessageBatch), "{action}");
        }
        for action in ["SendMessage", "sns:*", "sqs:Receive*", "sqs:SendMessag", ""] {
            assert!(!sends(json!({"Action": action})), "{action}");
        }
        assert!(sends(json!({"Action": ["sqs:ReceiveMessage", "sqs:SendMessage"]})));
    }

    #[test]
    fn the_resource_must_cover_the_queue() {
        for resource in
            ["*", ARN, "arn:aws:sqs:*:111111111111:jo*", "arn:aws:sqs:us-east-1:111111111111:????"]
        {
            assert!(sends(json!({"Resource": resource})), "{resource}");
        }
        for resource in
            ["arn:aws:sqs:us-east-1:000000000000:jobs", "arn:aws:sqs:us-east-1:111111111111:job", ""]
        {
            assert!(!sends(json!({"Resource": resource})), "{resource}");
        }
    }

    #[test]
    fn operations_of_the_owner_cannot_be_granted() {
        let granted: Vec<&str> = Operation::ALL
            .iter()
            .filter(|operation| allowed(&policy(json!({})), **operation))
            .map(|operation| operation.name())
            .collect();
        let expected: Vec<&str> = Operation::GRANTABLE.iter().map(|operation| operation.name()).collect();
        assert_eq!(granted, expected);
    }

    #[test]
    fn a_statement_with_an_unknown_element_grants_nothing() {
        for unknown in ["Condition", "NotPrincipal", "NotAction", "NotResource", "Unless"] {
            assert!(!sends(json!({unknown: "x"})), "{unknown}");
        }
        assert!(!sends(json!({"NotAction": "sqs:PurgeQueue", "Action": null})));
        assert!(!sends(json!({"Effect": "Permit"})));
        let mut with_unknown_field = policy(json!({}));
        with_unknown_field["Rules"] = json!([]);
        assert!(!allowed(&with_unknown_field, Operation::SendMessage));
        for text in ["", "[]", "{}", r#"{"Statement": ["x"]}"#] {
            let account = GUEST.parse().unwrap();
            let request = PolicyRequest { account, operation: Operation::SendMessage, arn: ARN };
            assert!(!grants(text, request), "{text}");
        }
    }

    #[test]
    fn a_deny_wins_and_one_with_an_unknown_element_denies_what_its_known_elements_cover() {
        let denied = |changes: Value| {
            let statements = [statement("Deny", changes), statement("Allow", json!({}))];
            !allowed(&json!({"Statement": statements}), Operation::SendMessage)
        };
        for changes in [
            json!({}),
            json!({"Action": "sqs:SendMessage"}),
            json!({"Principal": {"AWS": GUEST}}),
            json!({"Condition": {"Bool": {"aws:SecureTransport": "false"}}}),
            json!({"Principal": null, "NotPrincipal": {"AWS": GUEST}}),
            json!({"Action": null, "NotAction": "sqs:SendMessage"}),
            json!({"Resource": null}),
            json!({"Principal": {"Service": "sns.amazonaws.com"}}),
        ] {
            assert!(denied(changes.clone()), "{changes}");
        }
        for changes in [
            json!({"Action": "sqs:PurgeQueue"}),
            json!({"Principal": {"AWS": "333333333333"}}),
            json!({"Resource": "arn:aws:sqs:us-east-1:111111111111:other", "Condition": {}}),
        ] {
            assert!(!denied(changes.clone()), "{changes}");
        }
    }

    #[test]
    fn a_policy_with_a_malformed_statement_grants_nothing() {
        for malformed in [
            statement("Permit", json!({})),
            statement("Deny", json!({"Effect": null})),
            statement("deny", json!({})),
            statement("Deny", json!({"Action": []})),
            statement("Deny", json!({"Principal": {"AWS": []}})),
            statement("Deny", json!({"Resource": []})),
        ] {
            let statements = json!({"Statement": [statement("Allow", json!({})), malformed]});
            assert!(!allowed(&statements, Operation::SendMessage), "{statements}");
        }
    }

    #[test]
    fn a_policy_with_a_duplicate_key_is_no_policy() {
        let text = policy(json!({})).to_string();
        assert_eq!(parse(&text).map(Value::Object), Some(policy(json!({}))));
        for (once, twice) in
            [(r#""Sid":"#, r#""Effect":"Deny","Sid":"#), (r#""Version":"#, r#""Version":"1","Version":"#)]
        {
            assert!(text.contains(once), "{text}");
            assert_eq!(parse(&text.replace(once, twice)), None, "{twice}");
        }
        let numbers = r#"{"a": [1, -1, 1.5, true, null, "x"]}"#;
        assert_eq!(Value::Object(parse(numbers).unwrap()), json!({"a": [1, -1, 1.5, true, null, "x"]}));
    }

    #[test]
    fn wildcards_backtrack() {
        for (pattern, text) in [("a*b*c", "aXbYbZc"), ("*", ""), ("**", "x"), ("a*", "a"), ("*ab", "aab")] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a*b", "a"), ("", "x"), ("?", ""), ("a*b", "abx")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }
}
