//! The SQS API: both protocols of SQS, so that unmodified AWS clients can use Evenkeel's fair durable queues.
//!
//! The life of a request: `serve` (routes, signature, audit) → `operation` (the 23 operations) → `protocol` (JSON, or `form`
//! and `xml`) → `api` (dispatch) → the operation: `send`, `receive`, `acknowledge` (delete, change visibility), `queue` (create,
//! find, list, purge, delete), `settings` (queue attributes), `redrive` (dead-letter queues), `move_task`, `permission`, `tag` →
//! a response, or an `error` as AWS formats it, with AWS's texts (`reason`). `attribute`, `text_validation` and `limit` are
//! AWS's rules for messages; `stored_headers` is the format of a message's attributes in the store. `native` is the API for
//! features that SQS does not have. `access` and `policy` decide which queues a caller may use, `stored_key` under which
//! fairness key its messages are stored.

mod access;
mod acknowledge;
mod api;
mod arn;
mod attribute;
mod base64;
mod batch;
mod chunked_body;
mod error;
mod fifo;
mod form;
mod limit;
mod metrics;
mod move_task;
mod native;
mod operation;
mod options;
mod permission;
mod policy;
mod protocol;
mod queue;
mod queue_metadata;
mod reason;
mod receive;
mod redrive;
mod send;
mod serve;
mod settings;
mod stored_headers;
mod stored_key;
mod tag;
mod text_validation;
mod time;
mod xml;

pub use access::owner_name;
pub use api::SqsApi;
pub use options::{SqsOptions, TargetCheck};
pub use stored_headers::{client_key, header_of, tenant_to_charge};
