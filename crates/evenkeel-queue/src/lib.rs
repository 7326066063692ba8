//! A durable message queue in which one tenant's backlog does not delay another's.
//!
//! A message's life: [`Queue::enqueue`] hands a [`NewMessage`] to the [`store`], which makes it durable and forwards it
//! to the queue's actor. The actor adds it to the [`queue_state`], which decides by deficit round robin when it is
//! next. [`Queue::receive`] leases it to a consumer with a [`receipt`]; the consumer acknowledges it, gives it back, or
//! lets the lease end. After too many attempts it moves to the dead-letter queue. A result is returned only after the
//! write is as durable as the queue's settings require.
//!
//! | module | contents |
//! |---|---|
//! | [`message`] [`id`] [`namespace`] [`time`] | messages, identifiers, namespaces of names, wall-clock time |
//! | [`settings`] [`rule`] | settings of a queue; weight and limits of a key |
//! | [`queue_state`] | scheduling, leases, expiry: a sans-I/O state machine |
//! | [`receipt`] | signed receipt handles |
//! | [`store`] | storage: in memory for tests, on disk with group commit |
//! | [`job_result`] [`job_status`] | results and status of jobs that the gateway runs |
//! | [`queue`] [`queues`] | the API of one queue and of all queues |

pub mod id;
pub mod job_result;
pub mod job_status;
pub mod message;
pub mod message_ids;
pub mod namespace;
pub mod queue;
mod queue_actor;
pub mod queue_state;
pub mod queues;
pub mod receipt;
pub mod rejection;
pub mod rule;
pub mod settings;
pub mod store;
pub mod time;

pub use id::{Epoch, KeyId, MessageId, QueueId, Seq};
pub use message::{Delivery, NewMessage, Payload};
pub use namespace::Namespace;
pub use queue::Queue;
pub use queues::Queues;
pub use rejection::Rejection;
pub use rule::KeyRule;
pub use settings::{CostMode, DeliveryOrder, Durability, QueueSettings};
pub use time::UnixMillis;
