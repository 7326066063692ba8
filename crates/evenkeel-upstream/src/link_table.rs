//! Links by name, over which a client reaches origins that other sites have.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_link::Link;
use parking_lot::RwLock;

/// Links by name. Clones share one table, so that a reload changes the links of all clients.
#[derive(Clone, Default)]
pub struct LinkTable(Arc<RwLock<HashMap<String, Link>>>);

impl LinkTable {
    /// Adds a link, or replaces the one of this name; requests in flight stay on the old one.
    pub fn insert(&self, name: &str, link: Link) {
        self.0.write().insert(name.to_owned(), link);
    }

    /// Replaces a link, unless another one has taken its place already.
    pub fn replace(&self, name: &str, old: &Link, new: Link) {
        if let Some(link) = self.0.write().get_mut(name).filter(|link| link.is_same(old)) {
            *link = new;
        }
    }

    /// Removes a link; requests in flight stay on it.
    pub fn remove(&self, name: &str) {
        self.0.write().remove(name);
    }

    pub(super) fn get(&self, name: &str) -> Option<Link> {
        self.0.read().get(name).cloned()
    }
}
