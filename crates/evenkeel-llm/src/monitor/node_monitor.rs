//! Actor that monitors one node: runs discovery, and supervises the prober of each path and the scraper.

use std::sync::Arc;

use evenkeel_actor::{Actor, ActorError, ActorRef, Context, Flow, HandlerResult, Props, Signal, TimerId};
use evenkeel_policy::id::PathId;

use super::discovery::{Discovery, discover};
use super::engine::Engine;
use super::health_check::CheckEndpoint;
use super::node_client::NodeClient;
use super::prober::{Prober, Reachability, schedule_next};
use super::scraper::{Scraper, ScraperMsg};
use super::{Finding, ReportSink};
use crate::options::HealthOptions;
use evenkeel_upstream::Origin;

const NEXT: TimerId = TimerId(0);

pub(super) struct NodeMonitor {
    sink: Arc<ReportSink>,
    client: NodeClient,
    origins: Arc<[Origin]>,
    health: HealthOptions,
    /// Findings reported last.
    reported: Discovery,
    /// `None` until discovered, and again after the node was unhealthy: it may have been replaced.
    engine: Option<Engine>,
    /// `None` if load scrapes are off.
    scraper: Option<ActorRef<ScraperMsg>>,
}

/// Messages handled by [`NodeMonitor`].
pub(super) enum NodeMonitorMsg {
    /// From a prober: a path is reachable again.
    Recovered,
    /// Discovery is complete.
    Discovered(Discovery),
}

impl NodeMonitor {
    pub(super) fn new(
        sink: Arc<ReportSink>,
        client: NodeClient,
        origins: Arc<[Origin]>,
        health: HealthOptions,
    ) -> Self {
        Self { sink, client, origins, health, reported: Discovery::default(), engine: None, scraper: None }
    }

    fn start_discovery(&self, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        // An actor cannot await two futures, so the timer must not start another discovery during this one.
        ctx.cancel_timer(NEXT);
        let client = self.client.clone();
        let origins = self.origins.clone();
        let known = self.engine;
        Ok(Flow::wait(async move { NodeMonitorMsg::Discovered(discover(&client, &origins, known).await) }))
    }

    fn spawn_probers(&self, ctx: &mut Context<'_, Self>) -> Result<(), ActorError> {
        let node = ctx.me();
        for (number, origin) in self.origins.iter().enumerate() {
            // A single path has no ID.
            let path = (self.origins.len() > 1).then_some(PathId(number as u32));
            let sink = self.sink.clone();
            let client = self.client.clone();
            let origin = origin.clone();
            let node = node.clone();
            let interval = self.health.interval;
            let props = Props::new(move || Prober {
                sink: sink.clone(),
                client: client.clone(),
                origin: origin.clone(),
                path,
                interval,
                node: node.clone(),
                endpoint: CheckEndpoint::default(),
                reachable: Reachability::Yes,
            });
            ctx.spawn(&props.build()).map_err(|error| ActorError::new(error.to_string()))?;
        }
        Ok(())
    }

    fn spawn_scraper(&mut self, ctx: &mut Context<'_, Self>) -> Result<(), ActorError> {
        let Some(interval) = self.health.load_interval else { return Ok(()) };
        let sink = self.sink.clone();
        let client = self.client.clone();
        let origins = self.origins.clone();
        let retry_interval = self.health.models_interval;
        let props = Props::new(move || Scraper {
            sink: sink.clone(),
            client: client.clone(),
            origins: origins.clone(),
            interval,
            retry_interval,
            engine: None,
            last_load: None,
        });
        let scraper = ctx.spawn(&props.build()).map_err(|error| ActorError::new(error.to_string()))?;
        self.scraper = Some(scraper);
        Ok(())
    }

    /// Reports the findings that changed.
    fn report_changes(&mut self, discovery: Discovery) {
        self.engine = discovery.engine;
        if let (Some(scraper), Some(engine)) = (&self.scraper, discovery.engine) {
            scraper.tell(ScraperMsg::Engine(engine));
        }
        if let Some(engine) = discovery.engine.filter(|engine| self.reported.engine != Some(*engine)) {
            self.reported.engine = Some(engine);
            self.sink.report(Finding::Engine(engine));
        }
        if let Some(slots) = discovery.slots.filter(|slots| self.reported.slots != Some(*slots)) {
            self.reported.slots = Some(slots);
            self.sink.report(Finding::Slots(slots));
        }
        if let Some(models) = discovery.models.filter(|models| self.reported.models.as_ref() != Some(models))
        {
            self.reported.models = Some(models.clone());
            self.sink.report(Finding::Models(models));
        }
    }
}

impl Actor for NodeMonitor {
    type Msg = NodeMonitorMsg;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        self.spawn_probers(ctx)?;
        self.spawn_scraper(ctx)?;
        self.start_discovery(ctx)
    }

    fn receive(
        &mut self,
        message: NodeMonitorMsg,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<NodeMonitorMsg> {
        match message {
            NodeMonitorMsg::Recovered => {
                self.engine = None;
                self.start_discovery(ctx)
            }
            NodeMonitorMsg::Discovered(discovery) => {
                let is_complete = discovery.models.is_some();
                self.report_changes(discovery);
                schedule_next(
                    ctx,
                    NEXT,
                    if is_complete { self.health.models_interval } else { self.health.interval },
                )
            }
        }
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<NodeMonitorMsg> {
        if signal == Signal::Timer(NEXT) { self.start_discovery(ctx) } else { Ok(Flow::Continue) }
    }
}
