//! The simulated engine: its state, routing of requests, and application of faults.

use super::api_error::ApiError;
use super::completion::{Generator, embedding};
use super::fault::{Cut, Effect, Faults, RequestClass};
use super::fault_api;
use super::generate::{ActiveRequest, FaultPlan};
use super::media::{RerankRequest, SpeechRequest, TranscriptionRequest};
use super::metrics::{self, ModelCounters};
use super::options::SimOptions;
use super::pace::LatencyModel;
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

const BODY_BYTES_MAX: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) latency: LatencyModel,
    pub(super) slots: Arc<SlotPool>,
    generator: Generator,
    models: Vec<String>,
    counters: Vec<ModelCounters>,
    faults: Mutex<Faults>,
    responses: AtomicU64,
    /// Seconds since the epoch.
    started_at: f64,
    /// Number of open connections.
    pub(super) connections: watch::Sender<u32>,
}

/// Client that sent a request, with the channel through which a fault cuts its connection.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) locality: Locality,
    pub(super) cuts: mpsc::Sender<Cut>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    SameMachine,
    Remote,
}

impl Client {
    /// Cuts the connection; the future never completes.
    pub(super) async fn cut<T>(&self, cut: Cut) -> T {
        // Fails only if the connection has already ended.
        let _ = self.cuts.send(cut).await;
        pending().await
    }
}

/// Endpoint of a request.
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
            latency: LatencyModel::new(&options),
            slots: SlotPool::new(options.slots, options.queue_max, options.models.len()),
            generator: Generator {
                seed: options.seed,
                output_tokens: options.output_tokens,
                context_max: options.context_max,
            },
            started_at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            counters: options.models.iter().map(|_| ModelCounters::default()).collect(),
            models: options.models,
            faults: Mutex::new(Faults::new(options.seed, options.fault)),
            responses: AtomicU64::new(0),
            connections: watch::Sender::default(),
        })
    }

    pub(super) fn counters(&self, model: usize) -> &ModelCounters {
        &self.counters[model]
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one request.
    pub(super) async fn respond(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let error_body = if request.uri().path().starts_with("/v1/messages") {
            ApiError::anthropic_body
        } else {
            ApiError::openai_body
        };
        self.route(client, request).await.unwrap_or_else(|error| error_response(&error, &error_body(&error)))
    }

    async fn route(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let (head, body) = request.into_parts();
        if head.uri.path() == fault_api::PATH {
            let body = read_body(body).await?;
            return fault_api::respond(&mut self.faults(), client.locality, &head.method, &body)
                .map(|fault| json_response(&fault));
        }
        let route = find_route(&head.method, head.uri.path())?;
        // Reads the body before applying a fault, because closing a socket with unread bytes resets the connection.
        let body = read_body(body).await?;
        let fault = self.apply_fault(&client, &route).await?;
        let job = |model| ActiveRequest { engine: self.clone(), client, model, fault };
        match route {
            Route::Text(api) => {
                let request = GenerateRequest::parse(api, &request::json(&body)?)?;
                self.generate(job(self.model(&request.model)?), request).await
            }
            Route::CountTokens => {
                let body = request::json(&body)?;
                self.model(&request::read_model(&body)?)?;
                let tokens = request::count_tokens(&request::messages::prompt(&body)?);
                Ok(json_response(&json!({"input_tokens": tokens})))
            }
            Route::Rerank => {
                let request = RerankRequest::parse(&request::json(&body)?)?;
                self.rerank(job(self.model(&request.model)?), request).await
            }
            Route::Transcription => {
                let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let request = TranscriptionRequest::parse(content_type.unwrap_or_default(), &body)?;
                let job = job(self.model(&request.model)?);
                let plan = request.plan(&self.generator)?;
                let slot_or_wait = self.slots.enter(job.model).map_err(|_| ApiError::QueueFull)?;
                Ok(request.respond(job, slot_or_wait, &plan).await)
            }
            Route::Speech => {
                let request = SpeechRequest::parse(&request::json(&body)?)?;
                let job = job(self.model(&request.model)?);
                let slot_or_wait = self.slots.enter(job.model).map_err(|_| ApiError::QueueFull)?;
                Ok(request.respond(job, slot_or_wait).await)
            }
            Route::Embeddings => {
                let request = EmbeddingRequest::parse(&request::json(&body)?)?;
                self.embed(job(self.model(&request.model)?), request).await
            }
            Route::Models => Ok(json_response(&response_format::models(
                &self.models,
                unix_seconds(),
                self.generator.context_max,
            ))),
            Route::Model(name) => {
                self.model(name)?;
                Ok(json_response(&response_format::model(name, unix_seconds(), self.generator.context_max)))
            }
            Route::Health => Ok(Response::new(ResponseBody::Whole(None))),
            Route::Metrics => Ok(self.metrics()),
        }
    }

    /// Applies the fault, if it affects this request; returns the part that concerns the response.
    async fn apply_fault(&self, client: &Client, route: &Route<'_>) -> Result<FaultPlan, ApiError> {
        let class = match route {
            Route::Text(_)
            | Route::CountTokens
            | Route::Embeddings
            | Route::Rerank
            | Route::Transcription
            | Route::Speech => RequestClass::Inference,
            Route::Models | Route::Model(_) | Route::Health | Route::Metrics => RequestClass::Probe,
        };
        let effect = self.faults().next_effect(class);
        match effect {
            None => Ok(FaultPlan::default()),
            Some(Effect::Hang) => pending().await,
            Some(Effect::Cut(cut)) => client.cut(cut).await,
            Some(Effect::Reject(response)) => Err(ApiError::Fault(response)),
            Some(Effect::Delay(delay)) => Ok(FaultPlan { delay, damage: None }),
            Some(Effect::Damage(damage)) => Ok(FaultPlan { damage: Some(damage), ..FaultPlan::default() }),
        }
    }

    async fn generate(
        &self,
        job: ActiveRequest,
        request: GenerateRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let plan = self.generator.plan(&request)?;
        let slot_or_wait = self.slots.enter(job.model).map_err(|_| ApiError::QueueFull)?;
        let usage = match request.mode {
            ResponseMode::Whole => IncludeUsage::No,
            ResponseMode::Stream { usage } => usage,
        };
        let format = ResponseFormat {
            api: request.api,
            id: self.next_id(request.api),
            created: unix_seconds(),
            model: request.model,
            usage,
        };
        match request.mode {
            ResponseMode::Whole => Ok(job.whole(slot_or_wait, &format, &plan).await),
            ResponseMode::Stream { .. } => Ok(job.stream(slot_or_wait, format, plan)),
        }
    }

    async fn embed(
        &self,
        job: ActiveRequest,
        request: EmbeddingRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let slot_or_wait = self.slots.enter(job.model).map_err(|_| ApiError::QueueFull)?;
        let slot = slot_or_wait.slot().await;
        job.first_token(request.tokens).await;
        let vector = |text: &String| embedding(self.generator.seed, text, request.dimensions);
        let vectors: Vec<_> = request.texts.iter().map(vector).collect();
        let response =
            response_format::embeddings(&request.model, &vectors, request.tokens, request.encoding);
        Ok(job.finish(slot, &response))
    }

    async fn rerank(
        &self,
        job: ActiveRequest,
        request: RerankRequest,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let slot_or_wait = self.slots.enter(job.model).map_err(|_| ApiError::QueueFull)?;
        let slot = slot_or_wait.slot().await;
        job.first_token(request.tokens()).await;
        let id = format!("rerank-{:016x}", self.responses.fetch_add(1, Ordering::Relaxed));
        Ok(job.finish(slot, &request.to_json(self.generator.seed, &id)))
    }

    fn model(&self, name: &str) -> Result<usize, ApiError> {
        let index = self.models.iter().position(|model| model == name);
        index.ok_or_else(|| ApiError::ModelNotFound { model: name.to_owned() })
    }

    fn next_id(&self, api: ApiKind) -> String {
        let number = draw(self.generator.seed, self.responses.fetch_add(1, Ordering::Relaxed));
        match api {
            ApiKind::Chat => format!("chatcmpl-{number:016x}"),
            ApiKind::Completion => format!("cmpl-{number:016x}"),
            ApiKind::Messages => format!("msg_{number:016x}"),
            ApiKind::Responses => format!("resp_{number:016x}"),
        }
    }

    fn metrics(&self) -> Response<ResponseBody> {
        let text = metrics::render(&self.models, &self.slots, &self.counters, self.started_at);
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
            None => {
                return Err(ApiError::RouteNotFound { method: method.to_string(), path: path.to_owned() });
            }
        },
    };
    match (allowed == method, allowed == Method::POST) {
        (true, _) => Ok(route),
        (false, true) => Err(ApiError::MethodNotAllowed { allowed: "POST" }),
        (false, false) => Err(ApiError::MethodNotAllowed { allowed: "GET" }),
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, ApiError> {
    // Rejects a body without reading it if its content-length is too large.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(ApiError::TooLarge { bytes_max: BODY_BYTES_MAX });
    }
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { bytes_max: BODY_BYTES_MAX }),
        Err(error) => Err(ApiError::invalid(None, format!("the body ended early: {error}"))),
    }
}

fn error_response(error: &ApiError, body: &Value) -> Response<ResponseBody> {
    let mut response = json_response(body);
    *response.status_mut() = error.status();
    if let Some((name, value)) = error.header() {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn json_response(value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Some(value.to_string().into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
