//! The engine itself: what it has, where a request goes, and what it gets when the engine has a fault.

use super::api_error::ApiError;
use super::completion::{Generator, embedding};
use super::fault::{Cut, Effect, Faults, RequestClass};
use super::fault_api;
use super::generate::{ActiveRequest, FaultPlan};
use super::media::{RerankRequest, SpeechRequest, TranscriptionRequest};
use super::metrics::{self, Counters};
use super::options::SimOptions;
use super::pace::Pace;
use super::request::{self, ApiKind, EmbeddingRequest, GenerateRequest, IncludeUsage, ResponseMode};
use super::response_body::ResponseBody;
use super::response_format::{self, ResponseFormat};
use super::seeded_random::draw;
use super::slots::SlotPool;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};

/// The most bytes of a request's body.
const BODY_MAX: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) pace: Pace,
    pub(super) slots: Arc<SlotPool>,
    voice: Generator,
    models: Vec<String>,
    counters: Vec<Counters>,
    faults: Mutex<Faults>,
    answered: AtomicU64,
    /// How many connections are open.
    pub(super) connections: watch::Sender<u32>,
}

/// Who asks, and the handle on its connection.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) locality: Locality,
    pub(super) cuts: mpsc::Sender<Cut>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    SameMachine,
    Elsewhere,
}

impl Client {
    /// Has the connection ended, and never returns.
    pub(super) async fn cut<T>(&self, cut: Cut) -> T {
        // An error here is a connection that has ended already.
        let _ = self.cuts.send(cut).await;
        pending().await
    }
}

/// What a request is for.
enum Route<'a> {
    Text(ApiKind),
    CountTokens,
    Embeddings,
    Rerank,
    Transcription,
    Speech,
    Models,
    Model(&'a str),
    Health,
    Metrics,
}

impl Engine {
    pub(super) fn new(options: SimOptions) -> Arc<Self> {
        Arc::new(Self {
            pace: Pace::new(&options),
            slots: SlotPool::new(options.slots, options.queue_max, options.models.len()),
            voice: Generator {
                seed: options.seed,
                output_tokens: options.output_tokens,
                context_max: options.context_max,
            },
            counters: options.models.iter().map(|_| Counters::default()).collect(),
            models: options.models,
            faults: Mutex::new(Faults::new(options.seed, options.fault)),
            answered: AtomicU64::new(0),
            connections: watch::Sender::default(),
        })
    }

    pub(super) fn counters(&self, model: usize) -> &Counters {
        &self.counters[model]
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request.
    pub(super) async fn answer(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let shape = if request.uri().path().starts_with("/v1/messages") {
            ApiError::anthropic_body
        } else {
            ApiError::body
        };
        self.route(client, request).await.unwrap_or_else(|refused| refusal(&refused, &shape(&refused)))
    }

    async fn route(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let (head, body) = request.into_parts();
        if head.uri.path() == fault_api::PATH {
            let body = read(body).await?;
            return fault_api::answer(&mut self.faults(), client.locality, &head.method, &body)
                .map(|said| reply(&said));
        }
        let route = find_route(&head.method, head.uri.path())?;
        // Read before any fault strikes: a socket with unread bytes cannot be closed without a reset.
        let body = read(body).await?;
        let trouble = self.apply_fault(&client, &route).await?;
        let job = |model| ActiveRequest { engine: self.clone(), client, model, trouble };
        match route {
            Route::Text(form) => {
                let request = GenerateRequest::read(form, &request::json(&body)?)?;
                self.generate(job(self.model(&request.model)?), request).await
            }
            Route::CountTokens => {
                let body = request::json(&body)?;
                self.model(&request::read_model(&body)?)?;
                let tokens = request::count_tokens(&request::messages::prompt(&body)?);
                Ok(reply(&json!({"input_tokens": tokens})))
            }
            Route::Rerank => {
                let request = RerankRequest::read(&request::json(&body)?)?;
                self.rerank(job(self.model(&request.model)?), request).await
            }
            Route::Transcription => {
                let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
                let request = TranscriptionRequest::read(kind.unwrap_or_default(), &body)?;
                let job = job(self.model(&request.model)?);
                let answer = request.answer(&self.voice)?;
                let place = self.slots.enter(job.model).map_err(|_| ApiError::Full)?;
                Ok(request.respond(job, place, &answer).await)
            }
            Route::Speech => {
                let request = SpeechRequest::read(&request::json(&body)?)?;
                let job = job(self.model(&request.model)?);
                let place = self.slots.enter(job.model).map_err(|_| ApiError::Full)?;
                Ok(request.respond(job, place).await)
            }
            Route::Embeddings => {
                let request = EmbeddingRequest::read(&request::json(&body)?)?;
                self.embed(job(self.model(&request.model)?), request).await
            }
            Route::Models => {
                Ok(reply(&response_format::models(&self.models, unix_seconds(), self.voice.context_max)))
            }
            Route::Model(name) => {
                self.model(name)?;
                Ok(reply(&response_format::model(name, unix_seconds(), self.voice.context_max)))
            }
            Route::Health => Ok(Response::new(ResponseBody::Whole(None))),
            Route::Metrics => Ok(self.metrics()),
        }
    }

    /// Lets the engine's fault strike; returns what is left to go wrong with the answer.
    async fn apply_fault(&self, client: &Client, route: &Route<'_>) -> Result<FaultPlan, ApiError> {
        let asked = match route {
            Route::Text(_)
            | Route::CountTokens
            | Route::Embeddings
            | Route::Rerank
            | Route::Transcription
            | Route::Speech => RequestClass::Inference,
            Route::Models | Route::Model(_) | Route::Health | Route::Metrics => RequestClass::Probe,
        };
        let effect = self.faults().next_effect(asked);
        match effect {
            None => Ok(FaultPlan::default()),
            Some(Effect::Hang) => pending().await,
            Some(Effect::Cut(cut)) => client.cut(cut).await,
            Some(Effect::Refuse(refusal)) => Err(ApiError::Fault(refusal)),
            Some(Effect::Delay(delay)) => Ok(FaultPlan { delay, damage: None }),
            Some(Effect::Damage(damage)) => Ok(FaultPlan { damage: Some(damage), ..FaultPlan::default() }),
        }
    }

    async fn generate(
        &self,
        job: ActiveRequest,
        request: GenerateRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let answer = self.voice.answer(&request)?;
        let place = self.slots.enter(job.model).map_err(|_| ApiError::Full)?;
        let usage = match request.delivery {
            ResponseMode::Whole => IncludeUsage::Unasked,
            ResponseMode::Stream { usage } => usage,
        };
        let shape = ResponseFormat {
            form: request.form,
            id: self.next_id(request.form),
            created: unix_seconds(),
            model: request.model,
            usage,
        };
        match request.delivery {
            ResponseMode::Whole => Ok(job.whole(place, &shape, &answer).await),
            ResponseMode::Stream { .. } => Ok(job.stream(place, shape, answer)),
        }
    }

    async fn embed(
        &self,
        job: ActiveRequest,
        request: EmbeddingRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let place = self.slots.enter(job.model).map_err(|_| ApiError::Full)?;
        let slot = place.slot().await;
        job.first_token(request.tokens).await;
        let vector = |text: &String| embedding(self.voice.seed, text, request.dimensions);
        let vectors: Vec<_> = request.texts.iter().map(vector).collect();
        let answer = response_format::embeddings(&request.model, &vectors, request.tokens, request.encoding);
        Ok(job.finish(slot, &answer))
    }

    async fn rerank(
        &self,
        job: ActiveRequest,
        request: RerankRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let place = self.slots.enter(job.model).map_err(|_| ApiError::Full)?;
        let slot = place.slot().await;
        job.first_token(request.tokens()).await;
        let id = format!("rerank-{:016x}", self.answered.fetch_add(1, Ordering::Relaxed));
        Ok(job.finish(slot, &request.answer(self.voice.seed, &id)))
    }

    fn model(&self, name: &str) -> Result<usize, ApiError> {
        let index = self.models.iter().position(|model| model == name);
        index.ok_or_else(|| ApiError::NoModel { model: name.to_owned() })
    }

    fn next_id(&self, form: ApiKind) -> String {
        let number = draw(self.voice.seed, self.answered.fetch_add(1, Ordering::Relaxed));
        match form {
            ApiKind::Chat => format!("chatcmpl-{number:016x}"),
            ApiKind::Completion => format!("cmpl-{number:016x}"),
            ApiKind::Messages => format!("msg_{number:016x}"),
            ApiKind::Responses => format!("resp_{number:016x}"),
        }
    }

    fn metrics(&self) -> Response<ResponseBody> {
        let text = metrics::text(&self.models, &self.slots, &self.counters);
        let mut response = Response::new(ResponseBody::Whole(Some(text.into())));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

fn find_route<'a>(method: &Method, path: &'a str) -> Result<Route<'a>, ApiError> {
    let (allowed, route) = match path {
        "/v1/chat/completions" => (Method::POST, Route::Text(ApiKind::Chat)),
        "/v1/completions" => (Method::POST, Route::Text(ApiKind::Completion)),
        "/v1/embeddings" => (Method::POST, Route::Embeddings),
        "/v1/messages" => (Method::POST, Route::Text(ApiKind::Messages)),
        "/v1/messages/count_tokens" => (Method::POST, Route::CountTokens),
        "/v1/responses" => (Method::POST, Route::Text(ApiKind::Responses)),
        "/v1/rerank" => (Method::POST, Route::Rerank),
        "/v1/audio/transcriptions" => (Method::POST, Route::Transcription),
        "/v1/audio/speech" => (Method::POST, Route::Speech),
        "/v1/models" => (Method::GET, Route::Models),
        "/health" => (Method::GET, Route::Health),
        "/metrics" => (Method::GET, Route::Metrics),
        _ => match path.strip_prefix("/v1/models/") {
            Some(name) => (Method::GET, Route::Model(name)),
            None => return Err(ApiError::NoRoute { method: method.to_string(), path: path.to_owned() }),
        },
    };
    match (allowed == method, allowed == Method::POST) {
        (true, _) => Ok(route),
        (false, true) => Err(ApiError::WrongMethod { allowed: "POST" }),
        (false, false) => Err(ApiError::WrongMethod { allowed: "GET" }),
    }
}

async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    // A body that announces too much is not waited for.
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(ApiError::TooLarge { bytes_max: BODY_MAX });
    }
    match Limited::new(body, BODY_MAX).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { bytes_max: BODY_MAX }),
        Err(error) => Err(ApiError::bad(None, format!("the body ended early: {error}"))),
    }
}

fn refusal(refused: &ApiError, body: &Value) -> Response<ResponseBody> {
    let mut response = reply(body);
    *response.status_mut() = refused.status();
    if let Some((name, value)) = refused.header() {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn reply(value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Some(value.to_string().into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
