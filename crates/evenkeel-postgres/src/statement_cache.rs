//! Prepared statements of one connection, least recently used first out.
//!
//! Limits: at most `statements_max` statements; SQL longer than [`CACHED_SQL_BYTES_MAX`] is not cached.

use std::collections::HashMap;
use std::sync::Arc;

use crate::backend::Description;

/// Longest SQL text that is cached.
pub(crate) const CACHED_SQL_BYTES_MAX: usize = 16 * 1024;

pub(crate) struct StatementCache {
    /// Statements by SQL text; texts with several sets of parameter types are rare.
    by_sql: HashMap<Box<str>, Vec<CachedStatement>>,
    len: usize,
    statements_max: usize,
    /// Number of uses so far; orders the statements by their last use.
    uses: u64,
    /// Names are not used twice on a connection.
    names_used: u64,
    /// Names that the server is to be told to close.
    closing: Vec<Box<str>>,
}

struct CachedStatement {
    description: Arc<Description>,
    /// As requested, without zeros at the end.
    types: Box<[u32]>,
    last_use: u64,
}

impl StatementCache {
    pub(crate) fn new(statements_max: usize) -> Self {
        Self { by_sql: HashMap::new(), len: 0, statements_max, uses: 0, names_used: 0, closing: Vec::new() }
    }

    /// Reports whether a statement may be cached.
    pub(crate) fn accepts(&self, sql: &str) -> bool {
        0 < self.statements_max && sql.len() <= CACHED_SQL_BYTES_MAX
    }

    pub(crate) fn get(
        &mut self,
        sql: &str,
        types: impl Iterator<Item = u32> + Clone,
    ) -> Option<&Arc<Description>> {
        let found = self.by_sql.get_mut(sql)?.iter_mut().find(|found| found.has_types(types.clone()))?;
        self.uses += 1;
        found.last_use = self.uses;
        Some(&found.description)
    }

    /// Returns the name for a new statement, and evicts another if the cache is full.
    pub(crate) fn begin_insert(&mut self) -> Box<str> {
        while self.statements_max <= self.len {
            self.evict();
        }
        self.names_used += 1;
        format!("evenkeel_{}", self.names_used).into()
    }

    pub(crate) fn insert(
        &mut self,
        sql: &str,
        types: impl Iterator<Item = u32>,
        description: &Arc<Description>,
    ) {
        self.uses += 1;
        let mut types: Vec<u32> = types.collect();
        types.truncate(types.iter().rposition(|&oid| oid != 0).map_or(0, |last| last + 1));
        let statement =
            CachedStatement { description: description.clone(), types: types.into(), last_use: self.uses };
        self.by_sql.entry(sql.into()).or_default().push(statement);
        self.len += 1;
    }

    /// Removes a statement that the server no longer accepts.
    pub(crate) fn remove(&mut self, sql: &str, types: impl Iterator<Item = u32> + Clone) {
        let Some(statements) = self.by_sql.get_mut(sql) else { return };
        let Some(index) = statements.iter().position(|found| found.has_types(types.clone())) else { return };
        self.closing.push(statements.swap_remove(index).name());
        if statements.is_empty() {
            self.by_sql.remove(sql);
        }
        self.len -= 1;
    }

    fn evict(&mut self) {
        let oldest = self.by_sql.values().flatten().map(|statement| statement.last_use).min();
        let mut closed = None;
        self.by_sql.retain(|_, statements| {
            if let Some(index) = statements.iter().position(|found| Some(found.last_use) == oldest) {
                closed = Some(statements.swap_remove(index).name());
            }
            !statements.is_empty()
        });
        self.len -= 1;
        self.closing.extend(closed);
    }

    /// Forgets all statements, which the server has dropped.
    pub(crate) fn forget_all(&mut self) {
        self.by_sql.clear();
        self.len = 0;
        self.closing.clear();
    }

    /// Removes all statements, of which the server may still have some.
    pub(crate) fn close_all(&mut self) {
        self.closing
            .extend(self.by_sql.drain().flat_map(|(_, statements)| statements).map(|found| found.name()));
        self.len = 0;
    }

    /// Closes a statement that is not in the cache.
    pub(crate) fn close(&mut self, name: Box<str>) {
        self.closing.push(name);
    }

    /// Takes the names of the statements to close.
    pub(crate) fn take_closing(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.closing)
    }
}

impl CachedStatement {
    fn name(&self) -> Box<str> {
        self.description.name.clone()
    }

    /// Compares parameter types; a missing type is the same as 0, which lets the server infer it.
    fn has_types(&self, types: impl Iterator<Item = u32>) -> bool {
        let mut own = self.types.iter();
        types.into_iter().all(|oid| oid == own.next().copied().unwrap_or(0)) && own.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(cache: &mut StatementCache, sql: &str, types: &[u32]) -> Box<str> {
        let name = cache.begin_insert();
        let description = Description { name: name.clone(), ..Description::default() };
        cache.insert(sql, types.iter().copied(), &Arc::new(description));
        name
    }

    fn has(cache: &mut StatementCache, sql: &str, types: &[u32]) -> bool {
        cache.get(sql, types.iter().copied()).is_some()
    }

    #[test]
    fn the_least_recently_used_statement_is_evicted_and_closed() {
        let mut cache = StatementCache::new(2);
        insert(&mut cache, "a", &[]);
        let b = insert(&mut cache, "b", &[]);
        assert!(has(&mut cache, "a", &[]));
        insert(&mut cache, "c", &[]);
        assert!(has(&mut cache, "a", &[]));
        assert!(!has(&mut cache, "b", &[]));
        assert!(has(&mut cache, "c", &[]));
        assert_eq!(cache.take_closing(), [b]);
        assert!(cache.take_closing().is_empty());
    }

    #[test]
    fn parameter_types_are_part_of_the_key_and_zeros_at_the_end_are_not() {
        let mut cache = StatementCache::new(10);
        insert(&mut cache, "a", &[23, 0]);
        insert(&mut cache, "a", &[]);
        assert!(has(&mut cache, "a", &[23]));
        assert!(has(&mut cache, "a", &[23, 0, 0]));
        assert!(has(&mut cache, "a", &[0, 0]));
        assert!(!has(&mut cache, "a", &[25]));
        assert!(!has(&mut cache, "a", &[0, 23]));
        assert!(!has(&mut cache, "b", &[]));
    }

    #[test]
    fn at_most_statements_max_are_cached() {
        let mut cache = StatementCache::new(3);
        for index in 0..100_u32 {
            insert(&mut cache, &format!("select {}", index / 2), &[index % 2 + 1]);
            assert!(cache.len <= 3);
            assert_eq!(cache.by_sql.values().flatten().count(), cache.len);
        }
        assert_eq!(cache.take_closing().len(), 97);
    }

    #[test]
    fn long_statements_and_a_limit_of_zero_are_not_cached() {
        let cache = StatementCache::new(1);
        assert!(cache.accepts(&"x".repeat(CACHED_SQL_BYTES_MAX)));
        assert!(!cache.accepts(&"x".repeat(CACHED_SQL_BYTES_MAX + 1)));
        assert!(!StatementCache::new(0).accepts("x"));
    }

    #[test]
    fn a_name_is_never_used_twice() {
        let mut cache = StatementCache::new(1);
        let first = insert(&mut cache, "a", &[]);
        cache.forget_all();
        assert_ne!(insert(&mut cache, "a", &[]), first);
        cache.remove("a", [].into_iter());
        assert_eq!(cache.len, 0);
        assert_eq!(cache.take_closing().len(), 1);
    }
}
