//! The binary and its parts at their real edge: sockets on loopback, ports the system picks.

mod cli;
mod engine;
mod faults;
mod leaving;
mod openai;
mod raw;
