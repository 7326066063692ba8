//! Requests of Anthropic's Messages API.

use super::super::api_error::ApiError;
use super::{
    ApiKind, EndMode, GenerateRequest, IncludeUsage, ResponseMode, Tool, count_tokens, flag, optional_count,
    read_model, read_stops,
};
use serde_json::Value;

pub(super) fn parse(body: &Value) -> Result<GenerateRequest, ApiError> {
    let prompt = prompt(body)?;
    let missing = || ApiError::invalid(Some("max_tokens"), "max_tokens: field required".to_owned());
    let tokens_max = optional_count(body, "max_tokens")?.ok_or_else(missing)?;
    let usage = IncludeUsage::Yes;
    Ok(GenerateRequest {
        api: ApiKind::Messages,
        model: read_model(body)?,
        prompt_tokens: count_tokens(&prompt),
        prompt,
        tokens_max: Some(tokens_max),
        end: if flag(body, "ignore_eos")? { EndMode::AtLimit } else { EndMode::Natural },
        stops: read_stops(&body["stop_sequences"])?,
        tool: read_tool(body)?,
        mode: if flag(body, "stream")? { ResponseMode::Stream { usage } } else { ResponseMode::Whole },
    })
}

/// Joins the system prompt and the texts of the messages.
pub(crate) fn prompt(body: &Value) -> Result<String, ApiError> {
    let bad = |message: &str| ApiError::invalid(Some("messages"), message.to_owned());
    let messages = body["messages"].as_array().ok_or_else(|| bad("messages: field required"))?;
    if messages.is_empty() {
        return Err(bad("messages: at least one message is required"));
    }
    let mut prompt = String::new();
    push_content(&mut prompt, &body["system"]);
    for message in messages {
        match message["role"].as_str() {
            Some(role @ ("user" | "assistant")) => prompt.push_str(role),
            _ => return Err(bad("messages: role must be user or assistant")),
        }
        prompt.push('\n');
        push_content(&mut prompt, &message["content"]);
        prompt.push('\n');
    }
    Ok(prompt)
}

/// Appends a string, or the texts of content blocks.
fn push_content(prompt: &mut String, content: &Value) {
    if let Some(text) = content.as_str() {
        prompt.push_str(text);
    }
    for block in content.as_array().into_iter().flatten() {
        block["text"].as_str().into_iter().for_each(|text| prompt.push_str(text));
        push_content(prompt, &block["content"]);
    }
}

/// Returns the tool to call: the one that `tool_choice` names; for `any` the first; for `auto` the first, unless the
/// last message contains a tool's result.
fn read_tool(body: &Value) -> Result<Option<Tool>, ApiError> {
    let bad = |message: &str| ApiError::invalid(Some("tools"), message.to_owned());
    let mut known = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        let name = tool["name"].as_str().ok_or_else(|| bad("tools: each tool needs a name"))?;
        known.push(Tool { name: name.to_owned(), parameters: tool["input_schema"].clone() });
    }
    let last = body["messages"].as_array().and_then(|all| all.last());
    let blocks = last.and_then(|message| message["content"].as_array());
    let has_result = blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"));
    let first = known.first().cloned();
    match body["tool_choice"]["type"].as_str() {
        None | Some("auto") => Ok(first.filter(|_| !has_result)),
        Some("any") => Ok(first),
        Some("none") => Ok(None),
        Some("tool") => {
            let named = known.into_iter().find(|tool| body["tool_choice"]["name"] == tool.name.as_str());
            named.map(Some).ok_or_else(|| bad("tool_choice names a tool that is not in tools"))
        }
        Some(_) => Err(bad("tool_choice must be auto, any, none or tool")),
    }
}
