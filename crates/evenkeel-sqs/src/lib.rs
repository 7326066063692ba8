//! The queue door: the SQS JSON protocol, so that unchanged AWS clients use Evenkeel's fair durable queues.
//!
//! One request's way: `door` (its route) → `operation` (which of the 23) → `sign` with `key` (whose signature) → the
//! operation: `send`, `receive`, `acknowledge` (delete, change visibility), `queue` (make, find, list, purge, delete),
//! `settings` (what a queue may be told), `redrive`, `move_task`, `permission`, `tag` → an answer, or a `fault`.
//! `attribute`, `contents` and `limit` are AWS's rules for messages; `header` is what is kept with one. Beside it stands
//! `native`, the API for what SQS cannot say.

mod access_key;
mod acknowledge;
mod api;
mod arn;
mod attribute;
mod base64;
mod batch;
mod chunked_body;
mod error;
mod fifo;
mod limit;
mod metrics;
mod move_task;
mod native;
mod operation;
mod options;
mod permission;
mod queue;
mod queue_metadata;
mod receive;
mod redrive;
mod send;
mod settings;
mod sigv4;
mod stored_headers;
mod tag;
mod text_validation;
mod time;

pub use access_key::{Credentials, MasterKey, MasterKeyError};
pub use api::SqsApi;
pub use options::SqsOptions;
pub use stored_headers::{header_of, sender_of};
