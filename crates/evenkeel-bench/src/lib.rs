//! How fast Evenkeel's decisions are, beside what they replace.
//!
//! A [`suite`] lists groups; a group puts contenders beside a baseline; [`measure`] lets them take turns
//! within a round and compares them round by round; [`report`] shows what came out. What the figures were on one
//! machine, and how to repeat them: `docs/benchmarks.md`.

pub mod args;
pub mod clock;
pub mod measure;
pub mod report;
pub mod suite;
