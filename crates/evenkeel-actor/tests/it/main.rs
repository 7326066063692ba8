//! The runtime from outside: real tokio, many threads.

mod defects;
mod scenarios;
