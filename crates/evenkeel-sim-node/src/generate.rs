//! One request being worked on: it waits for its slot, then for its tokens, and sends them as they come.

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

/// What a stream with a wrong length announces: more than any answer has.
const LENGTH_WRONG: u64 = 1 << 40;
/// How many bytes too many a whole answer with a wrong length announces.
const LENGTH_EXCESS: usize = 64;

/// What a fault does to a request that is answered all the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) delay: Duration,
    pub(super) damage: Option<Damage>,
}

/// A request that has a place in the engine.
pub(super) struct ActiveRequest {
    pub(super) engine: Arc<Engine>,
    pub(super) client: Client,
    pub(super) model: usize,
    pub(super) trouble: FaultPlan,
}

/// Whether a stream goes on after what a fault did to it.
#[derive(PartialEq, Eq)]
enum StreamFate {
    GoesOn,
    Ends,
}

impl ActiveRequest {
    /// Generates everything, then answers in one piece.
    pub(super) async fn whole(
        self,
        place: SlotOrWait,
        shape: &ResponseFormat,
        answer: &CompletionPlan,
    ) -> Response<ResponseBody> {
        let slot = self.generated(place, answer).await;
        self.finish(slot, &shape.whole(answer))
    }

    /// Waits until everything is generated.
    pub(super) async fn generated(&self, place: SlotOrWait, answer: &CompletionPlan) -> SlotPermit {
        let slot = place.slot().await;
        let mut due = self.first_token(answer.prompt_tokens).await;
        for token in 0..answer.completion_tokens {
            self.next_token(token, &mut due).await;
        }
        self.engine.counters(self.model).finished(answer.finish);
        slot
    }

    /// Answers at once with a stream that is generated as it is read.
    pub(super) fn stream(
        self,
        place: SlotOrWait,
        shape: ResponseFormat,
        answer: CompletionPlan,
    ) -> Response<ResponseBody> {
        let damage = self.trouble.damage;
        let body = ResponseBody::made(|events| async move {
            let slot = place.slot().await;
            // An error here is a client that is gone, and nobody is left to tell.
            let _ = self.send_events(&shape, &answer, &events).await;
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

    /// Waits until the prompt has been read, and says when that was.
    pub(super) async fn first_token(&self, prompt_tokens: u32) -> Instant {
        let due = Instant::now() + self.engine.pace.first_token(prompt_tokens) + self.trouble.delay;
        sleep_until(due).await;
        self.engine.counters(self.model).prompt_tokens.fetch_add(u64::from(prompt_tokens), Ordering::Relaxed);
        due
    }

    /// Waits for a token; the first is there as soon as the prompt has been read.
    ///
    /// The times add up from the first one, so the rate is right even where timers are coarse.
    async fn next_token(&self, token: u32, due: &mut Instant) {
        if token > 0 {
            *due += self.engine.pace.step(self.engine.slots.load().running);
            sleep_until(*due).await;
        }
        self.engine.counters(self.model).generation_tokens.fetch_add(1, Ordering::Relaxed);
    }

    async fn send_events(
        &self,
        shape: &ResponseFormat,
        answer: &CompletionPlan,
        events: &mpsc::Sender<Bytes>,
    ) -> Result<(), mpsc::error::SendError<Bytes>> {
        let mut due = self.first_token(answer.prompt_tokens).await;
        for opening in shape.opening(answer) {
            events.send(opening).await?;
        }
        let middle = answer.completion_tokens / 2;
        for token in 0..answer.completion_tokens {
            self.next_token(token, &mut due).await;
            let piece = answer.pieces.get(token as usize).map_or("", String::as_str);
            let next = shape.piece(answer, token, piece);
            if token == middle && self.strike(&next, events).await? == StreamFate::Ends {
                return Ok(());
            }
            // A token that a stop hides takes its time and says nothing.
            if !piece.is_empty() {
                events.send(next).await?;
            }
        }
        self.engine.counters(self.model).finished(answer.finish);
        for closing in shape.closing(answer) {
            events.send(closing).await?;
        }
        Ok(())
    }

    /// Does to a stream what its fault does in the middle of it.
    async fn strike(
        &self,
        next: &Bytes,
        events: &mpsc::Sender<Bytes>,
    ) -> Result<StreamFate, mpsc::error::SendError<Bytes>> {
        match self.trouble.damage {
            None | Some(Damage::Length) => Ok(StreamFate::GoesOn),
            Some(Damage::Cut) => self.client.cut(Cut::Close).await,
            Some(Damage::Stall) => pending().await,
            Some(Damage::Malformed) => {
                let half = next.slice(..next.len() / 2);
                events.send([&half[..], b"\n\n"].concat().into()).await?;
                Ok(StreamFate::GoesOn)
            }
            Some(Damage::Truncated) => {
                events.send(next.slice(..next.len() / 2)).await?;
                Ok(StreamFate::Ends)
            }
        }
    }

    /// Answers with JSON, or with what a fault leaves of it; a stalled answer keeps its slot.
    pub(super) fn finish(self, slot: SlotPermit, answer: &Value) -> Response<ResponseBody> {
        let bytes = Bytes::from(answer.to_string());
        let half = bytes.slice(..bytes.len() / 2);
        let length = bytes.len();
        match self.trouble.damage {
            None => respond(ResponseBody::Whole(Some(bytes)), None),
            Some(Damage::Malformed | Damage::Truncated) => respond(ResponseBody::Whole(Some(half)), None),
            Some(Damage::Cut) => {
                drop(slot);
                respond(self.partial(half, Cut::Close), Some(length))
            }
            Some(Damage::Length) => {
                drop(slot);
                respond(self.partial(bytes, Cut::Close), Some(length + LENGTH_EXCESS))
            }
            Some(Damage::Stall) => {
                let body = ResponseBody::made(|pieces| async move {
                    let _held = slot;
                    let _ = pieces.send(half).await;
                    pending::<()>().await;
                });
                respond(body, Some(length))
            }
        }
    }

    fn partial(self, bytes: Bytes, cut: Cut) -> ResponseBody {
        ResponseBody::made(move |pieces| async move {
            let _ = pieces.send(bytes).await;
            self.client.cut::<()>(cut).await;
        })
    }
}

fn respond(body: ResponseBody, announced: Option<usize>) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(length) = announced {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}
