//! The gateway as a library: configuration, stores and the running [`gateway::Gateway`]. The `evenkeel` binary adds the
//! command line.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod admin_key;
pub mod audit_file;
pub mod config;
pub mod data_dir;
pub mod demo;
pub mod gateway;
pub mod key_use;
pub mod link_page;
pub mod node_store;
pub mod sqs_key;
pub mod statement;
pub mod tenant_store;
pub mod usage_store;
