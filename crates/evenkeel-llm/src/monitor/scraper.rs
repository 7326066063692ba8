//! The actor that asks one engine how loaded it is.
//!
//! Bound: one question at a time, every `load_interval` while it is answered, every `models_interval` while it is not.
//! That an engine does not say how loaded it is says nothing about its health.

use std::sync::Arc;

use evenkeel_actor::{Actor, Context, Flow, HandlerResult, Signal, TimerId};
use evenkeel_pipeline::EngineLoad;
use evenkeel_policy::time::Duration;
use http::StatusCode;

use super::engine::Engine;
use super::engine_metrics::{has_gauges, read_metrics, read_slots};
use super::node_client::NodeClient;
use super::prober::wait;
use super::{Finding, ReportSink};
use evenkeel_upstream::Origin;

const NEXT: TimerId = TimerId(0);

pub(super) struct Scraper {
    pub(super) voice: Arc<ReportSink>,
    pub(super) caller: NodeClient,
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
pub(super) enum ScraperMsg {
    /// By its node: what the engine is.
    Engine(Engine),
    /// By itself: what the engine said.
    Load(Option<EngineLoad>),
}

impl Scraper {
    fn ask(&self, engine: Engine) -> HandlerResult<ScraperMsg> {
        let caller = self.caller.clone();
        let origins = self.origins.clone();
        Ok(Flow::wait(async move { ScraperMsg::Load(load(&caller, &origins, engine).await) }))
    }

    fn take_in(&mut self, load: Option<EngineLoad>) {
        if load.is_some() || self.last.is_some() {
            self.voice.report(Finding::Load(load));
        }
        self.last = load;
    }
}

impl Actor for Scraper {
    type Msg = ScraperMsg;

    fn receive(&mut self, heard: ScraperMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ScraperMsg> {
        match heard {
            ScraperMsg::Engine(engine) if self.engine == Some(engine) => Ok(Flow::Continue),
            ScraperMsg::Engine(engine) => {
                self.engine = Some(engine);
                ctx.cancel_timer(NEXT);
                if has_gauges(engine) {
                    return self.ask(engine);
                }
                self.take_in(None);
                Ok(Flow::Continue)
            }
            ScraperMsg::Load(load) => {
                self.take_in(load);
                wait(ctx, NEXT, if load.is_some() { self.interval } else { self.patience })
            }
        }
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<ScraperMsg> {
        match self.engine {
            Some(engine) if signal == Signal::Timer(NEXT) => self.ask(engine),
            _ => Ok(Flow::Continue),
        }
    }
}

/// Asks over one path after the other, until one answers.
async fn load(caller: &NodeClient, origins: &[Origin], engine: Engine) -> Option<EngineLoad> {
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
