//! AddPermission and RemovePermission: statements of a queue's policy.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::{EmptyResponse, RequestContext, SqsApi, required};
use crate::error::SqsError;
use crate::operation::Operation;
use crate::policy;
use crate::protocol::list;
use crate::reason;

const LABEL_MAX: usize = 80;
const ACTIONS_MAX: usize = 7;

#[derive(Deserialize)]
pub(crate) struct AddPermission {
    #[serde(rename = "QueueUrl")]
    queue_url: Option<String>,
    #[serde(rename = "Label")]
    label: Option<String>,
    #[serde(rename = "AWSAccountIds", default, deserialize_with = "list")]
    accounts: Vec<String>,
    #[serde(rename = "Actions", default, deserialize_with = "list")]
    actions: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RemovePermission {
    queue_url: Option<String>,
    label: Option<String>,
}

impl SqsApi {
    pub(crate) async fn add_permission(
        &self,
        context: &RequestContext,
        request: AddPermission,
    ) -> Result<EmptyResponse, SqsError> {
        self.change(context, request.queue_url.as_deref(), |spec| {
            let label = required("Label", request.label.as_deref())?;
            check(label, &request)?;
            let arn = self.options.arn(spec.namespace, &spec.name);
            let mut policy = Policy::read(spec.metadata.policy.as_deref(), &arn);
            if policy.statements.iter().any(|known| known["Sid"] == label) {
                return Err(SqsError::invalid_value("Label", label, reason::LABEL_EXISTS));
            }
            policy.statements.push(statement(label, &request, &arn));
            spec.metadata.policy = policy.into_json();
            spec.metadata.policy.as_deref().map_or(Ok(()), policy::check)
        })
        .await
    }

    pub(crate) async fn remove_permission(
        &self,
        context: &RequestContext,
        request: &RemovePermission,
    ) -> Result<EmptyResponse, SqsError> {
        self.change(context, request.queue_url.as_deref(), |spec| {
            let label = required("Label", request.label.as_deref())?;
            let arn = self.options.arn(spec.namespace, &spec.name);
            let mut policy = Policy::read(spec.metadata.policy.as_deref(), &arn);
            let before = policy.statements.len();
            policy.statements.retain(|known| known["Sid"] != label);
            if policy.statements.len() == before {
                return Err(SqsError::invalid_value("Label", label, reason::NO_LABEL));
            }
            spec.metadata.policy = policy.into_json();
            Ok(())
        })
        .await
    }
}

fn check(label: &str, request: &AddPermission) -> Result<(), SqsError> {
    let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !is_plain || label.len() > LABEL_MAX {
        return Err(SqsError::invalid_value("Label", label, reason::LABEL));
    }
    let count = request.actions.len();
    if count == 0 {
        return Err(SqsError::Missing { name: "Actions" });
    }
    let is_account =
        |account: &String| account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
    if request.accounts.is_empty() || !request.accounts.iter().all(is_account) {
        let accounts = format!("[{}]", request.accounts.join(", "));
        return Err(SqsError::invalid_value("PrincipalId", accounts, reason::PRINCIPAL));
    }
    if ACTIONS_MAX < count {
        let message = format!("{count} Actions were found, maximum allowed is {ACTIONS_MAX}.");
        return Err(SqsError::OverLimit { message });
    }
    for action in request.actions.iter().filter(|name| *name != "*") {
        let operation = Operation::from_name(action).filter(|operation| operation.action() == action);
        let reason = match operation {
            Some(operation) if Operation::GRANTABLE.contains(&operation) => continue,
            Some(_) => reason::OWNER_ACTION,
            None => reason::ACTION,
        };
        return Err(SqsError::invalid_value("ActionName", format_args!("SQS:{action}"), reason));
    }
    Ok(())
}

fn statement(label: &str, request: &AddPermission, arn: &str) -> Value {
    let accounts = request.accounts.iter().map(|account| json!(format!("arn:aws:iam::{account}:root")));
    let actions = request.actions.iter().map(|action| json!(format!("SQS:{action}")));
    json!({
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": one_or_many(accounts.collect())},
        "Action": one_or_many(actions.collect()),
        "Resource": arn,
    })
}

/// Returns a list, or its only element, as AWS does.
fn one_or_many(mut values: Vec<Value>) -> Value {
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

/// A policy with its statements taken apart.
struct Policy {
    fields: Map<String, Value>,
    statements: Vec<Value>,
}

impl Policy {
    fn read(text: Option<&str>, arn: &str) -> Self {
        let parsed = text.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let mut fields = parsed.unwrap_or_else(|| {
            let mut fields = Map::new();
            fields.insert("Version".to_owned(), json!("2008-10-17"));
            fields.insert("Id".to_owned(), json!(format!("{arn}/SQSDefaultPolicy")));
            fields
        });
        let statements = match fields.remove("Statement") {
            Some(Value::Array(statements)) => statements,
            Some(Value::Null) | None => Vec::new(),
            Some(one) => vec![one],
        };
        Self { fields, statements }
    }

    /// Returns the policy as text; `None` without statements.
    fn into_json(mut self) -> Option<String> {
        if self.statements.is_empty() {
            return None;
        }
        self.fields.insert("Statement".to_owned(), Value::Array(self.statements));
        Some(Value::Object(self.fields).to_string())
    }
}
