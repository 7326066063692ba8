//! Tenants added at run time: stored in the data directory, managed by the command line or the API.
//!
//! Guarantees: a change is validated together with the tenants in the config file before anything is written.
//! An API key is returned once, to the caller that created it; only its hash is stored.

use std::fmt;
use std::path::Path;

use evenkeel_policy::account::AccountNumber;
use evenkeel_policy::class::Class;
use evenkeel_server::access_key::MasterKey;
use evenkeel_server::api_key::{KeyHash, make_key};
use evenkeel_server::tenant::{TenantSettings, Tenants, TenantsError};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_telemetry::Secret;
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use crate::accounts::{Accounts, AccountsChange, AccountsError};
use crate::config::{
    ConfigErrors, change_settings, check_name, describe, fingerprint, read_tenant, read_tenants, to_toml,
};
use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "tenants.toml";
/// Names that new tenants may not have: parts of paths, the label of further tenants in metrics, the sender of
/// administrators' messages, and the fairness key of messages without one. Tenants that have them are served.
const RESERVED_NAMES: [&str; 5] = [".", "..", "other", "admin", "default"];

/// Reports whether new tenants may not have a name: a reserved one, or one that reads as an account number.
fn is_reserved(name: &str) -> bool {
    RESERVED_NAMES.contains(&name) || name.parse::<AccountNumber>().is_ok()
}

/// All tenants: those in the config file and those added at run time.
#[derive(Clone, Debug, Default)]
pub struct TenantStore {
    /// Tenants in the config file, which are changed only there.
    pub configured: Vec<TenantSettings>,
    /// Tenants added at run time.
    pub added: Vec<TenantSettings>,
    /// Account numbers of all tenants; those of new tenants are drawn when the server starts or the tenants change.
    pub accounts: Accounts,
}

/// An edit to the tenants.
#[derive(Clone, Debug)]
pub enum TenantChange {
    /// Adds a tenant and creates its first key.
    Add(Box<TenantSettings>),
    /// Changes settings and keeps the keys. `null` restores the default.
    Set {
        name: String,
        settings: Map<String, Json>,
    },
    /// Creates a key beside the others.
    AddKey {
        tenant: String,
        /// `None`: the first digits of its hash.
        name: Option<String>,
        expires_at: Option<UnixSeconds>,
        /// Class of requests with the key.
        priority: Option<Class>,
    },
    /// Revokes one key.
    RemoveKey {
        tenant: String,
        name: String,
    },
    /// Creates a key without a name and, usually, revokes all others.
    Rotate {
        name: String,
        old_keys: OldKeys,
    },
    Remove {
        name: String,
    },
}

impl TenantChange {
    /// Names the change for the audit log.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Add(_) => "add tenant",
            Self::Set { .. } => "set tenant",
            Self::AddKey { .. } => "add key",
            Self::RemoveKey { .. } => "remove key",
            Self::Rotate { .. } => "rotate keys",
            Self::Remove { .. } => "remove tenant",
        }
    }

    /// Returns the name of the tenant that is changed.
    pub fn tenant(&self) -> &str {
        match self {
            Self::Add(tenant) => &tenant.name,
            Self::AddKey { tenant, .. } | Self::RemoveKey { tenant, .. } => tenant,
            Self::Set { name, .. } | Self::Rotate { name, .. } | Self::Remove { name } => name,
        }
    }
}

impl fmt::Display for TenantChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(tenant) => write!(f, "added tenant {:?}", tenant.name),
            Self::Set { name, .. } => write!(f, "updated tenant {name:?}"),
            Self::AddKey { tenant, .. } => write!(f, "added a key to tenant {tenant:?}"),
            Self::RemoveKey { tenant, name } => write!(f, "removed key {name:?} of tenant {tenant:?}"),
            Self::Rotate { name, .. } => write!(f, "created a new key for tenant {name:?}"),
            Self::Remove { name } => write!(f, "removed tenant {name:?}"),
        }
    }
}

/// Treatment of a tenant's existing keys when a new one is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKeys {
    Revoke,
    /// The keys stay valid until a later rotation revokes them, or they expire.
    Keep,
}

impl TenantStore {
    /// Reads the stored tenants and joins them with the configured ones; a name or key in both is an error.
    pub fn read(
        data_dir: &Path,
        configured: Vec<TenantSettings>,
        admin_key_hashes: &[KeyHash],
    ) -> Result<Self, TenantStoreError> {
        let added = match DataDir::read(data_dir, FILE)? {
            Some(text) => read_tenants(&data_dir.join(FILE).to_string_lossy(), &text)?,
            None => Vec::new(),
        };
        let accounts = Accounts::read(data_dir)?;
        let store = Self { configured, added, accounts };
        store.check(admin_key_hashes)?;
        Ok(store)
    }

    /// Returns the configured and the added tenants, with their account numbers.
    pub fn all(&self) -> Vec<TenantSettings> {
        let with_account = |tenant: &TenantSettings| TenantSettings {
            account: self.accounts.get(&tenant.name),
            ..tenant.clone()
        };
        self.configured.iter().chain(&self.added).map(with_account).collect()
    }

    /// Logs a warning for each tenant with a name that new tenants may not have.
    pub fn warn_reserved_names(&self) {
        let tenants = self.configured.iter().chain(&self.added);
        for tenant in tenants.filter(|tenant| is_reserved(&tenant.name)) {
            tracing::warn!(target: "evenkeel", tenant = tenant.name, "this name is ambiguous in metrics, logs or paths, and new tenants may not have it; replace the tenant by one with another name");
        }
    }

    /// Draws and stores the account numbers of tenants that have none.
    pub fn update_accounts(&mut self, data_dir: &DataDir) -> Result<(), TenantStoreError> {
        match self.accounts.update(&self.configured, &self.added)? {
            AccountsChange::None => Ok(()),
            AccountsChange::Changed => Ok(self.accounts.write(data_dir)?),
        }
    }

    /// Returns all tenants as JSON, with fingerprints of their keys.
    pub fn describe(&self) -> Json {
        let configured = self.configured.iter().map(|tenant| (tenant, "config"));
        let added = self.added.iter().map(|tenant| (tenant, "added"));
        let described = configured.chain(added).map(|(tenant, from)| {
            let mut settings = describe(tenant);
            let keys: Vec<String> = tenant.keys.iter().map(|key| fingerprint(&key.hash)).collect();
            settings.insert("keys".to_owned(), json!(keys));
            let account = self.accounts.get(&tenant.name).map(|account| account.to_string());
            settings.insert("account".to_owned(), json!(account));
            settings.insert("from".to_owned(), json!(from));
            Json::Object(settings)
        });
        json!({"tenants": described.collect::<Vec<_>>()})
    }

    /// Returns the settings of a tenant and the names of its keys as JSON, without settings that have no value.
    pub fn describe_one(&self, name: &str) -> Option<Json> {
        let tenant = self.configured.iter().chain(&self.added).find(|tenant| tenant.name == name)?;
        let mut settings = describe(tenant);
        settings.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
        let keys: Vec<&str> = tenant.keys.iter().map(|key| key.name.as_str()).collect();
        settings.insert("keys".to_owned(), json!(keys));
        Some(Json::Object(settings))
    }

    /// Returns the keys of a tenant as JSON, the oldest first; `last_use` knows when each was last used.
    pub fn describe_keys(
        &self,
        name: &str,
        now: UnixSeconds,
        last_use: impl Fn(&KeyHash) -> Option<UnixSeconds>,
    ) -> Result<Json, TenantStoreError> {
        let tenant = self.configured.iter().chain(&self.added).find(|tenant| tenant.name == name);
        let tenant = tenant.ok_or_else(|| TenantStoreError::Unknown { name: name.to_owned() })?;
        let time = |at: Option<UnixSeconds>| at.map(UnixSeconds::to_rfc3339);
        let described = tenant.keys.iter().map(|key| {
            json!({
                "name": key.name,
                "fingerprint": fingerprint(&key.hash),
                "expires_at": time(key.expires_at),
                "state": if key.is_expired(now) { "expired" } else { "active" },
                "last_used_at": time(last_use(&key.hash)),
                "priority": key.priority.map(Class::name),
            })
        });
        Ok(json!({"name": name, "keys": described.collect::<Vec<_>>()}))
    }

    /// Derives the AWS credentials of a tenant's SQS clients: one pair per API key, the newest last.
    pub fn sqs_keys(&self, name: &str, master: &MasterKey) -> Result<Vec<Json>, TenantStoreError> {
        let tenant = self.all().into_iter().find(|tenant| tenant.name == name);
        let tenant = tenant.ok_or_else(|| TenantStoreError::Unknown { name: name.to_owned() })?;
        let pairs = master.credentials(&tenant).into_iter().map(|pair| {
            json!({"access_key_id": pair.access_key_id, "secret_access_key": pair.secret_access_key.expose()})
        });
        Ok(pairs.collect())
    }

    /// Returns the tenants after a change, and the API key that it created. Writes nothing.
    pub fn apply(
        &self,
        change: TenantChange,
        admin_key_hashes: &[KeyHash],
    ) -> Result<(Self, Option<Secret<String>>), TenantStoreError> {
        let mut next = self.clone();
        // After a crash between the two writes of a removal, the number of the removed tenant is not retired yet.
        next.accounts.update(&self.configured, &self.added)?;
        let key = match change {
            TenantChange::Add(mut tenant) => {
                if self.all().iter().any(|other| other.name == tenant.name) {
                    return Err(TenantStoreError::Exists { name: tenant.name });
                }
                if is_reserved(&tenant.name) {
                    return Err(TenantsError::Reserved { name: tenant.name }.into());
                }
                let key = new_key()?;
                tenant.keys = vec![TenantKey::unnamed(KeyHash::of(key.expose()))];
                next.added.push(*tenant);
                Some(key)
            }
            TenantChange::Set { name, settings } => {
                let index = self.added_index(&name)?;
                next.added[index] = with_settings(&self.added[index], settings)?;
                None
            }
            TenantChange::AddKey { tenant, name, expires_at, priority } => {
                let index = self.added_index(&tenant)?;
                let key = new_key()?;
                let unnamed = TenantKey::unnamed(KeyHash::of(key.expose()));
                let mut added = TenantKey { expires_at, priority, ..unnamed };
                added.name = name.unwrap_or(added.name);
                check_key_name(&added.name)?;
                next.added[index].keys.push(added);
                Some(key)
            }
            TenantChange::RemoveKey { tenant, name } => {
                let keys = &mut next.added[self.added_index(&tenant)?].keys;
                let position = keys.iter().position(|key| key.name == name);
                keys.remove(position.ok_or(TenantStoreError::UnknownKey { tenant, name })?);
                None
            }
            TenantChange::Rotate { name, old_keys } => {
                let index = self.added_index(&name)?;
                let key = new_key()?;
                let keys = &mut next.added[index].keys;
                match old_keys {
                    OldKeys::Revoke => keys.clear(),
                    OldKeys::Keep => {}
                }
                keys.push(TenantKey::unnamed(KeyHash::of(key.expose())));
                Some(key)
            }
            TenantChange::Remove { name } => {
                next.added.remove(self.added_index(&name)?);
                None
            }
        };
        next.accounts.update(&next.configured, &next.added)?;
        next.check(admin_key_hashes)?;
        Ok((next, key))
    }

    /// Stores the added tenants and the account numbers in the data directory.
    ///
    /// After a crash between the two writes, the next start or change draws and retires the numbers that follow from the
    /// tenants.
    pub fn write(&self, data_dir: &DataDir) -> Result<(), TenantStoreError> {
        data_dir.replace(FILE, &to_toml(&self.added))?;
        Ok(self.accounts.write(data_dir)?)
    }

    fn added_index(&self, name: &str) -> Result<usize, TenantStoreError> {
        if self.configured.iter().any(|tenant| tenant.name == name) {
            return Err(TenantStoreError::Configured { name: name.to_owned() });
        }
        let index = self.added.iter().position(|tenant| tenant.name == name);
        index.ok_or_else(|| TenantStoreError::Unknown { name: name.to_owned() })
    }

    fn check(&self, admin_key_hashes: &[KeyHash]) -> Result<(), TenantStoreError> {
        Tenants::new(self.all(), admin_key_hashes.to_vec())?;
        Ok(())
    }
}

/// Applies settings to a tenant; keeps its name and keys.
fn with_settings(
    tenant: &TenantSettings,
    settings: Map<String, Json>,
) -> Result<TenantSettings, TenantStoreError> {
    let is_set = |key: &&str| settings.contains_key(*key);
    if let Some(key) = ["name", "key_hashes", "keys"].into_iter().find(is_set) {
        return Err(TenantStoreError::Fixed { key });
    }
    let all = change_settings(describe(tenant), settings)?;
    Ok(TenantSettings { keys: tenant.keys.clone(), ..read_tenant(&all)? })
}

fn check_key_name(name: &str) -> Result<(), TenantStoreError> {
    check_name(name).map_err(|message| TenantStoreError::Settings(ConfigErrors::without_origin(message)))
}

fn new_key() -> Result<Secret<String>, TenantStoreError> {
    make_key().map(Secret::new).map_err(|_| TenantStoreError::NoRandomness)
}

/// Error when reading or changing the tenants.
#[derive(Debug, Error)]
pub enum TenantStoreError {
    #[error("tenant {name:?} already exists")]
    Exists { name: String },
    #[error("tenant {name:?} does not exist")]
    Unknown { name: String },
    #[error("tenant {tenant:?} has no key {name:?}")]
    UnknownKey { tenant: String, name: String },
    #[error("tenant {name:?} is in the config file; change it there, then reload (SIGHUP)")]
    Configured { name: String },
    #[error("{key} of a tenant cannot be changed")]
    Fixed { key: &'static str },
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    #[error(transparent)]
    Settings(#[from] ConfigErrors),
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("the system's random number generator failed")]
    NoRandomness,
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_server::tenant::KEYS_MAX;

    fn add(name: &str) -> TenantChange {
        TenantChange::Add(Box::new(tenant(name)))
    }

    fn tenant(name: &str) -> TenantSettings {
        TenantSettings { name: name.to_owned(), ..TenantSettings::default() }
    }

    fn store() -> TenantStore {
        TenantStore { configured: vec![tenant("filed")], ..TenantStore::default() }
    }

    fn rotate(name: &str, old_keys: OldKeys) -> TenantChange {
        TenantChange::Rotate { name: name.to_owned(), old_keys }
    }

    fn apply_error(store: &TenantStore, change: TenantChange) -> String {
        store.apply(change, &[]).unwrap_err().to_string()
    }

    #[test]
    fn a_new_tenant_has_one_key_and_only_its_hash_is_stored() {
        let (store, key) = store().apply(add("acme"), &[]).unwrap();
        let key = key.unwrap();
        let keys = &store.added[0].keys;
        assert!(keys.len() == 1 && keys[0].hash.matches(&KeyHash::of(key.expose())));
        assert!(!format!("{store:?} {key:?}").contains(key.expose()));
    }

    #[test]
    fn a_tenant_added_after_a_crash_during_its_removal_has_another_account() {
        let (before, _) = store().apply(add("acme"), &[]).unwrap();
        let (removed, _) = before.apply(TenantChange::Remove { name: "acme".to_owned() }, &[]).unwrap();
        let crashed = TenantStore { accounts: before.accounts.clone(), ..removed };
        let (again, _) = crashed.apply(add("acme"), &[]).unwrap();
        let account = again.accounts.get("acme");
        assert!(account.is_some() && account != before.accounts.get("acme"), "{account:?}");
    }

    #[test]
    fn rotating_revokes_the_old_key_unless_it_is_kept() {
        let (first, _) = store().apply(add("acme"), &[]).unwrap();
        let (both, second) = first.apply(rotate("acme", OldKeys::Keep), &[]).unwrap();
        assert_eq!(both.added[0].keys.len(), 2);
        let (alone, third) = both.apply(rotate("acme", OldKeys::Revoke), &[]).unwrap();
        assert_eq!(alone.added[0].keys.len(), 1);
        assert!(alone.added[0].keys[0].hash.matches(&KeyHash::of(third.unwrap().expose())));
        assert!(!alone.added[0].keys[0].hash.matches(&KeyHash::of(second.unwrap().expose())));
    }

    fn add_key(name: Option<&str>, expires_at: Option<UnixSeconds>) -> TenantChange {
        TenantChange::AddKey {
            tenant: "acme".to_owned(),
            name: name.map(str::to_owned),
            expires_at,
            priority: None,
        }
    }

    #[test]
    fn a_named_key_is_added_beside_the_others_and_removed_alone() {
        let (first, key) = store().apply(add("acme"), &[]).unwrap();
        let at = UnixSeconds(1_800_000_000);
        let (both, ci) = first.apply(add_key(Some("ci"), Some(at)), &[]).unwrap();
        let added = &both.added[0].keys[1];
        assert_eq!((added.name.as_str(), added.expires_at), ("ci", Some(at)));
        assert!(added.hash.matches(&KeyHash::of(ci.unwrap().expose())));
        assert_eq!(
            apply_error(&both, add_key(Some("ci"), None)),
            "two keys of tenant \"acme\" are named \"ci\""
        );
        assert!(apply_error(&both, add_key(Some("a b"), None)).starts_with("a name must be"));
        let text = to_toml(&both.added);
        assert_eq!(to_toml(&read_tenants("tenants.toml", &text).unwrap()), text);
        let remove =
            |name: &str| TenantChange::RemoveKey { tenant: "acme".to_owned(), name: name.to_owned() };
        let (alone, none) = both.apply(remove("ci"), &[]).unwrap();
        assert!(none.is_none() && alone.added[0].keys[0].hash.matches(&KeyHash::of(key.unwrap().expose())));
        assert!(to_toml(&alone.added).contains("key_hashes"), "earlier versions can read it again");
        assert_eq!(apply_error(&alone, remove("ci")), "tenant \"acme\" has no key \"ci\"");
    }

    #[test]
    fn the_number_of_keys_is_limited() {
        let (mut store, _) = store().apply(add("acme"), &[]).unwrap();
        for _ in 1..KEYS_MAX {
            store = store.apply(add_key(None, None), &[]).unwrap().0;
        }
        assert_eq!(apply_error(&store, add_key(None, None)), "tenant \"acme\" has more than 16 keys");
    }

    #[test]
    fn changing_settings_keeps_the_keys() {
        let (first, key) = store().apply(add("acme"), &[]).unwrap();
        let set = |text: &str| TenantChange::Set {
            name: "acme".to_owned(),
            settings: serde_json::from_str(text).unwrap(),
        };
        let (limited, no_key) = first.apply(set(r#"{"weight": 2.5, "rpm": 60}"#), &[]).unwrap();
        let acme = &limited.added[0];
        assert_eq!((acme.weight.as_f64(), acme.rpm, no_key.is_some()), (2.5, Some(60), false));
        assert!(acme.keys[0].hash.matches(&KeyHash::of(key.unwrap().expose())));
        let (unlimited, _) = limited.apply(set(r#"{"rpm": null}"#), &[]).unwrap();
        assert_eq!((unlimited.added[0].weight.as_f64(), unlimited.added[0].rpm), (2.5, None));
        for (text, message) in [
            (r#"{"name": "b"}"#, "name of a tenant cannot be changed"),
            (r#"{"weigth": null}"#, "unknown setting \"weigth\""),
            (r#"{"key_hashes": []}"#, "key_hashes of a tenant cannot be changed"),
            (r#"{"weight": 0}"#, "weight must be a number from 0.01 to 1000"),
        ] {
            assert_eq!(apply_error(&first, set(text)), message);
        }
    }

    #[test]
    fn the_number_of_kept_keys_is_limited() {
        let (mut store, _) = store().apply(add("acme"), &[]).unwrap();
        for _ in 1..KEYS_MAX {
            store = store.apply(rotate("acme", OldKeys::Keep), &[]).unwrap().0;
        }
        assert_eq!(
            apply_error(&store, rotate("acme", OldKeys::Keep)),
            "tenant \"acme\" has more than 16 keys"
        );
    }

    #[test]
    fn tenants_of_the_config_file_cannot_be_changed_here() {
        let message = "tenant \"filed\" is in the config file; change it there, then reload (SIGHUP)";
        assert_eq!(apply_error(&store(), rotate("filed", OldKeys::Revoke)), message);
        assert_eq!(apply_error(&store(), TenantChange::Remove { name: "filed".to_owned() }), message);
        assert_eq!(apply_error(&store(), add("filed")), "tenant \"filed\" already exists");
    }

    #[test]
    fn an_unknown_tenant_cannot_be_changed() {
        assert_eq!(
            apply_error(&store(), TenantChange::Remove { name: "x".to_owned() }),
            "tenant \"x\" does not exist"
        );
        assert_eq!(apply_error(&store(), add("open")), "no tenant may be named \"open\"");
    }
}
