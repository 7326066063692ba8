//! The actor that looks after one node.

use std::sync::Arc;

use evenkeel_actor::{Actor, ActorError, ActorRef, Context, Flow, HandlerResult, Props, Signal, TimerId};
use evenkeel_policy::id::PathId;

use super::discovery::{Discovery, discover};
use super::engine::Engine;
use super::health_check::CheckEndpoint;
use super::node_client::NodeClient;
use super::prober::{Prober, Reachability, wait};
use super::scraper::{Scraper, ScraperMsg};
use super::{Finding, ReportSink};
use crate::options::HealthOptions;
use evenkeel_upstream::Origin;

const NEXT: TimerId = TimerId(0);

pub(super) struct NodeMonitor {
    voice: Arc<ReportSink>,
    caller: NodeClient,
    origins: Arc<[Origin]>,
    health: HealthOptions,
    /// What was told last.
    told: Discovery,
    /// What it is; forgotten when it comes back from being unwell.
    engine: Option<Engine>,
    /// Who asks how loaded it is, if anybody does.
    scraper: Option<ActorRef<ScraperMsg>>,
}

/// What the actor is told.
pub(super) enum NodeMonitorMsg {
    /// By a child: a path answers again.
    Back,
    /// By itself: what the node said.
    Surveyed(Discovery),
}

impl NodeMonitor {
    pub(super) fn new(
        voice: Arc<ReportSink>,
        caller: NodeClient,
        origins: Arc<[Origin]>,
        health: HealthOptions,
    ) -> Self {
        Self { voice, caller, origins, health, told: Discovery::default(), engine: None, scraper: None }
    }

    fn begin(&self, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        // One that fires during the wait could begin no other.
        ctx.cancel_timer(NEXT);
        let caller = self.caller.clone();
        let origins = self.origins.clone();
        let known = self.engine;
        Ok(Flow::wait(async move { NodeMonitorMsg::Surveyed(discover(&caller, &origins, known).await) }))
    }

    fn watch_paths(&self, ctx: &mut Context<'_, Self>) -> Result<(), ActorError> {
        let node = ctx.me();
        for (number, origin) in self.origins.iter().enumerate() {
            // With one path only there is nothing to tell apart.
            let path = (1 < self.origins.len()).then_some(PathId(number as u32));
            let voice = self.voice.clone();
            let caller = self.caller.clone();
            let origin = origin.clone();
            let node = node.clone();
            let interval = self.health.interval;
            let props = Props::new(move || Prober {
                voice: voice.clone(),
                caller: caller.clone(),
                origin: origin.clone(),
                path,
                interval,
                node: node.clone(),
                question: CheckEndpoint::default(),
                answered: Reachability::Yes,
            });
            ctx.spawn(&props.build()).map_err(|error| ActorError::new(error.to_string()))?;
        }
        Ok(())
    }

    fn watch_load(&mut self, ctx: &mut Context<'_, Self>) -> Result<(), ActorError> {
        let Some(interval) = self.health.load_interval else { return Ok(()) };
        let voice = self.voice.clone();
        let caller = self.caller.clone();
        let origins = self.origins.clone();
        let patience = self.health.models_interval;
        let props = Props::new(move || Scraper {
            voice: voice.clone(),
            caller: caller.clone(),
            origins: origins.clone(),
            interval,
            patience,
            engine: None,
            last: None,
        });
        let scraper = ctx.spawn(&props.build()).map_err(|error| ActorError::new(error.to_string()))?;
        self.scraper = Some(scraper);
        Ok(())
    }

    /// Tells what changed.
    fn take_in(&mut self, survey: Discovery) {
        self.engine = survey.engine;
        if let (Some(scraper), Some(engine)) = (&self.scraper, survey.engine) {
            scraper.tell(ScraperMsg::Engine(engine));
        }
        if let Some(engine) = survey.engine.filter(|engine| self.told.engine != Some(*engine)) {
            self.told.engine = Some(engine);
            self.voice.report(Finding::Engine(engine));
        }
        if let Some(slots) = survey.slots.filter(|slots| self.told.slots != Some(*slots)) {
            self.told.slots = Some(slots);
            self.voice.report(Finding::Slots(slots));
        }
        if let Some(models) = survey.models.filter(|models| self.told.models.as_ref() != Some(models)) {
            self.told.models = Some(models.clone());
            self.voice.report(Finding::Models(models));
        }
    }
}

impl Actor for NodeMonitor {
    type Msg = NodeMonitorMsg;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        self.watch_paths(ctx)?;
        self.watch_load(ctx)?;
        self.begin(ctx)
    }

    fn receive(
        &mut self,
        told: NodeMonitorMsg,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<NodeMonitorMsg> {
        match told {
            NodeMonitorMsg::Back => {
                self.engine = None;
                self.begin(ctx)
            }
            NodeMonitorMsg::Surveyed(survey) => {
                let complete = survey.models.is_some();
                self.take_in(survey);
                wait(ctx, NEXT, if complete { self.health.models_interval } else { self.health.interval })
            }
        }
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        if signal == Signal::Timer(NEXT) { self.begin(ctx) } else { Ok(Flow::Continue) }
    }
}
