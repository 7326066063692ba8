//! A durable queue in which one tenant's backlog never delays another's.
//!
//! One message's way: a [`Draft`] is given to a [`Queue`], written down by the [`store`], told to the queue's
//! keeper (an actor), waits its turn in the keeper's [`book`], is leased to a consumer with a [`receipt`], and is
//! acknowledged, given back, or moved to the dead-letter queue. What is answered is on disk.
//!
//! | module | what it holds |
//! |---|---|
//! | [`message`] [`id`] [`time`] | the words the others are written in |
//! | [`settings`] [`rule`] | what a queue, and a key of it, may be told, and the bounds |
//! | [`book`] | whose turn it is, who has what until when: values in, values out, no I/O |
//! | [`receipt`] | who may acknowledge |
//! | [`store`] | what survives: in memory for tests, on disk with group commit |
//! | [`result`] [`job`] | what came of messages that were jobs, and where those are |
//! | [`queue`] [`queues`] | what a door calls |

pub mod id;
pub mod job_result;
pub mod job_status;
pub mod message;
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
pub use queue::Queue;
pub use queues::Queues;
pub use rejection::Rejection;
pub use rule::KeyRule;
pub use settings::{CostMode, DeliveryOrder, Durability, QueueSettings};
pub use time::UnixMillis;
