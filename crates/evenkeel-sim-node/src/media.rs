//! Ranks, transcripts and speech, as vLLM and OpenAI have them.

use super::api_error::ApiError;
use super::completion::{CompletionPlan, Generator, embedding};
use super::generate::ActiveRequest;
use super::request::{
    ApiKind, EndMode, GenerateRequest, ResponseMode, count_tokens, optional_count, read_model,
};
use super::response_body::ResponseBody;
use super::seeded_random::seed_of;
use super::slots::SlotOrWait;
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

/// The most documents of one request.
const DOCUMENTS_MAX: usize = 1_024;
/// How long vectors are that are compared.
const DIMENSIONS: u32 = 64;
/// How many bytes of sound are one token to a model that listens.
const LISTEN_BYTES: usize = 1_024;
/// How many bytes of sound a token of text is: a tenth of a second.
const SPEAK_BYTES: usize = 3_200;

/// A request for ranks.
pub(super) struct RerankRequest {
    pub(super) model: String,
    query: String,
    documents: Vec<String>,
    top_n: usize,
}

impl RerankRequest {
    pub(super) fn read(body: &Value) -> Result<Self, ApiError> {
        let bad = |name, what: &str| ApiError::bad(Some(name), what.to_owned());
        let query = body["query"].as_str().ok_or_else(|| bad("query", "query must be a text"))?;
        let listed = body["documents"].as_array().filter(|all| all.len() <= DOCUMENTS_MAX);
        let listed = listed.ok_or_else(|| bad("documents", "documents must be a list of up to 1024"))?;
        let text = |document: &Value| document.as_str().or(document["text"].as_str()).map(str::to_owned);
        let documents: Option<Vec<_>> = listed.iter().map(text).collect();
        let documents = documents.ok_or_else(|| bad("documents", "each of documents must be a text"))?;
        let top_n = optional_count(body, "top_n")?.map_or(usize::MAX, |count| count as usize);
        Ok(Self { model: read_model(body)?, query: query.to_owned(), documents, top_n })
    }

    /// Every document is read together with the query.
    pub(super) fn tokens(&self) -> u32 {
        let query = count_tokens(&self.query);
        self.documents.iter().fold(0, |sum: u32, text| sum.saturating_add(query + count_tokens(text)))
    }

    pub(super) fn answer(&self, seed: u64, id: &str) -> Value {
        let query = embedding(seed, &self.query, DIMENSIONS);
        let score = |text: &String| {
            let document = embedding(seed, text, DIMENSIONS);
            let product: f32 = query.iter().zip(&document).map(|(a, b)| a * b).sum();
            f32::midpoint(product, 1.0)
        };
        let mut ranked: Vec<_> = self.documents.iter().map(score).enumerate().collect();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let result = |(index, score): &(usize, f32)| json!({"index": index, "document": {"text": self.documents[*index]}, "relevance_score": score});
        let results: Vec<_> = ranked.iter().take(self.top_n).map(result).collect();
        let tokens = self.tokens();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        json!({"id": id, "model": self.model, "usage": usage, "results": results})
    }
}

/// A request for a transcript.
pub(super) struct TranscriptionRequest {
    pub(super) model: String,
    sound: Bytes,
    plain: bool,
}

impl TranscriptionRequest {
    /// Reads a form.
    pub(super) fn read(content_type: &str, body: &Bytes) -> Result<Self, ApiError> {
        let bad = |name, what: &str| ApiError::bad(Some(name), what.to_owned());
        let boundary = content_type.split("boundary=").nth(1).map(|text| text.trim_matches('"'));
        let boundary = boundary.ok_or_else(|| bad("file", "the body must be a form"))?;
        let field = |name| field(body, boundary, name);
        let text = |name| field(name).map(|value| String::from_utf8_lossy(&value).into_owned());
        if text("stream").as_deref() == Some("true") {
            return Err(bad("stream", "streams of transcripts are not simulated"));
        }
        Ok(Self {
            model: text("model").ok_or_else(|| bad("model", "you must provide a model parameter"))?,
            sound: field("file").ok_or_else(|| bad("file", "you must provide a file"))?,
            plain: text("response_format").as_deref() == Some("text"),
        })
    }

    /// What is said in it: words, whatever the sound.
    pub(super) fn answer(&self, voice: &Generator) -> Result<CompletionPlan, ApiError> {
        voice.answer(&GenerateRequest {
            form: ApiKind::Completion,
            model: self.model.clone(),
            prompt: format!("{:x}", seed_of(&String::from_utf8_lossy(&self.sound))),
            prompt_tokens: u32::try_from(self.sound.len() / LISTEN_BYTES + 1).unwrap_or(u32::MAX),
            tokens_max: None,
            end: EndMode::Natural,
            stops: Vec::new(),
            tool: None,
            delivery: ResponseMode::Whole,
        })
    }

    pub(super) async fn respond(
        self,
        job: ActiveRequest,
        place: SlotOrWait,
        answer: &CompletionPlan,
    ) -> Response<ResponseBody> {
        let text = answer.pieces.concat();
        let input = answer.prompt_tokens;
        let output = answer.completion_tokens;
        let usage = json!({
            "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": input + output
        });
        let slot = job.generated(place, answer).await;
        if !self.plain {
            return job.finish(slot, &json!({"text": text, "usage": usage}));
        }
        let mut response = Response::new(ResponseBody::Whole(Some(text.into())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

/// Finds a field of a form.
fn field(body: &[u8], boundary: &str, name: &str) -> Option<Bytes> {
    let dashes = format!("--{boundary}");
    let named = format!("name=\"{name}\"");
    let find = |from: usize, text: &str| {
        let rest = body.get(from..)?;
        rest.windows(text.len()).position(|part| part == text.as_bytes()).map(|at| from + at)
    };
    let mut at = find(0, &dashes)?;
    loop {
        let head_end = find(at, "\r\n\r\n")?;
        let end = find(head_end, &format!("\r\n{dashes}"))?;
        let head = String::from_utf8_lossy(&body[at..head_end]);
        if head.contains(&named) {
            return Some(Bytes::copy_from_slice(body.get(head_end + 4..end)?));
        }
        at = end + 2;
    }
}

/// A request for speech.
pub(super) struct SpeechRequest {
    pub(super) model: String,
    tokens: u32,
}

impl SpeechRequest {
    pub(super) fn read(body: &Value) -> Result<Self, ApiError> {
        let bad = |name, what: &str| ApiError::bad(Some(name), what.to_owned());
        let input = body["input"].as_str().ok_or_else(|| bad("input", "input must be a text"))?;
        body["voice"].as_str().ok_or_else(|| bad("voice", "you must name a voice"))?;
        Ok(Self { model: read_model(body)?, tokens: count_tokens(input) })
    }

    /// Answers with sound, sent while it is made.
    pub(super) async fn respond(self, job: ActiveRequest, place: SlotOrWait) -> Response<ResponseBody> {
        let slot = place.slot().await;
        job.first_token(self.tokens).await;
        let tokens = self.tokens as usize;
        let body = ResponseBody::made(|pieces| async move {
            let _held = slot;
            if pieces.send(wav_head(tokens * SPEAK_BYTES)).await.is_err() {
                return;
            }
            for token in 0..tokens {
                // Somebody who hums.
                let sound: Vec<u8> = (0..SPEAK_BYTES).map(|at| ((at * (token + 1)) % 251) as u8).collect();
                if pieces.send(sound.into()).await.is_err() {
                    return;
                }
            }
        });
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("audio/wav"));
        response
    }
}

/// The head of a WAV file: one channel of 16 bits, 16 000 times a second.
fn wav_head(bytes: usize) -> Bytes {
    let length = u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut head = b"RIFF".to_vec();
    head.extend(length.saturating_add(36).to_le_bytes());
    head.extend(b"WAVEfmt ");
    for number in [16_u32, 0x0001_0001, 16_000, 32_000, 0x0010_0002] {
        head.extend(number.to_le_bytes());
    }
    head.extend(b"data");
    head.extend(length.to_le_bytes());
    head.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_in_a_form_of_bytes() {
        let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\u{1}\r\n--\r\n--x\r\n\
                    content-disposition: form-data; name=\"model\"\r\n\r\nears\r\n--x--\r\n";
        let listen =
            TranscriptionRequest::read("multipart/form-data; boundary=x", &Bytes::from(form)).unwrap();
        assert_eq!((listen.model.as_str(), &listen.sound[..]), ("ears", &b"\x01\r\n--"[..]));
        assert!(TranscriptionRequest::read("multipart/form-data; boundary=y", &Bytes::from(form)).is_err());
        assert!(TranscriptionRequest::read("application/json", &Bytes::from("{}")).is_err());
    }

    #[test]
    fn documents_are_ranked_and_the_same_as_the_query_is_first() {
        let body = json!({"model": "m", "query": "keel", "documents": ["wind", {"text": "keel"}, "fish"], "top_n": 2});
        let rerank = RerankRequest::read(&body).unwrap();
        let answer = rerank.answer(7, "rerank-1");
        assert_eq!(
            (&answer["results"][0]["index"], answer["results"].as_array().unwrap().len()),
            (&json!(1), 2)
        );
        assert_eq!(answer["usage"]["total_tokens"], 6);
        assert!(RerankRequest::read(&json!({"model": "m", "query": "x", "documents": [1]})).is_err());
    }
}
