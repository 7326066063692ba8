//! `evenkeel explain ID`: shows the steps of a request, or the state of a message.

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::client::{AdminClient, ConnectArgs, encode_segment};
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel explain req-0f5c2a7be1d94c3e8a6b0d1f27c4e95a       explain the request whose response had this X-Request-Id
  evenkeel explain 5c2f0c3e-8d0b-4a51-9e07-1f6f3b0d2a94       explain a message or job of any queue
  evenkeel explain checkout-7 --json                          print JSON; `checkout-7` was the client's own id
  EVENKEEL_ADMIN_KEY=ek-... evenkeel explain checkout-7 --url https://b.example:7070     ask another node
";

/// Explain what happened to a request, message or job, step by step
///
/// A request is found by the X-Request-Id of its response, on the node that served it and on the node that handed it over. A
/// forwarded request has one id on both nodes; a redirected one only if the client sends its own id. A node keeps the last
/// `[telemetry] requests_max` requests of each API, until it is restarted.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExplainArgs {
    /// X-Request-Id of a response of the LLM or SQL API, or ID of a message
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let client = args.connect.client()?;
    let path = format!("/api/requests/{}", encode_segment(&args.id));
    let message = if is_message_id(&args.id) { find_message(&client, &args.id)? } else { None };
    let request = match &message {
        // A job that was sent to a model is a request with the id of its message.
        Some(_) => client.get_optional(&path)?,
        None => {
            let found = client.request(Method::GET, &path, None);
            let hint = if is_message_id(&args.id) { "; no queue has a message with this id" } else { "" };
            Some(found.map_err(|error| format!("{error}{hint}"))?)
        }
    };
    if args.json {
        let mut explained = request.unwrap_or_else(|| json!({"id": args.id}));
        explained["message"] = json!(message);
        return print(&format!("{explained:#}\n"));
    }
    let mut text = String::new();
    if let Some(request) = &request {
        let earlier = request["earlier"].as_array().into_iter().flatten().rev();
        earlier.chain([request]).for_each(|request| write_request(&mut text, request));
    }
    if let Some(message) = &message {
        let explanation = message["explanation"].as_str().unwrap_or_default();
        text += &format!("message of queue {}: {explanation}\n", message["queue"]);
    }
    print(&text)
}

/// Reports whether the text has the form of a message ID, such as 5c2f0c3e-8d0b-4a51-9e07-1f6f3b0d2a94.
fn is_message_id(text: &str) -> bool {
    let lens = text.split('-').map(str::len);
    lens.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Returns the state of a message with the name of its queue, if any queue knows the message.
fn find_message(client: &AdminClient, id: &str) -> Result<Option<Value>, CliError> {
    let queues = client.request(Method::GET, "/api/queues", None)?;
    for queue in queues["queues"].as_array().into_iter().flatten() {
        let name = queue["name"].as_str().unwrap_or_default();
        let name = queue["owner"].as_str().map_or(name.to_owned(), |owner| format!("{owner}/{name}"));
        let path = format!("/api/queues/{}/messages/{}", encode_segment(&name), encode_segment(id));
        if let Some(mut message) = client.get_optional(&path)? {
            message["queue"] = json!(name);
            return Ok(Some(message));
        }
    }
    Ok(None)
}

/// Writes a line about a request, and a line per step with the time since the first.
fn write_request(text: &mut String, request: &Value) {
    let steps = request["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let age_ms = |step: &Value| step["ageMs"].as_f64().unwrap_or_default();
    let started_ms = steps.first().map_or(0.0, age_ms);
    let api = request["api"].as_str().unwrap_or_default();
    *text += &format!("{api} request of tenant {}, {:.1} s ago\n", request["tenant"], started_ms / 1_000.0);
    for (index, step) in steps.iter().enumerate() {
        let after_ms = started_ms - age_ms(step);
        *text += &format!("{after_ms:>+12.3} ms  {}\n", step["text"].as_str().unwrap_or_default());
        let omitted = request["omitted"].as_u64().unwrap_or(0);
        if index == 0 && omitted > 0 {
            *text += &format!("{:>15}  {omitted} steps omitted ([telemetry] steps_max)\n", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_shown_with_its_omitted_steps_after_the_first() {
        let request = json!({
            "api": "sql", "tenant": "acme", "omitted": 3,
            "steps": [{"ageMs": 2_500.25, "text": "accepted"}, {"ageMs": 2_000.0, "text": "finished"}],
        });
        let mut text = String::new();
        write_request(&mut text, &request);
        assert_eq!(
            text,
            "sql request of tenant \"acme\", 2.5 s ago\n      +0.000 ms  accepted\n                 \
             3 steps omitted ([telemetry] steps_max)\n    +500.250 ms  finished\n"
        );
    }

    #[test]
    fn only_a_message_id_has_its_form() {
        assert!(is_message_id("00000001-0000-0001-0000-000000000005"));
        for id in
            ["", "req-7", "00000001-0000-0001-0000-00000000000g", "0000001-0000-0001-0000-0000000000005"]
        {
            assert!(!is_message_id(id), "{id}");
        }
    }
}
