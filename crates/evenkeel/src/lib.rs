//! What Evenkeel's binary is made of, for those who start a part of it in their own process.

#![forbid(unsafe_code)]

pub mod config;
pub mod data_dir;
pub mod demo;
pub mod gateway;
pub mod node_store;
pub mod sqs_key;
pub mod tenant_store;
