//! Traffic profiles of the demo's tenants.

use std::time::Duration;

/// The traffic of one tenant and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantProfile {
    pub name: &'static str,
    pub weight: u32,
    /// Clients that each have one request open at a time.
    pub clients: u32,
    /// Pause of a client between a response and its next request.
    pub think_time: Duration,
    /// Length of the responses that its clients request.
    pub response_tokens: u32,
}

/// The tenants, in the order in which they are shown.
///
/// Chat needs far less than its share of the slots; team and batch always want more than theirs.
pub const PROFILES: [TenantProfile; 3] = [
    TenantProfile {
        name: "chat",
        weight: 1,
        clients: 2,
        think_time: Duration::from_millis(300),
        response_tokens: 24,
    },
    TenantProfile { name: "team", weight: 2, clients: 24, think_time: Duration::ZERO, response_tokens: 64 },
    TenantProfile { name: "batch", weight: 1, clients: 120, think_time: Duration::ZERO, response_tokens: 96 },
];
