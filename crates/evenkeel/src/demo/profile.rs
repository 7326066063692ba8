//! Traffic profiles of the demo's tenants.

use std::time::Duration;

/// The traffic of one tenant and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantProfile {
    pub name: &'static str,
    pub weight: u32,
    /// Number of clients, each with one request at a time.
    pub clients: u32,
    /// Pause of a client between a response and its next request.
    pub think_time: Duration,
    /// Length of the requested responses.
    pub response_tokens: u32,
}

/// The demo's tenants, in display order.
///
/// Chat needs far less than its fair share of the slots; team and batch always have more requests than theirs allows.
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
