//! The whole door, in front of engines that do what a test says.

mod deadline;
mod dialects;
mod disconnect;
mod engine;
mod failure;
mod harness;
mod media;
mod nodes;
mod response_headers;
mod serve;
mod tenants;
mod traces;
