//! How fast actor runtimes are: every workload is written once, every runtime is one file.
//!
//! A child process ([`cli`]) runs one [`workload`] on one of the [`runtimes`], set up by [`settings`], and prints one
//! line of [`sample`]. [`rounds`] starts children in alternating rounds and compares each with the baseline of its own
//! round. How to add a runtime and how to read the figures: `bench/README.md`.

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
