//! The LLM API over HTTP, in front of scripted model servers.

mod backpressure;
mod charging;
mod deadline;
mod dialects;
mod disconnect;
mod engine;
mod failure;
mod fair_charging;
mod harness;
mod media;
mod nodes;
mod response_check;
mod response_headers;
mod serve;
mod tenants;
mod traces;
