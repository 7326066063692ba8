//! Seeded discrete-event simulation of the Evenkeel pipeline, on a virtual clock.
//!
//! A [`Scenario`] describes tenants and nodes; [`run`] drives the real [`evenkeel_pipeline`] with it, simulates the nodes,
//! and returns every event with summaries. The same seed gives the same events; a failing test prints its seed.

pub mod choice;
mod event_queue;
pub mod fairness;
mod knee;
pub mod link;
pub mod poison;
mod record;
pub mod redirect;
mod rng;
mod scenario;
mod scenarios;
mod simulation;

pub use event_queue::{EventQueue, Step};
pub use knee::{
    EngineShape, KneeCell, KneeCellResult, KneeDemand, KneePlan, KneeRun, KneeSample, Prompts, Scraping,
    Service, knee_cells, measure_knee_cell, run_knee,
};
pub use record::{Share, SimRun, TenantSummary, TimedEvent, TraceEvent};
pub use rng::Rng;
pub use scenario::{
    AdmitPolicy, Demand, NodePlan, PathPlan, Scenario, ServiceOrder, TenantAction, TenantPlan,
};
pub use scenarios::{
    agent_loop, by_name, classes, database, demo, flood_and_trickle, inference, invented_sessions, names,
    park_wake_storm, sybil, weight_change, weights,
};
pub use simulation::{SimError, run};

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
