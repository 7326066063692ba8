//! Microbenchmarks of scheduling decisions, each compared with the simpler mechanism that it replaces.
//!
//! A [`suite`] lists groups; a group compares candidates with a baseline; [`measure`] alternates them within a round
//! and compares them round by round; [`report`] formats the results. Results from one machine and how to reproduce them:
//! `docs/benchmarks.md`. [`actor_costs`] is apart: valgrind counts its instructions and allocations.

pub mod actor_costs;
pub mod args;
pub mod clock;
pub mod measure;
pub mod report;
pub mod suite;
