//! What is set for keys and tenants: read, and changed by one at a time.

use std::sync::Arc;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::owner::Owner;
use super::{ANSWER_MAX, Queue, check_key};
use crate::id::KeyId;
use crate::queue_actor::Msg;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::store::StoreError;

/// A rule that nobody else changes meanwhile: two who each set one half do not undo each other's.
#[must_use = "others wait for it"]
pub struct KeyRuleGuard<'a> {
    queue: &'a Queue,
    name: &'a str,
    rule: KeyRule,
    alone: OwnedMutexGuard<()>,
}

impl KeyRuleGuard<'_> {
    /// What is set.
    pub fn rule(&self) -> KeyRule {
        self.rule
    }

    /// Sets something else; survives restarts and acts on what waits.
    pub async fn set(self, rule: KeyRule) -> Result<(), Rejection> {
        self.queue.put_rule(self.name, rule, self.alone).await
    }
}

impl Queue {
    /// Reads what was set for a key or tenant, to change it.
    pub async fn lock_rule<'a>(&'a self, name: &'a str) -> Result<KeyRuleGuard<'a>, Rejection> {
        let alone = self.0.ruling.clone().lock_owned().await;
        Ok(KeyRuleGuard { queue: self, name, rule: self.rule(name).await?, alone })
    }

    /// Sets what a key, or a tenant with all its keys, is bound to, whatever was; survives restarts and acts on what
    /// waits.
    pub async fn set_rule(&self, name: &str, rule: KeyRule) -> Result<(), Rejection> {
        let alone = self.0.ruling.clone().lock_owned().await;
        self.put_rule(name, rule, alone).await
    }

    /// Reads what was set for a key or tenant.
    pub async fn rule(&self, name: &str) -> Result<KeyRule, Rejection> {
        check_key(name)?;
        self.ask(|reply| Msg::GetRule(name.into(), reply)).await
    }

    /// Goes on though its caller leaves: what is written down and not told would be undone by the next.
    async fn put_rule(&self, name: &str, rule: KeyRule, alone: OwnedMutexGuard<()>) -> Result<(), Rejection> {
        check_key(name)?;
        let name = Arc::<str>::from(name);
        let (done, answered) = oneshot::channel();
        // The store runs this on a thread of its own, which must not be the last to hold it.
        let queue = Arc::downgrade(&self.0);
        let told = name.clone();
        let tell = move |key: Result<KeyId, StoreError>| {
            let owner = queue.upgrade().map_or(Owner::Stopping, |queue| queue.owner.borrow().clone());
            let untold = key.map(|key| match owner {
                Owner::Active(kept) => {
                    kept.keeper.tell(Msg::RuleChanged(key, told, rule));
                    None
                }
                Owner::Restarting | Owner::Deleted | Owner::Stopping => Some((key, alone)),
            });
            drop(done.send(untold));
        };
        self.0.store.set_rule(self.0.id, name.clone(), rule, Box::new(tell));
        if let Some((key, _alone)) = answered.await.unwrap_or(Err(StoreError::Closed))? {
            // The next one may have read the store before this was written.
            self.wait_for_owner(None, ANSWER_MAX).await?.keeper.tell(Msg::RuleChanged(key, name, rule));
        }
        Ok(())
    }
}
