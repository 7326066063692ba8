//! What others see of `evenkeel-telemetry`: pages, lines and stories, read by readers of our own.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod logs;
mod meters;
mod page;
mod reader;
