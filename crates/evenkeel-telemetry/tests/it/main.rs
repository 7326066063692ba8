//! Tests of the output that users see: metrics pages, log lines and request histories.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod logs;
mod path_metrics;
mod pipeline_metrics;
mod prometheus;
mod reader;
