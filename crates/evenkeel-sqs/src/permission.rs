//! AddPermission and RemovePermission: statements of a queue's policy, which is kept and not enforced.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::{EmptyResponse, SqsApi, required};
use crate::error::SqsError;
use crate::operation::Operation;

#[derive(Deserialize)]
pub(crate) struct AddPermission {
    #[serde(rename = "QueueUrl")]
    queue_url: Option<String>,
    #[serde(rename = "Label")]
    label: Option<String>,
    #[serde(rename = "AWSAccountIds", default)]
    accounts: Vec<String>,
    #[serde(rename = "Actions", default)]
    actions: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RemovePermission {
    queue_url: Option<String>,
    label: Option<String>,
}

impl SqsApi {
    pub(crate) async fn add_permission(&self, wish: AddPermission) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let label = required("Label", wish.label.as_deref())?;
        check(label, &wish)?;
        let arn = self.options.arn(&queue.descriptor().name);
        self.change(&queue, |shape| {
            let mut policy = Policy::read(shape.notes.policy.as_deref(), &arn);
            if policy.statements.iter().any(|known| known["Sid"] == label) {
                return Err(SqsError::value("Label", label, "Already exists."));
            }
            policy.statements.push(statement(label, &wish, &arn));
            shape.notes.policy = policy.write();
            Ok(())
        })
        .await
    }

    pub(crate) async fn remove_permission(&self, wish: &RemovePermission) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let label = required("Label", wish.label.as_deref())?;
        let arn = self.options.arn(&queue.descriptor().name);
        self.change(&queue, |shape| {
            let mut policy = Policy::read(shape.notes.policy.as_deref(), &arn);
            let before = policy.statements.len();
            policy.statements.retain(|known| known["Sid"] != label);
            if policy.statements.len() == before {
                return Err(SqsError::value("Label", label, "can't find label."));
            }
            shape.notes.policy = policy.write();
            Ok(())
        })
        .await
    }
}

fn check(label: &str, wish: &AddPermission) -> Result<(), SqsError> {
    let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !plain || 80 < label.len() {
        let reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.";
        return Err(SqsError::value("Label", label, reason));
    }
    if wish.accounts.is_empty() {
        return Err(SqsError::Missing { name: "AWSAccountIds" });
    }
    if wish.actions.is_empty() {
        return Err(SqsError::Missing { name: "Actions" });
    }
    let is_account =
        |account: &&String| account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(account) = wish.accounts.iter().find(|account| !is_account(account)) {
        return Err(SqsError::value("PrincipalId", account, "Unable to verify."));
    }
    if let Some(action) = wish.actions.iter().find(|name| *name != "*" && Operation::of_name(name).is_none())
    {
        let reason = "Please refer to the appropriate WSDL for a list of valid actions.";
        return Err(SqsError::value("ActionName", format_args!("SQS:{action}"), reason));
    }
    Ok(())
}

fn statement(label: &str, wish: &AddPermission, arn: &str) -> Value {
    let whom = wish.accounts.iter().map(|account| json!(format!("arn:aws:iam::{account}:root"))).collect();
    let what = wish.actions.iter().map(|action| json!(format!("SQS:{action}"))).collect();
    json!({
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": one_or_many(whom)},
        "Action": one_or_many(what),
        "Resource": arn,
    })
}

/// A list of one is written as that one, as AWS does.
fn one_or_many(mut values: Vec<Value>) -> Value {
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

/// A policy, as far as statements are concerned.
struct Policy {
    rest: Map<String, Value>,
    statements: Vec<Value>,
}

impl Policy {
    fn read(text: Option<&str>, arn: &str) -> Self {
        let known = text.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let mut rest = known.unwrap_or_else(|| {
            let mut rest = Map::new();
            rest.insert("Version".to_owned(), json!("2008-10-17"));
            rest.insert("Id".to_owned(), json!(format!("{arn}/SQSDefaultPolicy")));
            rest
        });
        let statements = match rest.remove("Statement") {
            Some(Value::Array(statements)) => statements,
            Some(Value::Null) | None => Vec::new(),
            Some(one) => vec![one],
        };
        Self { rest, statements }
    }

    fn write(mut self) -> Option<String> {
        if self.statements.is_empty() {
            return None;
        }
        self.rest.insert("Statement".to_owned(), Value::Array(self.statements));
        Some(Value::Object(self.rest).to_string())
    }
}
