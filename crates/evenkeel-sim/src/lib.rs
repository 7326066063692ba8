//! Evenkeel's decisions under traffic that never happened: a virtual clock, a seed, and every event written down.
//!
//! A [`Scenario`] says who asks for what, on which nodes; [`run`] is a door to the real [`evenkeel_pipeline`]: it hands
//! in every request and answers for the nodes, and returns the events and what they add up to. The same seed gives the same events; a test that fails prints its seed.

mod event_queue;
pub mod fairness;
mod knee;
mod record;
mod rng;
mod scenario;
mod scenarios;
mod simulation;

pub use event_queue::EventQueue;
pub use knee::{KneePlan, KneeRun, KneeSample, Scrapes, run_knee};
pub use record::{Share, SimRun, TenantSummary, TimedEvent, TraceEvent};
pub use rng::Rng;
pub use scenario::{
    AdmitPolicy, Demand, NodePlan, PathPlan, Scenario, ServiceOrder, TenantAction, TenantPlan,
};
pub use scenarios::{
    by_name, database, demo, flood_and_trickle, inference, names, park_wake_storm, sybil, weight_change,
    weights,
};
pub use simulation::{SimError, run};
