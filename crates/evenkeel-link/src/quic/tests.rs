//! Connections over loopback sockets.

mod authentication;
mod limits;
mod log_lines;
mod sessions;
pub(super) mod sites;
mod traffic;
