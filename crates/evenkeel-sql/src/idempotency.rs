//! `Idempotency-Key`: a repeated `/execute` gets the stored response of the first one and is not executed again.
//!
//! Guarantees: two requests with the same key never both execute, unless the first was rejected before it reached the
//! database, was rolled back with an error of class 40, or its response was evicted, expired or lost in a restart. A key that is used for a different body is an error.
//!
//! Limits: entries, bytes and age; beyond the first two the tenant that has most loses its oldest responses. Responses are kept in
//! memory, so a restart forgets them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::error::{DatabaseError, SqlError};
use crate::options::SqlLimits;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_BYTES_MAX: usize = 255;

/// Reads a request's key.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
    match key {
        Some(key) if values.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(ApiError::Invalid {
            message: format!(
                "Idempotency-Key must be given once, with 1 to {KEY_BYTES_MAX} visible characters"
            ),
            param: Some(IDEMPOTENCY_KEY.to_string()),
        }),
    }
}

/// Stored responses by tenant and key.
#[derive(Clone)]
pub(crate) struct IdempotencyStore(Arc<Mutex<Entries>>);

struct Entries {
    by_tenant: HashMap<String, TenantEntries>,
    entries: usize,
    bytes: usize,
    entries_max: usize,
    bytes_max: usize,
    age_max: Duration,
}

#[derive(Default)]
struct TenantEntries {
    by_key: HashMap<String, Entry>,
    /// Keys of stored responses, the oldest first.
    order: VecDeque<(String, Instant)>,
    bytes: usize,
}

struct Entry {
    body_hash: [u8; 32],
    /// `None` while the request runs.
    response: Option<StoredResponse>,
}

/// Measure by which a tenant's stored responses are compared with those of others.
#[derive(Clone, Copy)]
enum Excess {
    Entries,
    Bytes,
}

/// A response as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredResponse {
    status: StatusCode,
    body: Bytes,
}

impl StoredResponse {
    pub(crate) fn to_response(&self) -> Response {
        json_response(self.status, full(self.body.clone()))
    }
}

/// Answer of the store to a request.
pub(crate) enum Repeat {
    /// The request must be executed; its response is stored with this entry.
    First(RunningEntry),
    Stored(StoredResponse),
}

/// The entry of a request that runs. Dropping it without a response forgets the key.
pub(crate) struct RunningEntry {
    store: IdempotencyStore,
    tenant: String,
    /// `None` once the response is stored.
    key: Option<String>,
}

impl IdempotencyStore {
    pub(crate) fn new(limits: &SqlLimits) -> Self {
        Self(Arc::new(Mutex::new(Entries {
            by_tenant: HashMap::new(),
            entries: 0,
            bytes: 0,
            entries_max: limits.idempotency_entries_max,
            bytes_max: limits.idempotency_bytes_max,
            age_max: limits.idempotency_time_max,
        })))
    }

    /// Looks up the key of a request, and reserves it if it is new.
    pub(crate) fn begin(&self, tenant: &str, key: &str, body: &[u8]) -> Result<Repeat, SqlError> {
        let mut body_hash = [0; 32];
        body_hash.copy_from_slice(digest(&SHA256, body).as_ref());
        let mut entries = self.0.lock();
        entries.expire(tenant, Instant::now());
        let of_tenant = entries.by_tenant.entry(tenant.to_owned()).or_default();
        match of_tenant.by_key.get(key) {
            Some(entry) if entry.body_hash != body_hash => Err(SqlError::IdempotencyMismatch),
            Some(Entry { response: Some(stored), .. }) => Ok(Repeat::Stored(stored.clone())),
            Some(Entry { response: None, .. }) => Err(SqlError::IdempotencyRunning),
            None => {
                of_tenant.by_key.insert(key.to_owned(), Entry { body_hash, response: None });
                let tenant = tenant.to_owned();
                Ok(Repeat::First(RunningEntry { store: self.clone(), tenant, key: Some(key.to_owned()) }))
            }
        }
    }
}

impl RunningEntry {
    /// Stores the response of a request that reached the database, and returns it.
    pub(crate) async fn store(mut self, result: Result<Response, SqlError>) -> Result<Response, SqlError> {
        if let Err(error) = &result
            && may_run_again(error)
        {
            return result;
        }
        let (head, body) = result.unwrap_or_else(SqlError::into_response).into_parts();
        let body = body.collect().await.map_err(|_| ApiError::Internal)?.to_bytes();
        let stored = StoredResponse { status: head.status, body };
        if let Some(key) = self.key.take() {
            self.store.0.lock().insert(&self.tenant, key, stored.clone(), Instant::now());
        }
        Ok(stored.to_response())
    }
}

/// Reports whether a repeat of the request must be executed: the database did not see it, or asks for the repeat.
fn may_run_again(error: &SqlError) -> bool {
    match error {
        SqlError::Api(_) | SqlError::UnknownDatabase { .. } => true,
        SqlError::Database(DatabaseError::Unavailable { .. }) => true,
        // The transaction was rolled back: serialization failures, deadlocks. 40003 means that the outcome is unknown.
        SqlError::Database(DatabaseError::Statement(error)) => {
            error.code.starts_with("40") && error.code != "40003"
        }
        _ => false,
    }
}

impl Drop for RunningEntry {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        if let Some(of_tenant) = self.store.0.lock().by_tenant.get_mut(&self.tenant) {
            of_tenant.by_key.remove(key);
        }
    }
}

impl Entries {
    fn insert(&mut self, tenant: &str, key: String, response: StoredResponse, now: Instant) {
        let bytes = response.body.len();
        let Some(of_tenant) = self.by_tenant.get_mut(tenant) else { return };
        let Some(entry) = of_tenant.by_key.get_mut(&key) else { return };
        entry.response = Some(response);
        of_tenant.order.push_back((key, now));
        of_tenant.bytes += bytes;
        self.entries += 1;
        self.bytes += bytes;
        while self.entries_max < self.entries {
            self.evict(Excess::Entries);
        }
        while self.bytes_max < self.bytes {
            self.evict(Excess::Bytes);
        }
    }

    /// Removes the oldest response of the tenant that has most, so that a tenant with many cannot evict those of a tenant
    /// with few.
    fn evict(&mut self, excess: Excess) {
        let measure = |of_tenant: &TenantEntries| match excess {
            Excess::Entries => of_tenant.order.len(),
            Excess::Bytes => of_tenant.bytes,
        };
        let largest = self.by_tenant.iter().max_by_key(|(_, of_tenant)| measure(of_tenant));
        let Some(tenant) = largest.map(|(tenant, _)| tenant.clone()) else { return };
        self.remove_oldest(&tenant);
    }

    fn expire(&mut self, tenant: &str, now: Instant) {
        while self
            .by_tenant
            .get(tenant)
            .and_then(|of_tenant| of_tenant.order.front())
            .is_some_and(|(_, at)| self.age_max <= now.saturating_duration_since(*at))
        {
            self.remove_oldest(tenant);
        }
    }

    fn remove_oldest(&mut self, tenant: &str) {
        let Some(of_tenant) = self.by_tenant.get_mut(tenant) else { return };
        let Some((key, _)) = of_tenant.order.pop_front() else { return };
        let removed = of_tenant.by_key.remove(&key).and_then(|entry| entry.response);
        let bytes = removed.map_or(0, |response| response.body.len());
        of_tenant.bytes -= bytes;
        self.entries -= 1;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "a";

    fn store(entries_max: usize, bytes_max: usize) -> IdempotencyStore {
        let limits = SqlLimits {
            idempotency_entries_max: entries_max,
            idempotency_bytes_max: bytes_max,
            ..SqlLimits::default()
        };
        IdempotencyStore::new(&limits)
    }

    fn first(store: &IdempotencyStore, key: &str) -> RunningEntry {
        match store.begin(TENANT, key, b"body").unwrap() {
            Repeat::First(entry) => entry,
            Repeat::Stored(_) => panic!("{key} is stored"),
        }
    }

    async fn run(store: &IdempotencyStore, key: &str, body: &'static str) {
        let response = json_response(StatusCode::OK, full(body));
        first(store, key).store(Ok(response)).await.unwrap();
    }

    fn stored(store: &IdempotencyStore, key: &str) -> Option<Bytes> {
        match store.begin(TENANT, key, b"body").unwrap() {
            Repeat::First(_) => None,
            Repeat::Stored(stored) => Some(stored.body),
        }
    }

    #[tokio::test]
    async fn a_repeat_gets_the_stored_response() {
        let store = store(10, 1_000);
        run(&store, "a", "one").await;
        assert_eq!(stored(&store, "a").as_deref(), Some(b"one".as_slice()));
        assert!(matches!(store.begin(TENANT, "a", b"other"), Err(SqlError::IdempotencyMismatch)));
        assert!(matches!(store.begin("b", "a", b"body"), Ok(Repeat::First(_))), "keys are per tenant");
    }

    #[tokio::test]
    async fn a_key_is_reserved_while_its_request_runs() {
        let store = store(10, 1_000);
        let running = first(&store, "a");
        assert!(matches!(store.begin(TENANT, "a", b"body"), Err(SqlError::IdempotencyRunning)));
        drop(running);
        assert_eq!(stored(&store, "a"), None);
    }

    #[tokio::test]
    async fn a_rejection_is_not_stored_but_an_unknown_outcome_is() {
        let store = store(10, 1_000);
        assert!(first(&store, "a").store(Err(ApiError::Draining.into())).await.is_err());
        assert_eq!(stored(&store, "a"), None);
        let unavailable = DatabaseError::Unavailable { reason: String::new() };
        assert!(first(&store, "a").store(Err(unavailable.into())).await.is_err());
        assert_eq!(stored(&store, "a"), None);
        let unknown = SqlError::Database(DatabaseError::OutcomeUnknown);
        let response = first(&store, "b").store(Err(unknown)).await.unwrap();
        assert_eq!(response.status(), 502);
        assert!(stored(&store, "b").is_some());
    }

    #[tokio::test]
    async fn a_tenant_with_many_responses_evicts_only_its_own() {
        let store = store(4, 1_000);
        let Ok(Repeat::First(quiet)) = store.begin("quiet", "k", b"body") else { panic!("stored") };
        quiet.store(Ok(json_response(StatusCode::OK, full("x")))).await.unwrap();
        for number in 0..20 {
            run(&store, &number.to_string(), "x").await;
        }
        assert!(matches!(store.begin("quiet", "k", b"body"), Ok(Repeat::Stored(_))));
        assert!(stored(&store, "19").is_some());
    }

    #[tokio::test]
    async fn the_oldest_responses_are_forgotten_first() {
        let store = store(2, 1_000);
        for key in ["a", "b", "c"] {
            run(&store, key, "x").await;
        }
        assert_eq!(["a", "b", "c"].map(|key| stored(&store, key).is_some()), [false, true, true]);
        assert!(matches!(store.begin("b", "x", b"body"), Ok(Repeat::First(_))));
        let small = self::store(10, 5);
        run(&small, "a", "123").await;
        run(&small, "b", "456").await;
        assert_eq!(["a", "b"].map(|key| stored(&small, key).is_some()), [false, true]);
    }
}
