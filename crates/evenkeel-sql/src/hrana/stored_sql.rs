//! SQL texts that a client stores on a stream, to send only their ids from then on.
//!
//! Limits: [`TEXTS_MAX`] texts and [`BYTES_MAX`] bytes per stream; `@libsql/client` stores up to 30 texts of 5 000 characters.

use std::collections::HashMap;

use evenkeel_server::api_error::ApiError;

use crate::request::invalid;

/// Most texts of a stream.
pub(super) const TEXTS_MAX: usize = 100;
/// Most bytes of all texts of a stream.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// The stored texts of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredSql {
    by_id: HashMap<i32, String>,
    bytes: usize,
}

impl StoredSql {
    pub(super) fn insert(&mut self, id: i32, sql: String) -> Result<(), ApiError> {
        if self.by_id.contains_key(&id) {
            return Err(invalid("sql_id", format!("the stream has a SQL text with id {id} already")));
        }
        if TEXTS_MAX <= self.by_id.len() || BYTES_MAX < self.bytes + sql.len() {
            let message =
                format!("a stream stores at most {TEXTS_MAX} SQL texts of {BYTES_MAX} bytes in all");
            return Err(invalid("sql", message));
        }
        self.bytes += sql.len();
        self.by_id.insert(id, sql);
        Ok(())
    }

    pub(super) fn get(&self, id: i32) -> Result<&str, ApiError> {
        let unknown = || invalid("sql_id", format!("the stream has no SQL text with id {id}"));
        self.by_id.get(&id).map(String::as_str).ok_or_else(unknown)
    }

    /// Removes a text; an unknown id is not an error in the protocol.
    pub(super) fn remove(&mut self, id: i32) {
        if let Some(sql) = self.by_id.remove(&id) {
            self.bytes -= sql.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_until_they_are_removed() {
        let mut stored = StoredSql::default();
        stored.insert(7, "select 1".to_owned()).unwrap();
        assert_eq!(stored.get(7), Ok("select 1"));
        assert!(stored.insert(7, "select 2".to_owned()).unwrap_err().to_string().contains("already"));
        stored.remove(7);
        stored.remove(7);
        assert!(stored.get(7).unwrap_err().to_string().contains("no SQL text with id 7"));
    }

    #[test]
    fn the_number_and_the_size_of_texts_are_limited() {
        let mut stored = StoredSql::default();
        for id in 0..TEXTS_MAX as i32 {
            stored.insert(id, "x".to_owned()).unwrap();
        }
        assert!(stored.insert(-1, "x".to_owned()).is_err());
        stored.remove(0);
        assert!(stored.insert(-1, "x".to_owned()).is_ok());
        let mut stored = StoredSql::default();
        assert!(stored.insert(0, "x".repeat(BYTES_MAX + 1)).is_err());
        stored.insert(0, "x".repeat(BYTES_MAX)).unwrap();
        assert!(stored.insert(1, "x".to_owned()).is_err());
        stored.remove(0);
        assert!(stored.insert(1, "x".to_owned()).is_ok());
    }
}
