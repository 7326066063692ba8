//! Requests of OpenAI's Responses API.

use super::super::api_error::ApiError;
use super::{
    ApiKind, EndMode, GenerateRequest, IncludeUsage, ResponseMode, Tool, count_tokens, flag, optional_count,
    read_model,
};
use serde_json::Value;

pub(super) fn parse(body: &Value) -> Result<GenerateRequest, ApiError> {
    let prompt = read_prompt(body)?;
    // The Responses API always reports usage.
    let usage = IncludeUsage::Yes;
    Ok(GenerateRequest {
        api: ApiKind::Responses,
        model: read_model(body)?,
        prompt_tokens: count_tokens(&prompt),
        prompt,
        tokens_max: optional_count(body, "max_output_tokens")?,
        end: if flag(body, "ignore_eos")? { EndMode::AtLimit } else { EndMode::Natural },
        stops: Vec::new(),
        tool: read_tool(body)?,
        mode: if flag(body, "stream")? { ResponseMode::Stream { usage } } else { ResponseMode::Whole },
    })
}

fn read_prompt(body: &Value) -> Result<String, ApiError> {
    let mut prompt = body["instructions"].as_str().unwrap_or_default().to_owned();
    match &body["input"] {
        Value::String(text) => prompt.push_str(text),
        Value::Array(items) => {
            for item in items {
                prompt.push_str(item["role"].as_str().unwrap_or_default());
                prompt.push('\n');
                let texts = [&item["content"], &item["output"]];
                texts.iter().filter_map(|text| text.as_str()).for_each(|text| prompt.push_str(text));
                let parts = item["content"].as_array().into_iter().flatten();
                parts.filter_map(|part| part["text"].as_str()).for_each(|text| prompt.push_str(text));
                prompt.push('\n');
            }
        }
        _ => {
            return Err(ApiError::invalid(
                Some("input"),
                "input must be a string or a list of items".to_owned(),
            ));
        }
    }
    Ok(prompt)
}

/// Returns the function to call: the one that `tool_choice` names; for `required` the first; for `auto` the first, unless
/// the input ends with a function's output.
fn read_tool(body: &Value) -> Result<Option<Tool>, ApiError> {
    let invalid = |message: &str| ApiError::invalid(Some("tools"), message.to_owned());
    let mut known = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        let name = tool["name"].as_str().ok_or_else(|| invalid("each tool needs a name"))?;
        known.push(Tool { name: name.to_owned(), parameters: tool["parameters"].clone() });
    }
    let last = body["input"].as_array().and_then(|items| items.last());
    let has_output = last.is_some_and(|item| item["type"] == "function_call_output");
    let first = known.first().cloned();
    match &body["tool_choice"] {
        Value::Null => Ok(first.filter(|_| !has_output)),
        Value::String(choice) if choice == "auto" => Ok(first.filter(|_| !has_output)),
        Value::String(choice) if choice == "required" => Ok(first),
        Value::String(choice) if choice == "none" => Ok(None),
        choice => {
            let named = known.into_iter().find(|tool| choice["name"] == tool.name.as_str());
            named.map(Some).ok_or_else(|| {
                invalid("tool_choice must be `auto`, `required`, `none` or a function in tools")
            })
        }
    }
}
