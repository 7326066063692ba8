//! A sans-I/O request pipeline for gateways: tracks each request from arrival to completion, without sockets
//! or clocks.
//!
//! ```text
//! accept → admit → queue → pick node → pick path → send → observe
//! ```
//!
//! The driver reports what happened (`handle_*`) and polls for actions (`poll_*`); time is an argument. The rules are
//! in [`evenkeel_policy`]; this crate keeps the state they need: queued requests, slots in use, charges and timers.
//! Each step has a module of the same name. The specification calls the pipeline [`OptimizedLoadManager`].
//!
//! ```
//! use evenkeel_pipeline::{
//!     Arrival, Event, TenantFlow, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PipelineOptions, Priority,
//!     RequestEnd, Slots,
//! };
//! use evenkeel_policy::{cost::Cost, estimate::Outcome, id::TenantId, score::RequestKind, time::Instant, weight::Weight};
//!
//! let mut pipeline = OptimizedLoadManager::new(PipelineOptions::default()).unwrap();
//! let now = Instant::ORIGIN;
//! let model = ModelId(0);
//! let spec = NodeSpec {
//!     slots: Slots::Fixed(1),
//!     transactions_max: None,
//!     weight: Weight::ONE,
//!     models: vec![model],
//!     paths: vec![],
//! };
//! let node = pipeline.add_node(now, &spec).unwrap();
//! let arrival = Arrival {
//!     tenant: TenantId(0),
//!     model,
//!     cost: Cost(700),
//!     upfront: Cost(200),
//!     affinity: None,
//!     deadline: None,
//!     request: RequestKind::Infer,
//!     priority: Priority::Interactive,
//!     flow: TenantFlow::default(),
//!     outage: OutageRule::Hold,
//! };
//! let request = pipeline.handle_arrival(now, arrival);
//! let sent = std::iter::from_fn(|| pipeline.poll_event()).find_map(|event| match event {
//!     Event::Dispatch { request, node, .. } => Some((request, node)),
//!     _ => None,
//! });
//! assert_eq!(sent, Some((request, node)));
//! pipeline.handle_end(now, request, RequestEnd { actual: Cost(650), outcome: Outcome::Good });
//! assert_eq!(pipeline.status().in_flight, 0);
//! ```
#![warn(missing_docs)]

mod accept;
mod admit;
mod audit;
mod budget;
mod load_manager;
mod observe;
mod options;
mod pick_node;
mod pick_path;
mod queue;
mod redirect;
mod rejection;
mod send;
mod transactions;

pub use accept::{Arrival, OutageRule, Priority, RequestEnd};
pub use evenkeel_policy::class::{Class, ClassShares, SessionId, TenantFlow};
pub use evenkeel_policy::id::{ModelId, PeerId, RequestId};
pub use evenkeel_policy::outcome::{AttemptFailure, PickReason, RequestOutcome, TripReason};
pub use evenkeel_policy::score::{NoPeerReason, NoRoomReason, PeerGate, RedirectReason};
pub use load_manager::{OptimizedLoadManager, RegistryError};
pub use observe::{ClassStatus, Counts, Event, ModelStatus, NodeStatus, PoolStats, Status, TenantStatus};
pub use options::{
    AdmitRule, AffinityOptions, BreakerOptions, InvalidOptions, PipelineLimits, PipelineOptions, RetryOptions,
};
pub use pick_node::{AdminState, BreakerState, CacheEntry, CacheStats, EngineLoad, NodeSpec, Slots};
pub use pick_path::{PathShares, PathSpec, PathStatus};
pub use queue::TenantRule;
pub use redirect::{
    NoRedirectReason, PeerAssessment, PeerFigures, RedirectDecision, RedirectMode, RedirectOptions,
    RedirectRequest, Redirector,
};
pub use rejection::{NoRetryReason, Rejection, WaitEntry, WaitError, WaitResult};
