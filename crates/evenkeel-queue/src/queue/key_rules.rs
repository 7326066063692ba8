//! Reads and changes the rules of keys and tenants, one change at a time.

use std::sync::Arc;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::owner::Owner;
use super::{Queue, REPLY_TIMEOUT, check_key};
use crate::id::KeyId;
use crate::queue_actor::Msg;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::store::StoreError;

/// Exclusive access to a rule, so that concurrent changes of different fields do not overwrite each other.
#[must_use = "it blocks other changes to rules until dropped"]
pub struct KeyRuleGuard<'a> {
    queue: &'a Queue,
    name: &'a str,
    rule: KeyRule,
    lock: OwnedMutexGuard<()>,
}

impl KeyRuleGuard<'_> {
    /// Returns the current rule.
    pub fn rule(&self) -> KeyRule {
        self.rule
    }

    /// Replaces the rule; survives restarts and applies to waiting messages.
    pub async fn set(self, rule: KeyRule) -> Result<(), Rejection> {
        self.queue.store_rule(self.name, rule, self.lock).await
    }
}

impl Queue {
    /// Locks the rule of a key or tenant, to change it.
    pub async fn lock_rule<'a>(&'a self, name: &'a str) -> Result<KeyRuleGuard<'a>, Rejection> {
        let lock = self.0.rule_lock.clone().lock_owned().await;
        Ok(KeyRuleGuard { queue: self, name, rule: self.rule(name).await?, lock })
    }

    /// Replaces the rule of a key, or of a tenant with all its keys; survives restarts and applies to waiting messages.
    pub async fn set_rule(&self, name: &str, rule: KeyRule) -> Result<(), Rejection> {
        let lock = self.0.rule_lock.clone().lock_owned().await;
        self.store_rule(name, rule, lock).await
    }

    /// Returns the rule of a key or tenant.
    pub async fn rule(&self, name: &str) -> Result<KeyRule, Rejection> {
        check_key(name)?;
        self.ask(|reply| Msg::GetRule(name.into(), reply)).await
    }

    /// Stores a rule and notifies the queue actor, even if the caller is cancelled.
    ///
    /// If the actor did not know a stored rule, the next change would overwrite it.
    async fn store_rule(
        &self,
        name: &str,
        rule: KeyRule,
        lock: OwnedMutexGuard<()>,
    ) -> Result<(), Rejection> {
        check_key(name)?;
        let name = Arc::<str>::from(name);
        let (done, completed) = oneshot::channel();
        // The store calls this on its own thread, which must not drop the last reference to the store.
        let queue = Arc::downgrade(&self.0);
        let stored_name = name.clone();
        let on_stored = move |key: Result<KeyId, StoreError>| {
            let owner = queue.upgrade().map_or(Owner::Stopping, |queue| queue.owner.borrow().clone());
            let undelivered = key.map(|key| match owner {
                Owner::Active(owner) => {
                    owner.actor.tell(Msg::RuleChanged(key, stored_name, rule));
                    None
                }
                Owner::Restarting | Owner::Deleted | Owner::Stopping => Some((key, lock)),
            });
            drop(done.send(undelivered));
        };
        self.0.store.set_rule(self.0.id, name.clone(), rule, Box::new(on_stored));
        if let Some((key, _lock)) = completed.await.unwrap_or(Err(StoreError::Closed))? {
            // The next owner may have read the store before the rule was written.
            let owner = self.wait_for_owner(None, REPLY_TIMEOUT).await?;
            owner.actor.tell(Msg::RuleChanged(key, name, rule));
        }
        Ok(())
    }
}
