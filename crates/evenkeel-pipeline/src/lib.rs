//! Evenkeel's walk: one request from its arrival to its end, as a machine that does no I/O.
//!
//! ```text
//! accept → admit → queue → pick node → pick path → send → observe
//! ```
//!
//! A door tells what happens (`handle_*`), and takes out what to do (`poll_*`); time is a value it hands in. Every
//! decision is [`evenkeel_policy`]'s; this crate keeps the books between them: who waits, who has which slot, what is
//! charged, when something is due. The steps are the files.
//!
//! ```
//! use evenkeel_pipeline::{
//!     Arrival, End, Event, ModelId, NodeSpec, OptimizedLoadManager, PipelineOptions, Slots, Urgency,
//! };
//! use evenkeel_policy::{cost::Cost, estimate::Outcome, id::TenantId, score::Request, time::Instant, weight::Weight};
//!
//! let mut walk = OptimizedLoadManager::new(PipelineOptions::default()).unwrap();
//! let (now, model) = (Instant::ORIGIN, ModelId(0));
//! let spec = NodeSpec { slots: Slots::Fixed(1), weight: Weight::ONE, models: vec![model], paths: vec![] };
//! let node = walk.add_node(now, &spec).unwrap();
//! let arrival = Arrival {
//!     tenant: TenantId(0),
//!     model,
//!     cost: Cost(700),
//!     upfront: Cost(200),
//!     affinity: None,
//!     deadline: None,
//!     request: Request::Infer,
//!     urgency: Urgency::Interactive,
//! };
//! let request = walk.handle_arrival(now, arrival);
//! let sent = std::iter::from_fn(|| walk.poll_event()).find_map(|event| match event {
//!     Event::Dispatch { request, node, .. } => Some((request, node)),
//!     _ => None,
//! });
//! assert_eq!(sent, Some((request, node)));
//! walk.handle_end(now, request, End { actual: Cost(650), outcome: Outcome::Good });
//! assert_eq!(walk.status().in_flight, 0);
//! ```
#![warn(missing_docs)]

mod accept;
mod admit;
mod audit;
mod load_manager;
mod observe;
mod options;
mod pick_node;
mod pick_path;
mod queue;
mod rejection;
mod send;

pub use accept::{Arrival, AttemptFailure, ModelId, Priority, RequestEnd, RequestId};
pub use load_manager::{OptimizedLoadManager, RegistryError};
pub use observe::{Counts, Event, ModelStatus, NodeStatus, PoolStats, RequestOutcome, Status, TenantStatus};
pub use options::{
    AdmitRule, AffinityOptions, BreakerOptions, InvalidOptions, PipelineLimits, PipelineOptions, RetryOptions,
};
pub use pick_node::{
    AdminState, BreakerState, CacheEntry, CacheStats, EngineLoad, NodeSpec, PickReason, Slots,
};
pub use pick_path::{PathSpec, PathStatus};
pub use queue::TenantRule;
pub use rejection::{NoRetryReason, Rejection, WaitEntry, WaitError, WaitResult};
