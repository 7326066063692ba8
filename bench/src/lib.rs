//! Benchmarks of actor runtimes: every workload is written once, every runtime adapter is one file.
//!
//! A child process ([`cli`]) runs one [`workload`] on one of the [`runtimes`] with the given [`settings`] and prints one
//! [`sample`]. [`rounds`] starts child processes in alternating rounds and compares each with the baseline of the same
//! round. `bench/README.md` explains how to add a runtime and how to read the results.

pub mod cli;
pub mod clock;
pub mod counter;
mod echo;
pub mod harness;
pub mod rounds;
pub mod runtime;
pub mod runtimes;
pub mod sample;
pub mod settings;
pub mod skynet;
pub mod workload;
mod workloads;
