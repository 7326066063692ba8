//! The queue door: the SQS JSON protocol, so that unchanged AWS clients use Evenkeel's fair durable queues.
//!
//! One request's way: `door` (its route) → `operation` (which of the 23) → `sign` with `key` (whose signature) → the
//! operation: `send`, `receive`, `acknowledge` (delete, change visibility), `queue` (make, find, list, purge, delete),
//! `settings` (what a queue may be told), `redrive`, `move_task`, `permission`, `tag` → an answer, or a `fault`.
//! `attribute`, `contents` and `limit` are AWS's rules for messages; `header` is what is kept with one. Beside it stands
//! `native`, the API for what SQS cannot say.

mod acknowledge;
mod attribute;
mod base64;
mod batch;
mod contents;
mod door;
mod fault;
mod fifo;
mod header;
mod key;
mod limit;
mod meters;
mod move_task;
mod native;
mod notes;
mod operation;
mod options;
mod permission;
mod pieces;
mod place;
mod queue;
mod receive;
mod redrive;
mod send;
mod settings;
mod sign;
mod tag;
mod time;

pub use door::SqsApi;
pub use header::{header_of, sender_of};
pub use key::{Credentials, MasterKey, MasterKeyError};
pub use options::SqsOptions;
