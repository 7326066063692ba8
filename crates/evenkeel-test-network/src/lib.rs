//! Networks of several emulated paths between two Linux network namespaces, for tests and benchmarks.
//!
//! A [`Network`] has two namespaces, edge and core, and one link per [`PathSpec`] between them, with a rate, a delay, a
//! queue and losses that a test changes while traffic flows. Sockets in a namespace are ordinary kernel sockets.
//! Everything is removed when the `Network` is dropped, also by a panic; if the process is killed, the next `Network`
//! removes the rest.

mod emulator;
mod ip;
mod namespace;
mod network;
mod path;
mod rng;
mod shaper;
mod spec;
mod unavailable;

pub use namespace::Namespace;
pub use network::Network;
pub use path::{EmulatedPath, PathCounters, PathDirection};
pub use spec::{Jitter, Limiter, PacketLoss, PathSpec};
pub use unavailable::{Unavailable, check_available, skip};

/// Creates a [`Network`], or returns from the calling test after [`skip`].
#[macro_export]
macro_rules! network_or_skip {
    ($specs:expr) => {
        match $crate::Network::new($specs) {
            Ok(network) => network,
            Err(unavailable) => {
                $crate::skip(&unavailable);
                return;
            }
        }
    };
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
