//! Actor that scrapes one engine's load metrics.
//!
//! Guarantees: a failed scrape does not affect the node's health.
//!
//! Limits: one scrape at a time, `interval` after a success and `retry_interval` after a failure.

use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_actor::{Actor, Context, Flow, HandlerResult, Signal, TimerId};
use evenkeel_pipeline::EngineLoad;
use evenkeel_policy::time::Duration;
use http::StatusCode;

use super::engine::Engine;
use super::engine_metrics::{has_gauges, read_metrics, read_slots};
use super::node_client::NodeClient;
use super::prober::schedule_next;
use super::{Finding, ReportSink};
use evenkeel_upstream::Origin;

const SCRAPE_TIMER: TimerId = TimerId(0);

pub(super) struct Scraper {
    pub(super) sink: Arc<ReportSink>,
    pub(super) client: NodeClient,
    pub(super) origins: Arc<[Origin]>,
    pub(super) interval: Duration,
    /// Interval while scrapes fail.
    pub(super) retry_interval: Duration,
    /// `None` until discovered.
    pub(super) engine: Option<Engine>,
    pub(super) last_load: Option<EngineLoad>,
}

/// Messages handled by [`Scraper`].
pub(super) enum ScraperMsg {
    /// From the node's monitor: the discovered engine.
    Engine(Engine),
    /// A scrape is complete; `None` if it failed.
    Load(Option<EngineLoad>),
}

impl Scraper {
    fn scrape(&self, engine: Engine) -> HandlerResult<ScraperMsg> {
        let client = self.client.clone();
        let origins = self.origins.clone();
        Ok(Flow::wait(async move { ScraperMsg::Load(scrape(&client, &origins, engine).await) }))
    }

    /// Reports the load; a missing load only once.
    fn report(&mut self, load: Option<EngineLoad>) {
        if load.is_some() || self.last_load.is_some() {
            self.sink.report(Finding::Load(load));
        }
        self.last_load = load;
    }
}

impl Actor for Scraper {
    type Msg = ScraperMsg;

    fn receive(&mut self, message: ScraperMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ScraperMsg> {
        match message {
            ScraperMsg::Engine(engine) if self.engine == Some(engine) => Ok(Flow::Continue),
            ScraperMsg::Engine(engine) => {
                self.engine = Some(engine);
                ctx.cancel_timer(SCRAPE_TIMER);
                if has_gauges(engine) {
                    return self.scrape(engine);
                }
                self.report(None);
                Ok(Flow::Continue)
            }
            ScraperMsg::Load(load) => {
                self.report(load);
                schedule_next(
                    ctx,
                    SCRAPE_TIMER,
                    if load.is_some() { self.interval } else { self.retry_interval },
                )
            }
        }
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<ScraperMsg> {
        match self.engine {
            Some(engine) if signal == Signal::Timer(SCRAPE_TIMER) => self.scrape(engine),
            _ => Ok(Flow::Continue),
        }
    }
}

/// Scrapes the first origin that responds.
async fn scrape(client: &NodeClient, origins: &[Origin], engine: Engine) -> Option<EngineLoad> {
    for origin in origins {
        let Ok(reply) = client.get(origin, "/metrics").await else { continue };
        if reply.status == StatusCode::OK
            && let Some(load) = read_metrics(engine, reply.body(), SystemTime::now())
        {
            return Some(load);
        }
        // llama.cpp has metrics only if started with `--metrics`; otherwise use `/slots`.
        if engine == Engine::LlamaCpp {
            return client.get(origin, "/slots").await.ok()?.json().as_ref().and_then(read_slots);
        }
        return None;
    }
    None
}
