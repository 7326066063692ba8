//! `evenkeel link` as processes: two sites, their paths, their forwards and their errors.
//!
//! Tests in [`netns`] have emulated paths; the others use loopback.

mod commands;
mod errors;
mod gateway;
mod gateway_site;
mod netns;
mod process;
mod relays;
mod security;
mod settings;
mod sites;
mod test_link;
mod test_relay;
mod transfer;
mod udp;
mod udp_peer;

use std::time::Duration;

const MB: u64 = 1_000_000;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
