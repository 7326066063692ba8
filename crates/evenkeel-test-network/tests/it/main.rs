//! Properties of emulated networks.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod netns;
