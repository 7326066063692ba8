//! `POST` and `DELETE /api/nodes…`: nodes that come, rest and go while requests walk.

use std::sync::Arc;

use evenkeel_door::body::Response;
use evenkeel_door::refusal::Refusal;
use evenkeel_door::route::Call;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Secret;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::door::Llm;
use crate::models::answer;
use crate::nodes::NodeError;
use crate::options::NodeOptions;

const PREFIX: &str = "/api/nodes/";

/// Adds a node.
pub(crate) async fn add(llm: Arc<Llm>, mut call: Call) -> Result<Response, Refusal> {
    let body = call.read_body().await?;
    let Ok(Value::Object(fields)) = serde_json::from_slice(&body) else {
        return Err(Refusal::invalid("the body is not a JSON object"));
    };
    let options = read(fields)?;
    let name = options.name.clone();
    llm.add_node(options).map_err(refuse)?;
    let mut response = answer(&json!({"name": name}));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// Drains or resumes a node: `POST /api/nodes/{name}/drain`.
pub(crate) fn change(llm: &Llm, call: &Call) -> Result<Response, Refusal> {
    let path = call.request.uri().path().trim_start_matches(PREFIX);
    let (name, change) = path.rsplit_once('/').ok_or(Refusal::NoRoute)?;
    let name = decoded(name)?;
    match change {
        "drain" => llm.drain_node(&name).map_err(refuse)?,
        "resume" => llm.resume_node(&name).map_err(refuse)?,
        _ => return Err(Refusal::NoRoute),
    }
    Ok(answer(&json!({"name": name})))
}

/// Takes a node out: `DELETE /api/nodes/{name}`.
pub(crate) fn remove(llm: &Llm, call: &Call) -> Result<Response, Refusal> {
    let name = decoded(call.request.uri().path().trim_start_matches(PREFIX))?;
    llm.remove_node(&name).map_err(refuse)?;
    Ok(answer(&json!({"name": name})))
}

fn read(fields: Map<String, Value>) -> Result<NodeOptions, Refusal> {
    let mut options = NodeOptions {
        name: String::new(),
        paths: Vec::new(),
        models: Vec::new(),
        max_concurrency: None,
        weight: Weight::ONE,
        api_key: None,
    };
    for (field, value) in fields {
        let wrong = |wanted: &str| at(&field, format!("{field} must be {wanted}"));
        match field.as_str() {
            "name" => options.name = text(value).ok_or_else(|| wrong("a string"))?,
            "url" => options.paths.push(text(value).ok_or_else(|| wrong("a string"))?),
            "paths" => options.paths.extend(texts(value).ok_or_else(|| wrong("a list of strings"))?),
            "models" => options.models = texts(value).ok_or_else(|| wrong("a list of strings"))?,
            "max_concurrency" => {
                let slots = value.as_u64().and_then(|slots| u32::try_from(slots).ok());
                options.max_concurrency = Some(slots.ok_or_else(|| wrong("a whole number"))?);
            }
            "weight" => {
                let weight = value.as_f64().ok_or_else(|| wrong("a number"))?;
                options.weight = Weight::new(weight).map_err(|error| at(&field, error.to_string()))?;
            }
            "api_key" => options.api_key = Some(Secret::new(text(value).ok_or_else(|| wrong("a string"))?)),
            _ => return Err(at(&field, format!("{field} is not a field of a node"))),
        }
    }
    Ok(options)
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        _ => None,
    }
}

fn at(field: &str, message: String) -> Refusal {
    Refusal::Invalid { message, param: Some(field.to_owned()) }
}

fn refuse(error: NodeError) -> Refusal {
    match &error {
        NodeError::Unknown { name } => Refusal::NotFound { what: format!("node {name:?}") },
        NodeError::NoName
        | NodeError::Twice { .. }
        | NodeError::NoUrl { .. }
        | NodeError::NoSlots { .. }
        | NodeError::Url { .. }
        | NodeError::Key { .. }
        | NodeError::Walk(_)
        | NodeError::Monitor(_) => Refusal::invalid(error.to_string()),
    }
}

/// Reads a name from a path, where `%2F` and the like stand for bytes.
fn decoded(part: &str) -> Result<String, Refusal> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = rest.get(..2).and_then(|hex| core::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or(Refusal::NoRoute)?;
        bytes.push(byte);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| Refusal::NoRoute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_from_a_path() {
        assert_eq!(decoded("gpu%20a%2Fb"), Ok("gpu a/b".to_owned()));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(bad), Err(Refusal::NoRoute), "{bad}");
        }
    }

    #[test]
    fn a_field_that_no_node_has_is_refused_by_name() {
        let refused = |body: &str| match read(serde_json::from_str(body).unwrap()) {
            Err(Refusal::Invalid { message, param }) => (message, param.unwrap_or_default()),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(r#"{"nmae":"a"}"#), ("nmae is not a field of a node".into(), "nmae".into()));
        assert_eq!(
            refused(r#"{"models":[1]}"#),
            ("models must be a list of strings".into(), "models".into())
        );
        assert_eq!(
            refused(r#"{"weight":0}"#),
            ("weight 0 is not between 0.01 and 1000".into(), "weight".into())
        );
    }
}
