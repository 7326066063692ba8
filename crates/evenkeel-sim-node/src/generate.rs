//! Generates one response: waits for a slot, then sends the tokens at the simulated speed.

use super::completion::CompletionPlan;
use super::engine::{Client, Engine};
use super::fault::{Cut, Damage};
use super::response_body::ResponseBody;
use super::response_format::ResponseFormat;
use super::slots::{SlotOrWait, SlotPermit};
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Wrong content length of a stream, longer than any response.
const LENGTH_WRONG: u64 = 1 << 40;
/// Bytes by which a wrong content length exceeds the real one.
const LENGTH_EXCESS: usize = 64;

/// Effect of a fault on a request that still gets a response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) delay: Duration,
    pub(super) damage: Option<Damage>,
}

/// A request accepted by the engine.
pub(super) struct ActiveRequest {
    pub(super) engine: Arc<Engine>,
    pub(super) client: Client,
    pub(super) model: usize,
    pub(super) fault: FaultPlan,
}

/// State of a stream after a fault was applied to it.
#[derive(PartialEq, Eq)]
enum StreamFate {
    Continues,
    Ends,
}

impl ActiveRequest {
    /// Generates the whole completion, then responds with one JSON object.
    pub(super) async fn whole(
        self,
        slot_or_wait: SlotOrWait,
        format: &ResponseFormat,
        plan: &CompletionPlan,
    ) -> Response<ResponseBody> {
        let slot = self.generate(slot_or_wait, plan).await;
        self.finish(slot, &format.whole(plan))
    }

    /// Waits until the whole completion is generated; returns the slot.
    pub(super) async fn generate(&self, slot_or_wait: SlotOrWait, plan: &CompletionPlan) -> SlotPermit {
        let slot = slot_or_wait.slot().await;
        let mut due = self.first_token(plan.prompt_tokens).await;
        for token in 0..plan.completion_tokens {
            self.next_token(token, &mut due).await;
        }
        self.engine.counters(self.model).count_finished(plan.finish);
        slot
    }

    /// Responds immediately with a stream that is generated while the client reads it.
    pub(super) fn stream(
        self,
        slot_or_wait: SlotOrWait,
        format: ResponseFormat,
        plan: CompletionPlan,
    ) -> Response<ResponseBody> {
        let damage = self.fault.damage;
        let body = ResponseBody::generated(|events| async move {
            let slot = slot_or_wait.slot().await;
            // Fails only if the client has disconnected.
            let _ = self.send_events(&format, &plan, &events).await;
            drop(slot);
            if damage == Some(Damage::Length) {
                self.client.cut::<()>(Cut::Close).await;
            }
        });
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if damage == Some(Damage::Length) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(LENGTH_WRONG));
        }
        response
    }

    /// Waits for the end of prefill; returns its time.
    pub(super) async fn first_token(&self, prompt_tokens: u32) -> Instant {
        let due = Instant::now() + self.engine.latency.time_to_first_token(prompt_tokens) + self.fault.delay;
        sleep_until(due).await;
        self.engine.counters(self.model).prompt_tokens.fetch_add(u64::from(prompt_tokens), Ordering::Relaxed);
        due
    }

    /// Waits until a token is generated; the first one is ready at the end of prefill.
    ///
    /// Each due time is computed from the previous one, not from the current time, so coarse timers do not slow the
    /// stream.
    async fn next_token(&self, token: u32, due: &mut Instant) {
        if token > 0 {
            *due += self.engine.latency.step_time(self.engine.slots.load().running);
            sleep_until(*due).await;
        }
        self.engine.counters(self.model).generation_tokens.fetch_add(1, Ordering::Relaxed);
    }

    async fn send_events(
        &self,
        format: &ResponseFormat,
        plan: &CompletionPlan,
        events: &mpsc::Sender<Bytes>,
    ) -> Result<(), mpsc::error::SendError<Bytes>> {
        let mut due = self.first_token(plan.prompt_tokens).await;
        for event in format.opening(plan) {
            events.send(event).await?;
        }
        let middle = plan.completion_tokens / 2;
        for token in 0..plan.completion_tokens {
            self.next_token(token, &mut due).await;
            let piece = plan.pieces.get(token as usize).map_or("", String::as_str);
            let next = format.piece(plan, token, piece);
            if token == middle && self.damage_stream(&next, events).await? == StreamFate::Ends {
                return Ok(());
            }
            // A token hidden by a stop sequence takes time to generate but is not sent.
            if !piece.is_empty() {
                events.send(next).await?;
            }
        }
        self.engine.counters(self.model).count_finished(plan.finish);
        for event in format.closing(plan) {
            events.send(event).await?;
        }
        Ok(())
    }

    /// Applies the fault in the middle of a stream.
    async fn damage_stream(
        &self,
        next: &Bytes,
        events: &mpsc::Sender<Bytes>,
    ) -> Result<StreamFate, mpsc::error::SendError<Bytes>> {
        match self.fault.damage {
            None | Some(Damage::Length) => Ok(StreamFate::Continues),
            Some(Damage::Cut) => self.client.cut(Cut::Close).await,
            Some(Damage::Stall) => pending().await,
            Some(Damage::Malformed) => {
                let half = next.slice(..next.len() / 2);
                events.send([&half[..], b"\n\n"].concat().into()).await?;
                Ok(StreamFate::Continues)
            }
            Some(Damage::Truncated) => {
                events.send(next.slice(..next.len() / 2)).await?;
                Ok(StreamFate::Ends)
            }
        }
    }

    /// Responds with JSON, damaged by the fault if there is one. A stalled response keeps its slot.
    pub(super) fn finish(self, slot: SlotPermit, value: &Value) -> Response<ResponseBody> {
        let bytes = Bytes::from(value.to_string());
        let half = bytes.slice(..bytes.len() / 2);
        let length = bytes.len();
        match self.fault.damage {
            None => respond(ResponseBody::Whole(Some(bytes)), None),
            Some(Damage::Malformed | Damage::Truncated) => respond(ResponseBody::Whole(Some(half)), None),
            Some(Damage::Cut) => {
                drop(slot);
                respond(self.cut_after(half, Cut::Close), Some(length))
            }
            Some(Damage::Length) => {
                drop(slot);
                respond(self.cut_after(bytes, Cut::Close), Some(length + LENGTH_EXCESS))
            }
            Some(Damage::Stall) => {
                let body = ResponseBody::generated(|pieces| async move {
                    let _slot = slot;
                    let _ = pieces.send(half).await;
                    pending::<()>().await;
                });
                respond(body, Some(length))
            }
        }
    }

    fn cut_after(self, bytes: Bytes, cut: Cut) -> ResponseBody {
        ResponseBody::generated(move |pieces| async move {
            let _ = pieces.send(bytes).await;
            self.client.cut::<()>(cut).await;
        })
    }
}

fn respond(body: ResponseBody, content_length: Option<usize>) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(length) = content_length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}
