//! The question that everybody passes on and the answer that comes back.

/// The model of every question.
pub(crate) const MODEL: &str = "bench";
/// How a frame says when it was sent, in what it says to the user: some pass on no field that they do not know.
pub(crate) const SENT: &str = "sent_ns:";
/// How a stream ends.
pub(crate) const DONE: &str = "[DONE]";

/// How long a question is, but for its head.
const BODY_BYTES: usize = 1024;

/// How an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChatMode {
    Whole,
    /// In this many frames, one every so many milliseconds.
    Stream {
        frames: usize,
        every_ms: u64,
    },
}

/// Writes a whole request of about 1 KB.
///
/// Conversations differ, as those of different users do: what chooses by prompt has something to choose by.
pub(crate) fn request(conversation: usize, key: &str, delivery: ChatMode) -> Vec<u8> {
    let stream = match delivery {
        ChatMode::Whole => String::new(),
        // An engine ignores fields that it does not know, and so does whoever passes them on.
        ChatMode::Stream { frames, every_ms } => format!(
            ",\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"max_tokens\":{frames},\"every_ms\":{every_ms}"
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

/// The answer to a question, as a whole.
pub(crate) fn answer() -> Vec<u8> {
    let said = "A first rate had three masts and a bowsprit, each mast in three parts. ".repeat(6);
    let body = format!(
        "{{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"{MODEL}\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{said}\"}},\"logprobs\":null,\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":256,\"completion_tokens\":96,\"total_tokens\":352}}}}"
    );
    json(200, &body)
}

/// An answer of JSON.
pub(crate) fn json(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The head of an answer in frames.
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/// A frame with one token in it, as a chunk.
pub(crate) fn frame(sent_ns: u64) -> Vec<u8> {
    chunk(&format!(
        "data: {{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
         \"model\":\"{MODEL}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" mast {SENT}{sent_ns}\"}},\
         \"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    ))
}

/// The end of an answer in frames: usage, the last event, the last chunk.
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
    fn a_question_is_json_of_one_kilobyte_however_the_answer_is_wanted() {
        for delivery in [ChatMode::Whole, ChatMode::Stream { frames: 100, every_ms: 20 }] {
            let request = String::from_utf8(request(7, "sk-1", delivery)).unwrap();
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with("content-length: 1024"), "{head}");
            assert_eq!(body.len(), 1024);
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["stream"].as_bool().unwrap_or(false), delivery != ChatMode::Whole);
        }
    }

    #[test]
    fn answers_and_frames_are_json() {
        let answer = String::from_utf8(answer()).unwrap();
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 96);
        let frame = String::from_utf8(frame(5)).unwrap();
        let data = frame.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["choices"][0]["delta"]["content"], " mast sent_ns:5");
    }
}
