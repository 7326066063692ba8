//! Micro benchmarks of the scheduling decisions, each against the simpler mechanism it replaces.
//!
//! A [`suite`] lists groups; a group compares contenders with a baseline; [`measure`] alternates them within a round
//! and compares them round by round; [`report`] formats the results. Results of one machine, and how to repeat them:
//! `docs/benchmarks.md`.

pub mod args;
pub mod clock;
pub mod measure;
pub mod report;
pub mod suite;
