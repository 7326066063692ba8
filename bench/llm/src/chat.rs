//! The chat request that every contender forwards, and its response.

pub(crate) const MODEL: &str = "bench";
/// Precedes a frame's send time. It is part of the text because some gateways drop unknown fields.
pub(crate) const SENT: &str = "sent_ns:";
/// End-of-stream marker.
pub(crate) const DONE: &str = "[DONE]";

/// Size of a request body.
const BODY_BYTES: usize = 1024;

/// Response mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChatMode {
    Whole,
    /// Server-sent events: `frames` frames, one every `interval_ms`.
    Stream {
        frames: usize,
        interval_ms: u64,
    },
}

/// Builds a request with a body of 1 KiB.
///
/// Prompts differ by conversation, because some gateways route by prompt.
pub(crate) fn request(conversation: usize, key: &str, mode: ChatMode) -> Vec<u8> {
    let stream = match mode {
        ChatMode::Whole => String::new(),
        // Engines ignore unknown fields, and gateways forward them in requests.
        ChatMode::Stream { frames, interval_ms } => format!(
            ",\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"max_tokens\":{frames},\"interval_ms\":{interval_ms}"
        ),
    };
    let begin = format!(
        "{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}},\
         {{\"role\":\"user\",\"content\":\"Conversation {conversation}. "
    );
    let end = format!("\"}}],\"temperature\":0.7{stream}}}");
    let prompt = "Tell me how a ship of the line was rigged, and why. ";
    let filling = prompt.chars().cycle().take(BODY_BYTES.saturating_sub(begin.len() + end.len()));
    let body: String = begin.chars().chain(filling).chain(end.chars()).collect();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nuser-agent: llm-bench\r\naccept: application/json\r\n\
         content-type: application/json\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Builds a whole (not streamed) response.
pub(crate) fn response() -> Vec<u8> {
    let text = "A first rate had three masts and a bowsprit, each mast in three parts. ".repeat(6);
    let body = format!(
        "{{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"{MODEL}\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\"logprobs\":null,\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":256,\"completion_tokens\":96,\"total_tokens\":352}}}}"
    );
    json(200, &body)
}

/// Builds a JSON response.
pub(crate) fn json(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Response head of a stream.
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/// Builds a frame with one token, as a chunk.
pub(crate) fn frame(sent_ns: u64) -> Vec<u8> {
    chunk(&format!(
        "data: {{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
         \"model\":\"{MODEL}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" mast {SENT}{sent_ns}\"}},\
         \"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    ))
}

/// Builds the end of a stream: usage, end-of-stream marker, last chunk.
pub(crate) fn stream_end(frames: usize) -> Vec<u8> {
    let usage = format!(
        "data: {{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
         \"model\":\"{MODEL}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":256,\"completion_tokens\":{frames},\
         \"total_tokens\":{}}}}}\n\ndata: {DONE}\n\n",
        256 + frames
    );
    let mut bytes = chunk(&usage);
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_request_body_is_1_kib_of_json_in_every_mode() {
        for mode in [ChatMode::Whole, ChatMode::Stream { frames: 100, interval_ms: 20 }] {
            let request = String::from_utf8(request(7, "sk-1", mode)).unwrap();
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with("content-length: 1024"), "{head}");
            assert_eq!(body.len(), 1024);
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["stream"].as_bool().unwrap_or(false), mode != ChatMode::Whole);
        }
    }

    #[test]
    fn responses_and_frames_are_json() {
        let response = String::from_utf8(response()).unwrap();
        let response: Value = serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(response["usage"]["completion_tokens"], 96);
        let frame = String::from_utf8(frame(5)).unwrap();
        let data = frame.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["choices"][0]["delta"]["content"], " mast sent_ns:5");
    }
}
