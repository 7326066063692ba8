//! API keys of tenants: their names, when they expire, and when they were last used.
//!
//! The time of the last use is known to the minute. Recording it takes no lock: one load, and a store once per minute.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use evenkeel_policy::class::Class;

use crate::api_key::KeyHash;
use crate::unix_seconds::UnixSeconds;

/// An API key of a tenant.
#[derive(Clone, Debug)]
pub struct TenantKey {
    /// Unique among the tenant's keys.
    pub name: String,
    pub hash: KeyHash,
    /// The key is rejected from then on; `None` means never.
    pub expires_at: Option<UnixSeconds>,
    /// Class of requests with this key, which they may lower; `None` means that of the tenant.
    pub priority: Option<Class>,
}

impl TenantKey {
    /// Creates a key that does not expire, named by the first digits of its hash, which are also part of its access key id.
    pub fn unnamed(hash: KeyHash) -> Self {
        Self { name: hash.short_digits(), hash, expires_at: None, priority: None }
    }

    /// Reports whether the key has neither a name of its own nor an expiry nor a priority.
    pub fn is_unnamed(&self) -> bool {
        self.name == self.hash.short_digits() && self.expires_at.is_none() && self.priority.is_none()
    }

    pub fn is_expired(&self, now: UnixSeconds) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Time of a key's last use, shared by all tables that have the key.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastUse(Arc<AtomicU32>);

impl LastUse {
    pub(crate) fn record(&self, now: UnixSeconds) {
        // 32 bits are enough for eight thousand years; zero means never.
        let minute = (now.0 / 60) as u32;
        if self.0.load(Ordering::Relaxed) < minute {
            self.0.store(minute, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> Option<UnixSeconds> {
        let minute = self.0.load(Ordering::Relaxed);
        (0 < minute).then(|| UnixSeconds(u64::from(minute) * 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_is_known_to_the_minute_and_never_goes_back() {
        let used = LastUse::default();
        assert_eq!(used.get(), None);
        used.record(UnixSeconds(179));
        assert_eq!(used.get(), Some(UnixSeconds(120)));
        used.record(UnixSeconds(61));
        assert_eq!(used.get(), Some(UnixSeconds(120)));
    }

    #[test]
    fn a_key_expires_at_its_time() {
        let key = TenantKey { expires_at: Some(UnixSeconds(10)), ..TenantKey::unnamed(KeyHash::of("ek-1")) };
        assert!(!key.is_expired(UnixSeconds(9)) && key.is_expired(UnixSeconds(10)));
        assert!(!key.is_unnamed() && TenantKey::unnamed(key.hash).is_unnamed());
    }
}
