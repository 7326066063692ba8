//! The gateway behind real sockets on loopback, in this process or as the `evenkeel` binary.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod adaptive;
mod address_limit;
mod admin;
mod bodies;
mod busy;
mod check;
mod checks;
mod cli;
mod clients;
mod cluster;
mod corpus;
mod crash;
mod descriptors;
mod dispatch;
mod examples;
mod explain;
#[path = "../../../evenkeel-sqs/tests/it/external_client.rs"]
mod external_client;
mod failover;
mod fairness;
mod fairness_keys;
mod fleet;
mod full_disk;
mod link;
mod link_local;
mod message_ids;
mod nodes;
mod observability;
mod openai;
mod openapi;
mod owners;
mod paths;
mod queues;
mod security;
mod serve;
mod server_process;
mod slow_readers;
mod smuggling;
mod sql;
mod sqs;
mod storm;
mod tenant;
mod test_dir;
mod traces;
mod upgrade;
