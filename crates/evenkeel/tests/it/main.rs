//! The binary and its parts at their real edge: sockets on loopback, ports the system picks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod adaptive;
mod busy;
mod check;
mod checks;
mod cli;
mod clients;
mod corpus;
mod crash;
mod disconnect;
mod dispatch;
mod engine;
mod examples;
#[path = "../../../evenkeel-sqs/tests/it/external_client.rs"]
mod external_client;
mod failover;
mod fairness;
mod faults;
mod fleet;
mod folder;
mod full_disk;
mod nodes;
mod openai;
mod openapi;
mod queues;
mod raw;
mod serve;
mod server_process;
mod smuggling;
mod sqs;
mod storm;
mod tenant;
mod traces;
