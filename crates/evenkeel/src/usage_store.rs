//! Usage of the tenants in the data directory: a file per day in `usage/`, replaced atomically.
//!
//! Guarantees: the gateway stores usage every second, so a crash loses at most the last second and requests in flight.
//!
//! Limits: the files of the latest [`FILES_MAX`] days with usage are kept.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use evenkeel_server::calendar::Day;
use evenkeel_server::money::Money;
use evenkeel_server::usage_ledger::{DAYS_MAX, UsageKey, UsageLedger, UsageRow, UsageRows};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError, replace_file};

const DIRECTORY: &str = "usage";
const EXTENSION: &str = ".json";
const VERSION: u32 = 1;
/// Days with usage whose files are kept.
pub const FILES_MAX: usize = 400;

/// Stores the usage of the tenants.
#[derive(Debug)]
pub struct UsageStore {
    directory: PathBuf,
    state: Mutex<StoreState>,
}

/// The day that is being stored; its rows are those of its file and newer ones.
#[derive(Debug, Default)]
struct StoreState {
    day: Option<Day>,
    rows: UsageRows,
    is_changed: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DayFile {
    version: u32,
    rows: Vec<StoredRow>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRow {
    tenant: String,
    model: String,
    currency: String,
    requests: u64,
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cost_nanos: u64,
}

impl UsageStore {
    pub fn new(data_dir: &Path) -> Self {
        Self { directory: data_dir.join(DIRECTORY), state: Mutex::default() }
    }

    /// Reads the latest days, as many as a ledger keeps.
    pub fn read_recent(&self) -> Result<UsageRows, UsageStoreError> {
        let days = self.days()?;
        let mut recent = UsageRows::default();
        for day in days.iter().rev().take(DAYS_MAX) {
            self.read_day(*day)?.iter().for_each(|(key, row)| recent.add(key.clone(), *row));
        }
        Ok(recent)
    }

    /// Stores the usage that the ledger has recorded since the last time. After an error nothing is lost: the next call
    /// stores it.
    pub fn store(&self, ledger: &UsageLedger) -> Result<(), UsageStoreError> {
        let mut state = self.state.lock();
        self.take_pending(&mut state, ledger)?;
        self.write(&mut state)
    }

    /// Returns a tenant's rows from one day to another, including usage that is not stored yet.
    pub fn statement(
        &self,
        ledger: &UsageLedger,
        tenant: &str,
        days: (Day, Day),
    ) -> Result<Vec<(UsageKey, UsageRow)>, UsageStoreError> {
        let (from, to) = days;
        let mut state = self.state.lock();
        self.take_pending(&mut state, ledger)?;
        let current = state.day;
        let rows_of = |rows: &UsageRows| -> Vec<(UsageKey, UsageRow)> {
            rows.iter()
                .filter(|(key, _)| key.tenant == tenant)
                .map(|(key, row)| (key.clone(), *row))
                .collect()
        };
        let of_current = rows_of(&state.rows);
        drop(state);
        let mut days = self.days()?;
        days.extend(current);
        let mut found = Vec::new();
        for day in days.range(from..=to) {
            if Some(*day) == current {
                found.extend_from_slice(&of_current);
            } else {
                found.extend(rows_of(&self.read_day(*day)?));
            }
        }
        Ok(found)
    }

    /// Adds the pending rows of the ledger to those of their days. Stores the rows of the current day before it loads another.
    fn take_pending(&self, state: &mut StoreState, ledger: &UsageLedger) -> Result<(), UsageStoreError> {
        let mut pending = ledger.take_pending();
        while let Some((key, row)) = pending.pop_first() {
            if state.day != Some(key.day)
                && let Err(error) = self.change_day(state, key.day)
            {
                pending.add(key, row);
                ledger.return_pending(pending);
                return Err(error);
            }
            state.rows.add(key, row);
            state.is_changed = true;
        }
        Ok(())
    }

    fn change_day(&self, state: &mut StoreState, day: Day) -> Result<(), UsageStoreError> {
        self.write(state)?;
        let rows = self.read_day(day)?;
        *state = StoreState { day: Some(day), rows, is_changed: false };
        Ok(())
    }

    fn write(&self, state: &mut StoreState) -> Result<(), UsageStoreError> {
        let Some(day) = state.day.filter(|_| state.is_changed) else { return Ok(()) };
        let rows = state.rows.iter().map(|(key, row)| StoredRow::new(key, row)).collect();
        let file = DayFile { version: VERSION, rows };
        let path = self.path(day);
        let text = serde_json::to_string(&file)
            .map_err(|error| UsageStoreError::Malformed { path: path.clone(), error })?;
        let io_error = |error| UsageStoreError::Io { path: path.clone(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(io_error)?;
        let is_new = !path.exists();
        replace_file(&path, &text).map_err(io_error)?;
        state.is_changed = false;
        if is_new { self.remove_oldest() } else { Ok(()) }
    }

    /// Keeps the newest [`FILES_MAX`] files. Does not compare them with today, because the clock may be wrong.
    fn remove_oldest(&self) -> Result<(), UsageStoreError> {
        for day in self.days()?.into_iter().rev().skip(FILES_MAX) {
            let path = self.path(day);
            fs::remove_file(&path).map_err(|error| UsageStoreError::Io { path, error })?;
        }
        Ok(())
    }

    /// Lists the days with a file.
    fn days(&self) -> Result<BTreeSet<Day>, UsageStoreError> {
        let io_error = |error| UsageStoreError::Io { path: self.directory.clone(), error };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(io_error(error)),
        };
        let mut days = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(io_error)?.file_name();
            days.extend(name.to_str().and_then(|name| Day::parse(name.strip_suffix(EXTENSION)?)));
        }
        Ok(days)
    }

    fn read_day(&self, day: Day) -> Result<UsageRows, UsageStoreError> {
        let path = self.path(day);
        let mut rows = UsageRows::default();
        let Some(text) = DataDir::read(&self.directory, &format!("{day}{EXTENSION}"))? else {
            return Ok(rows);
        };
        let file: DayFile = serde_json::from_str(&text)
            .map_err(|error| UsageStoreError::Malformed { path: path.clone(), error })?;
        if file.version != VERSION {
            return Err(UsageStoreError::Version { path, version: file.version });
        }
        file.rows.into_iter().for_each(|stored| {
            let (key, row) = stored.into_row(day);
            rows.add(key, row);
        });
        Ok(rows)
    }

    fn path(&self, day: Day) -> PathBuf {
        self.directory.join(format!("{day}{EXTENSION}"))
    }
}

impl StoredRow {
    fn new(key: &UsageKey, row: &UsageRow) -> Self {
        let UsageKey { tenant, model, currency, .. } = key.clone();
        let UsageRow { requests, input_tokens, cached_tokens, output_tokens, cost } = *row;
        let cost_nanos = cost.as_nanos();
        Self { tenant, model, currency, requests, input_tokens, cached_tokens, output_tokens, cost_nanos }
    }

    fn into_row(self, day: Day) -> (UsageKey, UsageRow) {
        let Self {
            tenant,
            model,
            currency,
            requests,
            input_tokens,
            cached_tokens,
            output_tokens,
            cost_nanos,
        } = self;
        let cost = Money::from_nanos(cost_nanos);
        let row = UsageRow { requests, input_tokens, cached_tokens, output_tokens, cost };
        (UsageKey { day, tenant, model, currency }, row)
    }
}

#[derive(Debug, Error)]
pub enum UsageStoreError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} is not valid: {error}; repair it, or move it away to lose the usage of that day", path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        error: serde_json::Error,
    },
    #[error("{} has version {version}; this evenkeel reads version {VERSION}", path.display())]
    Version { path: PathBuf, version: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_server::budget::{BudgetKind, Budgets};
    use evenkeel_server::unix_seconds::UnixSeconds;

    const NOON: u64 = 1_795_003_200;
    const DAY_SECS: u64 = 86_400;

    /// Directory of a store; removed on drop.
    struct TempPath(PathBuf);

    impl TempPath {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-usage-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempPath {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(ledger: &UsageLedger, day: u64) {
        let row =
            UsageRow { requests: 1, input_tokens: 10, cost: Money::from_nanos(5), ..UsageRow::default() };
        ledger.record("acme", "m", row, UnixSeconds(NOON + day * DAY_SECS));
    }

    fn statement(store: &UsageStore, ledger: &UsageLedger) -> Vec<(String, u64)> {
        let days = (Day::parse("2000-01-01").unwrap(), Day::parse("2100-01-01").unwrap());
        let rows = store.statement(ledger, "acme", days).unwrap();
        rows.into_iter().map(|(key, row)| (key.day.to_string(), row.requests)).collect()
    }

    fn list(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(day, requests)| ((*day).to_owned(), *requests)).collect()
    }

    #[test]
    fn usage_is_added_to_its_day_whatever_the_order_of_days_and_restarts() {
        let temp = TempPath::new("days");
        let ledger = UsageLedger::default();
        for day in [0, 1, 0, 1, 0] {
            let store = UsageStore::new(&temp.0);
            record(&ledger, day);
            record(&ledger, 1 - day);
            store.store(&ledger).unwrap();
        }
        let store = UsageStore::new(&temp.0);
        record(&ledger, 2);
        let expected = list(&[("2026-11-18", 5), ("2026-11-19", 5), ("2026-11-20", 1)]);
        assert_eq!(statement(&store, &ledger), expected, "with usage that is not stored");
        assert_eq!(statement(&UsageStore::new(&temp.0), &ledger), expected[..2]);
        let restored = UsageLedger::default();
        restored.restore(&store.read_recent().unwrap());
        let mut budgets = Budgets::default();
        budgets.set(BudgetKind::TokensPerMonth, Some(1_000));
        assert_eq!(restored.budgets("acme", &budgets, UnixSeconds(NOON))[0].used, 100);
    }

    #[test]
    fn the_oldest_files_are_removed_by_their_number() {
        let temp = TempPath::new("oldest");
        let store = UsageStore::new(&temp.0);
        let ledger = UsageLedger::default();
        for day in 0..FILES_MAX as u64 + 2 {
            record(&ledger, day);
        }
        store.store(&ledger).unwrap();
        let days = store.days().unwrap();
        assert_eq!((days.len(), days.first().unwrap().to_string()), (FILES_MAX, "2026-11-20".to_owned()));
    }

    #[test]
    fn usage_that_could_not_be_stored_is_stored_later() {
        let temp = TempPath::new("blocked");
        let store = UsageStore::new(&temp.0);
        let ledger = UsageLedger::default();
        fs::write(temp.0.join(DIRECTORY), "not a directory").unwrap();
        record(&ledger, 0);
        record(&ledger, 1);
        assert!(store.store(&ledger).is_err());
        record(&ledger, 1);
        assert!(store.store(&ledger).is_err());
        fs::remove_file(temp.0.join(DIRECTORY)).unwrap();
        store.store(&ledger).unwrap();
        assert_eq!(statement(&store, &ledger), list(&[("2026-11-18", 1), ("2026-11-19", 2)]));
    }

    #[test]
    fn a_malformed_file_is_named_and_kept() {
        let temp = TempPath::new("malformed");
        let store = UsageStore::new(&temp.0);
        let ledger = UsageLedger::default();
        record(&ledger, 0);
        store.store(&ledger).unwrap();
        let path = store.path(Day::parse("2026-11-18").unwrap());
        for text in ["{", r#"{"version": 2, "rows": []}"#, r#"{"version": 1, "rows": [], "more": 1}"#] {
            fs::write(&path, text).unwrap();
            let error = store.read_recent().unwrap_err().to_string();
            assert!(error.starts_with(path.to_str().unwrap()), "{error}");
            let store = UsageStore::new(&temp.0);
            record(&ledger, 0);
            assert!(store.store(&ledger).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
