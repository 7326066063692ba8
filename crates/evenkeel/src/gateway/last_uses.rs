//! Stores when keys were last used: once a minute if that changed, and when the gateway stops.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Core;
use crate::key_use::KeyUses;

const INTERVAL: Duration = Duration::from_secs(60);

impl Core {
    /// Restores the last uses of keys that the data directory has. A file that cannot be read is not worth a failed start.
    pub(super) fn restore_last_uses(&self) {
        match KeyUses::read(self.state.lock().data_dir.path()) {
            Ok(uses) => {
                let tenants = self.auth.tenants();
                uses.iter().for_each(|(hash, at)| tenants.restore_last_use(&hash, at));
            }
            Err(error) => {
                tracing::warn!(target: "evenkeel", %error, "could not read when keys were last used; that of unused keys is lost");
            }
        }
    }

    /// Stores the last uses of keys if they differ from `stored`; returns what is stored then.
    pub(super) fn store_last_uses(&self, stored: KeyUses) -> KeyUses {
        let uses = KeyUses::new(self.auth.tenants().last_uses());
        if uses == stored {
            return stored;
        }
        match uses.write(&self.state.lock().data_dir) {
            Ok(()) => uses,
            Err(error) => {
                tracing::warn!(target: "evenkeel", %error, "could not store when keys were last used, retrying in a minute");
                stored
            }
        }
    }
}

/// Stores the last uses of keys until the gateway is dropped.
pub(super) async fn store_regularly(core: Weak<Core>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stored = KeyUses::default();
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        stored = store(core, stored).await;
    }
}

/// Stores the last uses on a thread that may block on disk writes.
pub(super) async fn store(core: Arc<Core>, stored: KeyUses) -> KeyUses {
    // The task does not panic; if it did, the next one would store everything again.
    tokio::task::spawn_blocking(move || core.store_last_uses(stored)).await.unwrap_or_default()
}
