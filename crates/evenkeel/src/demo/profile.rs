//! What the tenants of the demo are like.

use std::time::Duration;

/// How much a tenant wants, and how much of it is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantProfile {
    /// Its name.
    pub name: &'static str,
    /// Its share, relative to the others.
    pub weight: u32,
    /// How many ask at once.
    pub clients: u32,
    /// How long each thinks before it asks again.
    pub thinks: Duration,
    /// How long the answers are that it wants.
    pub answer_tokens: u32,
    /// What it is like, in words.
    pub about: &'static str,
}

/// The three tenants: a flood, one of twice its weight that wants more than its share too, and one that asks a little.
pub const APPETITES: [TenantProfile; 3] = [
    TenantProfile {
        name: "batch",
        weight: 1,
        clients: 120,
        thinks: Duration::ZERO,
        answer_tokens: 96,
        about: "a flood of 120 clients that never rest",
    },
    TenantProfile {
        name: "team",
        weight: 2,
        clients: 24,
        thinks: Duration::ZERO,
        answer_tokens: 64,
        about: "24 busy clients, of twice the weight",
    },
    TenantProfile {
        name: "chat",
        weight: 1,
        clients: 2,
        thinks: Duration::from_millis(300),
        answer_tokens: 24,
        about: "two people who read before they ask again",
    },
];
