//! Reranking, transcription and speech, in the formats of vLLM and OpenAI.

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

const DOCUMENTS_MAX: usize = 1_024;
/// Dimensions of the vectors compared for reranking.
const DIMENSIONS: u32 = 64;
/// Bytes of audio per prompt token of a transcription.
const TRANSCRIPTION_BYTES_PER_TOKEN: usize = 1_024;
/// Bytes of audio per token of speech: a tenth of a second.
const SPEECH_BYTES_PER_TOKEN: usize = 3_200;

/// A rerank request.
pub(super) struct RerankRequest {
    pub(super) model: String,
    query: String,
    documents: Vec<String>,
    top_n: usize,
}

impl RerankRequest {
    pub(super) fn parse(body: &Value) -> Result<Self, ApiError> {
        let bad = |name, message: &str| ApiError::invalid(Some(name), message.to_owned());
        let query = body["query"].as_str().ok_or_else(|| bad("query", "query must be a string"))?;
        let listed = body["documents"].as_array().filter(|all| all.len() <= DOCUMENTS_MAX);
        let listed = listed.ok_or_else(|| bad("documents", "documents must be a list of at most 1024"))?;
        let text = |document: &Value| document.as_str().or(document["text"].as_str()).map(str::to_owned);
        let documents: Option<Vec<_>> = listed.iter().map(text).collect();
        let documents = documents.ok_or_else(|| bad("documents", "each document must be a string"))?;
        let top_n = optional_count(body, "top_n")?.map_or(usize::MAX, |count| count as usize);
        Ok(Self { model: read_model(body)?, query: query.to_owned(), documents, top_n })
    }

    /// Returns the number of prompt tokens; the query counts once per document.
    pub(super) fn tokens(&self) -> u32 {
        let query = count_tokens(&self.query);
        self.documents.iter().fold(0, |sum: u32, text| sum.saturating_add(query + count_tokens(text)))
    }

    pub(super) fn to_json(&self, seed: u64, id: &str) -> Value {
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

/// A transcription request.
pub(super) struct TranscriptionRequest {
    pub(super) model: String,
    audio: Bytes,
    plain: bool,
}

impl TranscriptionRequest {
    /// Parses a multipart form.
    pub(super) fn parse(content_type: &str, body: &Bytes) -> Result<Self, ApiError> {
        let bad = |name, message: &str| ApiError::invalid(Some(name), message.to_owned());
        let boundary = content_type.split("boundary=").nth(1).map(|text| text.trim_matches('"'));
        let boundary = boundary.ok_or_else(|| bad("file", "the body must be multipart/form-data"))?;
        let field = |name| field(body, boundary, name);
        let text = |name| field(name).map(|value| String::from_utf8_lossy(&value).into_owned());
        if text("stream").as_deref() == Some("true") {
            return Err(bad("stream", "streaming transcriptions are not simulated"));
        }
        Ok(Self {
            model: text("model").ok_or_else(|| bad("model", "you must provide a model parameter"))?,
            audio: field("file").ok_or_else(|| bad("file", "you must provide a file"))?,
            plain: text("response_format").as_deref() == Some("text"),
        })
    }

    /// Plans the transcript, a random text seeded with the audio.
    pub(super) fn plan(&self, generator: &Generator) -> Result<CompletionPlan, ApiError> {
        generator.plan(&GenerateRequest {
            api: ApiKind::Completion,
            model: self.model.clone(),
            prompt: format!("{:x}", seed_of(&String::from_utf8_lossy(&self.audio))),
            prompt_tokens: u32::try_from(self.audio.len() / TRANSCRIPTION_BYTES_PER_TOKEN + 1)
                .unwrap_or(u32::MAX),
            tokens_max: None,
            end: EndMode::Natural,
            stops: Vec::new(),
            tool: None,
            mode: ResponseMode::Whole,
        })
    }

    pub(super) async fn respond(
        self,
        job: ActiveRequest,
        slot_or_wait: SlotOrWait,
        plan: &CompletionPlan,
    ) -> Response<ResponseBody> {
        let text = plan.pieces.concat();
        let input = plan.prompt_tokens;
        let output = plan.completion_tokens;
        let usage = json!({
            "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": input + output
        });
        let slot = job.generate(slot_or_wait, plan).await;
        if !self.plain {
            return job.finish(slot, &json!({"text": text, "usage": usage}));
        }
        let mut response = Response::new(ResponseBody::Whole(Some(text.into())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

/// Returns the contents of a field in a multipart form.
fn field(body: &[u8], boundary: &str, name: &str) -> Option<Bytes> {
    let dashes = format!("--{boundary}");
    let named = format!("name=\"{name}\"");
    let find = |from: usize, text: &str| {
        let rest = body.get(from..)?;
        rest.windows(text.len()).position(|part| part == text.as_bytes()).map(|offset| from + offset)
    };
    let mut start = find(0, &dashes)?;
    loop {
        let head_end = find(start, "\r\n\r\n")?;
        let end = find(head_end, &format!("\r\n{dashes}"))?;
        let head = String::from_utf8_lossy(&body[start..head_end]);
        if head.contains(&named) {
            return Some(Bytes::copy_from_slice(body.get(head_end + 4..end)?));
        }
        start = end + 2;
    }
}

/// A speech request.
pub(super) struct SpeechRequest {
    pub(super) model: String,
    tokens: u32,
}

impl SpeechRequest {
    pub(super) fn parse(body: &Value) -> Result<Self, ApiError> {
        let bad = |name, message: &str| ApiError::invalid(Some(name), message.to_owned());
        let input = body["input"].as_str().ok_or_else(|| bad("input", "input must be a string"))?;
        body["voice"].as_str().ok_or_else(|| bad("voice", "you must provide a voice"))?;
        Ok(Self { model: read_model(body)?, tokens: count_tokens(input) })
    }

    /// Responds with audio that is streamed while it is generated.
    pub(super) async fn respond(
        self,
        job: ActiveRequest,
        slot_or_wait: SlotOrWait,
    ) -> Response<ResponseBody> {
        let slot = slot_or_wait.slot().await;
        job.first_token(self.tokens).await;
        let tokens = self.tokens as usize;
        let body = ResponseBody::generated(|chunks| async move {
            let _slot = slot;
            if chunks.send(wav_head(tokens * SPEECH_BYTES_PER_TOKEN)).await.is_err() {
                return;
            }
            for token in 0..tokens {
                let wave = |index: usize| ((index * (token + 1)) % 251) as u8;
                let audio: Vec<u8> = (0..SPEECH_BYTES_PER_TOKEN).map(wave).collect();
                if chunks.send(audio.into()).await.is_err() {
                    return;
                }
            }
        });
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("audio/wav"));
        response
    }
}

/// Returns the header of a WAV file: mono, 16 bits, 16 kHz.
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
    fn a_field_is_found_in_a_multipart_form_with_binary_data() {
        let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\u{1}\r\n--\r\n--x\r\n\
                    content-disposition: form-data; name=\"model\"\r\n\r\nears\r\n--x--\r\n";
        let request =
            TranscriptionRequest::parse("multipart/form-data; boundary=x", &Bytes::from(form)).unwrap();
        assert_eq!((request.model.as_str(), &request.audio[..]), ("ears", &b"\x01\r\n--"[..]));
        assert!(TranscriptionRequest::parse("multipart/form-data; boundary=y", &Bytes::from(form)).is_err());
        assert!(TranscriptionRequest::parse("application/json", &Bytes::from("{}")).is_err());
    }

    #[test]
    fn a_document_equal_to_the_query_ranks_first() {
        let body = json!({"model": "m", "query": "keel", "documents": ["wind", {"text": "keel"}, "fish"], "top_n": 2});
        let rerank = RerankRequest::parse(&body).unwrap();
        let response = rerank.to_json(7, "rerank-1");
        assert_eq!(
            (&response["results"][0]["index"], response["results"].as_array().unwrap().len()),
            (&json!(1), 2)
        );
        assert_eq!(response["usage"]["total_tokens"], 6);
        assert!(RerankRequest::parse(&json!({"model": "m", "query": "x", "documents": [1]})).is_err());
    }
}
