//! The actor that asks one engine how loaded it is.
//!
//! Bound: one question at a time, every `load_interval` while it is answered, every `models_interval` while it is not.
//! That an engine does not say how loaded it is says nothing about its health.

use std::sync::Arc;

use evenkeel_actor::{Actor, Context, Flow, Handled, Signal, TimerId};
use evenkeel_pipeline::EngineLoad;
use evenkeel_policy::time::Duration;
use http::StatusCode;

use super::caller::Caller;
use super::engine::Engine;
use super::gauges::{has_gauges, read_metrics, read_slots};
use super::prober::wait;
use super::{Finding, Voice};
use crate::upstream::Origin;

const NEXT: TimerId = TimerId(0);

pub(super) struct Scraper {
    pub(super) voice: Arc<Voice>,
    pub(super) caller: Caller,
    pub(super) origins: Arc<[Origin]>,
    /// How often it is asked that answers.
    pub(super) interval: Duration,
    /// How often it is asked that does not.
    pub(super) patience: Duration,
    /// What it is, once that is known.
    pub(super) engine: Option<Engine>,
    pub(super) last: Option<EngineLoad>,
}

/// What the actor is told.
pub(super) enum Heard {
    /// By its node: what the engine is.
    Engine(Engine),
    /// By itself: what the engine said.
    Load(Option<EngineLoad>),
}

impl Scraper {
    fn ask(&self, engine: Engine) -> Handled<Heard> {
        let (caller, origins) = (self.caller.clone(), self.origins.clone());
        Ok(Flow::wait(async move { Heard::Load(load(&caller, &origins, engine).await) }))
    }

    fn take_in(&mut self, load: Option<EngineLoad>) {
        if load.is_some() || self.last.is_some() {
            self.voice.say(Finding::Load(load));
        }
        self.last = load;
    }
}

impl Actor for Scraper {
    type Msg = Heard;

    fn receive(&mut self, heard: Heard, ctx: &mut Context<'_, Self>) -> Handled<Heard> {
        match heard {
            Heard::Engine(engine) if self.engine == Some(engine) => Ok(Flow::Continue),
            Heard::Engine(engine) => {
                self.engine = Some(engine);
                ctx.cancel_timer(NEXT);
                if has_gauges(engine) {
                    return self.ask(engine);
                }
                self.take_in(None);
                Ok(Flow::Continue)
            }
            Heard::Load(load) => {
                self.take_in(load);
                wait(ctx, NEXT, if load.is_some() { self.interval } else { self.patience })
            }
        }
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> Handled<Heard> {
        match self.engine {
            Some(engine) if signal == Signal::Timer(NEXT) => self.ask(engine),
            _ => Ok(Flow::Continue),
        }
    }
}

/// Asks over one path after the other, until one answers.
async fn load(caller: &Caller, origins: &[Origin], engine: Engine) -> Option<EngineLoad> {
    for origin in origins {
        let Ok(answer) = caller.get(origin, "/metrics").await else { continue };
        if answer.status == StatusCode::OK
            && let Some(load) = read_metrics(engine, answer.body())
        {
            return Some(load);
        }
        // llama.cpp has metrics only if it was told to.
        if engine == Engine::LlamaCpp {
            return caller.get(origin, "/slots").await.ok()?.json().as_ref().and_then(read_slots);
        }
        return None;
    }
    None
}
