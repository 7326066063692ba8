//! Supervised actors with bounded mailboxes on a work-stealing scheduler.
//!
//! An [`Actor`] is a value that handles messages of one type, one at a time. [`Props`] describe how to create it,
//! [`ActorSystemRunner`] starts a system on a runtime, and [`ReadyQueueScheduler`] is the running system: it spawns
//! actors and returns their addresses, [`ActorRef`]s.
//!
//! The path of one [`ActorRef::tell`]: the message goes into the mailbox's user queue (`mailbox`), and a flag is set in
//! the cell's atomic state (`raw::state`). The sender that thereby gets the run permit puts the cell into a ready queue
//! (`coordinator`, `ready`). A worker takes the cell from there (`executor`), and the `invoker` runs the handler.
//!
//! The feature `patterns` adds what few actors need: stash, become, a name registry, routers, spawn middleware,
//! batching producers and an adaptive number of workers.
#![warn(missing_docs)]
#![cfg_attr(not(any(feature = "std", loom)), no_std)]
#![cfg_attr(
    loom,
    allow(dead_code, unreachable_pub, unused_imports, reason = "loom models use only parts of the crate")
)]

extern crate alloc;

mod sync;

mod dead_letter_scope;
mod idle_workers;
mod ignore_panic;
mod mailbox;
mod raw;
mod worker_slots;

#[cfg(not(loom))]
mod actor;
#[cfg(not(loom))]
mod actor_ref;
#[cfg(all(feature = "patterns", not(loom)))]
pub mod adaptive;
#[cfg(all(feature = "patterns", not(loom)))]
mod behaviour;
#[cfg(not(loom))]
mod cell;
#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
mod coordinator;
#[cfg(not(loom))]
mod custom_invoker;
#[cfg(not(loom))]
pub mod dead_letters;
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
pub mod guardian;
#[cfg(not(loom))]
pub mod hub;
#[cfg(not(loom))]
mod index;
#[cfg(not(loom))]
mod invoke;
#[cfg(not(loom))]
mod invoker;
#[cfg(not(loom))]
mod middleware;
#[cfg(all(test, feature = "std", not(loom)))]
mod miri_tests;
#[cfg(all(feature = "patterns", not(loom)))]
mod name_registry;
#[cfg(not(loom))]
mod panic;
#[cfg(all(feature = "patterns", not(loom)))]
mod producer;
#[cfg(not(loom))]
mod props;
#[cfg(not(loom))]
mod ready;
#[cfg(not(loom))]
mod reply;
#[cfg(not(loom))]
mod room_wait;
#[cfg(all(feature = "patterns", not(loom)))]
mod router;
#[cfg(not(loom))]
pub mod runtime;
#[cfg(all(feature = "patterns", not(loom)))]
mod spawn_middleware;
#[cfg(all(feature = "patterns", not(loom)))]
mod stash;
#[cfg(not(loom))]
mod stop;
#[cfg(not(loom))]
mod system;
#[cfg(not(loom))]
mod system_metrics;
#[cfg(not(loom))]
mod task;
#[cfg(all(test, feature = "std", not(loom)))]
mod test_rig;
#[cfg(not(loom))]
mod timer;
#[cfg(not(loom))]
mod timer_driver;
#[cfg(not(loom))]
pub mod timing_wheel;
#[cfg(not(loom))]
mod trace;
#[cfg(not(loom))]
mod worker_local;

#[cfg(not(loom))]
pub use evenkeel_policy::time::Instant;
#[cfg(not(loom))]
pub use {
    actor::{Actor, Flow, HandlerResult, MessageFuture, Signal},
    actor_ref::{ASK_TIMEOUT, ActorRef, SendError, SendOutcome},
    context::Context,
    custom_invoker::{CustomInvokerActor, MailboxReceiver},
    executor::{Lifecycle, SetWorkersError, ShutdownReport},
    guardian::ActorError,
    index::MailboxIndex,
    invoke::{ActorState, InvokeResult, MessageInvoker, ResumeCondition, SignalKey, SuspendReason},
    mailbox::{InvalidMailbox, MailboxOptions, MailboxPreset, OverflowStrategy, UnknownPreset},
    middleware::{CompositeMiddleware, InvokeContext, MiddlewareChain, MiddlewareHook},
    props::{Props, PropsBuilder},
    reply::{AskError, AskFuture, Reply},
    stop::{StopMode, Termination},
    sync::ArcShared,
    system::{
        ActorSystemConfig, ActorSystemRunner, InvalidConfig, Metrics, ReadyQueueScheduler, SpawnError,
        StartError,
    },
    timer::{Repeat, TimerId},
};
#[cfg(all(feature = "patterns", not(loom)))]
pub use {
    adaptive::AdaptiveDispatcher,
    behaviour::{BEHAVIOURS_MAX, Behaviour, BehavioursFull, ReceiveFn},
    name_registry::{FindError, NAME_LEN_MAX, NameRegistry, RegisterError},
    producer::{OUTBOX_MAX, QueueMailboxProducer},
    router::{Router, RouterError, RouterOptions, Routing},
    spawn_middleware::{SpawnContext, SpawnMiddleware},
    stash::{STASH_MAX, StashFull},
};

/// Shows in the output of `cargo test` without flags that it leaves tests out.
#[cfg(all(
    test,
    not(loom),
    not(all(feature = "embassy", feature = "patterns", feature = "test", feature = "tracing"))
))]
#[test]
#[ignore = "left out: the integration tests, guides, examples and unit tests that need more features; \
            run `cargo test -p evenkeel-actor --all-features`"]
fn tests_that_need_more_features() {}

/// Compiles and runs the programs in the README and the guides as doc tests.
#[cfg(doctest)]
mod doc_tests {
    #[cfg(feature = "tokio")]
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[cfg(all(feature = "patterns", feature = "test", feature = "tokio"))]
    mod guides {
        #[doc = include_str!("../../../docs/actor/axum.md")]
        struct Axum;
        #[doc = include_str!("../../../docs/actor/backpressure.md")]
        struct Backpressure;
        #[doc = include_str!("../../../docs/actor/blocking.md")]
        struct Blocking;
        #[doc = include_str!("../../../docs/actor/coming-from.md")]
        struct ComingFrom;
        #[doc = include_str!("../../../docs/actor/custom-invoker.md")]
        struct CustomInvoker;
        #[doc = include_str!("../../../docs/actor/operating.md")]
        struct Operating;
        #[doc = include_str!("../../../docs/actor/supervision.md")]
        struct SupervisionGuide;
        #[doc = include_str!("../../../docs/actor/testing.md")]
        struct Testing;
    }
}
