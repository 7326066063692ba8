//! The tenants that were added at run time: kept in a file of the data folder, changed by command or by API.
//!
//! Bound: a change is decided as a whole, together with the tenants of the config file, before anything is written. A
//! key is told once, to whoever asked for it; what is kept is its hash.

use std::fmt;
use std::path::Path;

use evenkeel_server::api_key::{KeyHash, make_key};
use evenkeel_server::tenant::{TenantSettings, Tenants, TenantsError};
use evenkeel_sqs::MasterKey;
use evenkeel_telemetry::Secret;
use serde_json::{Map, Value as Json, json};

use crate::config::{ConfigErrors, describe, fingerprint, read_tenant, read_tenants, to_toml};
use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "tenants.toml";

/// Every tenant, by who may change it.
#[derive(Clone, Debug, Default)]
pub struct TenantStore {
    /// Those of the config file, which only its owner changes.
    pub configured: Vec<TenantSettings>,
    /// Those added at run time.
    pub added: Vec<TenantSettings>,
}

/// What to do with a tenant.
#[derive(Clone, Debug)]
pub enum TenantChange {
    /// Takes it in, with a new key.
    Add(TenantSettings),
    /// Changes what is said of it, and leaves it its keys.
    Set {
        /// Whose.
        name: String,
        /// The settings that change, by name; `null` is back to the default.
        settings: Map<String, Json>,
    },
    /// Gives it a new key.
    Rotate {
        /// Whose.
        name: String,
        /// What becomes of the old ones.
        old_keys: OldKeys,
    },
    /// Forgets it.
    Remove {
        /// Whom.
        name: String,
    },
}

impl fmt::Display for TenantChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(tenant) => write!(f, "tenant {:?} added", tenant.name),
            Self::Set { name, .. } => write!(f, "tenant {name:?} changed"),
            Self::Rotate { name, .. } => write!(f, "tenant {name:?} has a new key"),
            Self::Remove { name } => write!(f, "tenant {name:?} removed"),
        }
    }
}

/// What becomes of a tenant's keys when it gets another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKeys {
    /// They end.
    Revoke,
    /// They stay good beside the new one, until the next change that ends them.
    Keep,
}

impl TenantStore {
    /// Reads what was added at run time beside what is configured; the two may not name the same tenant or key.
    pub fn read(
        data_dir: &Path,
        configured: Vec<TenantSettings>,
        admin: &[KeyHash],
    ) -> Result<Self, TenantStoreError> {
        let added = match DataDir::read(data_dir, FILE)? {
            Some(text) => read_tenants(&data_dir.join(FILE).to_string_lossy(), &text)?,
            None => Vec::new(),
        };
        let book = Self { configured, added };
        book.check(admin)?;
        Ok(book)
    }

    /// All of them.
    pub fn all(&self) -> Vec<TenantSettings> {
        self.configured.iter().chain(&self.added).cloned().collect()
    }

    /// Describes all of them, without their keys, for programs.
    pub fn describe(&self) -> Json {
        let filed = self.configured.iter().map(|tenant| (tenant, "config"));
        let added = self.added.iter().map(|tenant| (tenant, "added"));
        let described = filed.chain(added).map(|(tenant, from)| {
            let mut settings = describe(tenant);
            let keys: Vec<String> = tenant.key_hashes.iter().map(fingerprint).collect();
            settings.insert("keys".to_owned(), json!(keys));
            settings.insert("from".to_owned(), json!(from));
            Json::Object(settings)
        });
        json!({"tenants": described.collect::<Vec<_>>()})
    }

    /// Derives what a tenant's SQS clients sign with, one pair for each of its keys, the newest last.
    pub fn sqs_keys(&self, name: &str, master: &MasterKey) -> Result<Vec<Json>, TenantStoreError> {
        let tenant = self.all().into_iter().find(|tenant| tenant.name == name);
        let tenant = tenant.ok_or_else(|| TenantStoreError::Unknown { name: name.to_owned() })?;
        let pairs = master.credentials(&tenant).into_iter().map(|pair| {
            json!({"access_key_id": pair.access_key_id, "secret_access_key": pair.secret_access_key.expose()})
        });
        Ok(pairs.collect())
    }

    /// Decides a change: the book after it, and the key that came of it.
    pub fn apply(
        &self,
        change: TenantChange,
        admin: &[KeyHash],
    ) -> Result<(Self, Option<Secret<String>>), TenantStoreError> {
        let mut next = self.clone();
        let key = match change {
            TenantChange::Add(mut tenant) => {
                if self.all().iter().any(|other| other.name == tenant.name) {
                    return Err(TenantStoreError::Exists { name: tenant.name });
                }
                let key = new_key()?;
                tenant.key_hashes = vec![KeyHash::of(key.expose())];
                next.added.push(tenant);
                Some(key)
            }
            TenantChange::Set { name, settings } => {
                let at = self.added_at(&name)?;
                next.added[at] = with_settings(&self.added[at], settings)?;
                None
            }
            TenantChange::Rotate { name, old_keys } => {
                let at = self.added_at(&name)?;
                let key = new_key()?;
                let hashes = &mut next.added[at].key_hashes;
                match old_keys {
                    OldKeys::Revoke => hashes.clear(),
                    OldKeys::Keep => {}
                }
                hashes.push(KeyHash::of(key.expose()));
                Some(key)
            }
            TenantChange::Remove { name } => {
                next.added.remove(self.added_at(&name)?);
                None
            }
        };
        next.check(admin)?;
        Ok((next, key))
    }

    /// Writes down what was added at run time.
    pub fn write(&self, folder: &DataDir) -> Result<(), TenantStoreError> {
        Ok(folder.replace(FILE, &to_toml(&self.added))?)
    }

    fn added_at(&self, name: &str) -> Result<usize, TenantStoreError> {
        if self.configured.iter().any(|tenant| tenant.name == name) {
            return Err(TenantStoreError::Configured { name: name.to_owned() });
        }
        let at = self.added.iter().position(|tenant| tenant.name == name);
        at.ok_or_else(|| TenantStoreError::Unknown { name: name.to_owned() })
    }

    fn check(&self, admin: &[KeyHash]) -> Result<(), TenantStoreError> {
        Tenants::new(self.all(), admin.to_vec())?;
        Ok(())
    }
}

/// A tenant with other settings and the same name and keys.
fn with_settings(
    tenant: &TenantSettings,
    settings: Map<String, Json>,
) -> Result<TenantSettings, TenantStoreError> {
    let own = |key: &&str| settings.contains_key(*key);
    if let Some(key) = ["name", "key_hashes"].into_iter().find(own) {
        return Err(TenantStoreError::Fixed { key });
    }
    let mut all = describe(tenant);
    all.extend(settings);
    Ok(TenantSettings { key_hashes: tenant.key_hashes.clone(), ..read_tenant(&all)? })
}

fn new_key() -> Result<Secret<String>, TenantStoreError> {
    make_key().map(Secret::new).map_err(|_| TenantStoreError::NoRandomness)
}

/// Why a change is not made, or the file not read.
#[derive(Debug)]
pub enum TenantStoreError {
    /// There is one of this name.
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// It is the config file's, which only its owner changes.
    Configured {
        /// Its name.
        name: String,
    },
    /// The setting does not change as long as there is the tenant.
    Fixed {
        /// Its key.
        key: &'static str,
    },
    /// The tenants cannot all be at once.
    Tenants(TenantsError),
    /// The settings, or the lines of the file, cannot be.
    Settings(ConfigErrors),
    /// The folder does not do its part.
    Folder(DataDirError),
    /// The system gives no random numbers.
    NoRandomness,
}

impl fmt::Display for TenantStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists { name } => write!(f, "there is a tenant {name:?} already"),
            Self::Unknown { name } => write!(f, "there is no tenant {name:?}"),
            Self::Configured { name } => {
                write!(f, "tenant {name:?} is in the config file; change it there, then reload (SIGHUP)")
            }
            Self::Fixed { key } => write!(f, "{key} stays as long as there is the tenant"),
            Self::Tenants(error) => error.fmt(f),
            Self::Settings(mistakes) => mistakes.fmt(f),
            Self::Folder(error) => error.fmt(f),
            Self::NoRandomness => f.write_str("the system gives no random numbers"),
        }
    }
}

impl std::error::Error for TenantStoreError {}

impl From<TenantsError> for TenantStoreError {
    fn from(error: TenantsError) -> Self {
        Self::Tenants(error)
    }
}

impl From<ConfigErrors> for TenantStoreError {
    fn from(mistakes: ConfigErrors) -> Self {
        Self::Settings(mistakes)
    }
}

impl From<DataDirError> for TenantStoreError {
    fn from(error: DataDirError) -> Self {
        Self::Folder(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_server::tenant::KEYS_MAX;

    fn tenant(name: &str) -> TenantSettings {
        TenantSettings { name: name.to_owned(), ..TenantSettings::default() }
    }

    fn book() -> TenantStore {
        TenantStore { configured: vec![tenant("filed")], added: Vec::new() }
    }

    fn rotate(name: &str, old_keys: OldKeys) -> TenantChange {
        TenantChange::Rotate { name: name.to_owned(), old_keys }
    }

    fn refused(book: &TenantStore, change: TenantChange) -> String {
        book.apply(change, &[]).unwrap_err().to_string()
    }

    #[test]
    fn a_new_tenant_has_one_key_whose_hash_alone_is_kept() {
        let (book, key) = book().apply(TenantChange::Add(tenant("acme")), &[]).unwrap();
        let key = key.unwrap();
        let hashes = &book.added[0].key_hashes;
        assert!(hashes.len() == 1 && hashes[0].matches(&KeyHash::of(key.expose())));
        assert!(!format!("{book:?} {key:?}").contains(key.expose()));
    }

    #[test]
    fn rotating_ends_the_old_key_unless_it_shall_stay() {
        let (first, _) = book().apply(TenantChange::Add(tenant("acme")), &[]).unwrap();
        let (both, second) = first.apply(rotate("acme", OldKeys::Keep), &[]).unwrap();
        assert_eq!(both.added[0].key_hashes.len(), 2);
        let (alone, third) = both.apply(rotate("acme", OldKeys::Revoke), &[]).unwrap();
        assert_eq!(alone.added[0].key_hashes.len(), 1);
        assert!(alone.added[0].key_hashes[0].matches(&KeyHash::of(third.unwrap().expose())));
        assert!(!alone.added[0].key_hashes[0].matches(&KeyHash::of(second.unwrap().expose())));
    }

    #[test]
    fn settings_change_and_keys_stay() {
        let (first, key) = book().apply(TenantChange::Add(tenant("acme")), &[]).unwrap();
        let set = |text: &str| TenantChange::Set {
            name: "acme".to_owned(),
            settings: serde_json::from_str(text).unwrap(),
        };
        let (limited, none) = first.apply(set(r#"{"weight": 2.5, "rpm": 60}"#), &[]).unwrap();
        let acme = &limited.added[0];
        assert_eq!((acme.weight.as_f64(), acme.rpm, none.is_some()), (2.5, Some(60), false));
        assert!(acme.key_hashes[0].matches(&KeyHash::of(key.unwrap().expose())));
        let (freed, _) = limited.apply(set(r#"{"rpm": null}"#), &[]).unwrap();
        assert_eq!((freed.added[0].weight.as_f64(), freed.added[0].rpm), (2.5, None));
        for (text, told) in [
            (r#"{"name": "b"}"#, "name stays as long as there is the tenant"),
            (r#"{"key_hashes": []}"#, "key_hashes stays as long as there is the tenant"),
            (r#"{"weight": 0}"#, "weight must be a number from 0.01 to 1000"),
        ] {
            assert_eq!(refused(&first, set(text)), told);
        }
    }

    #[test]
    fn keys_that_stay_have_a_limit() {
        let (mut book, _) = book().apply(TenantChange::Add(tenant("acme")), &[]).unwrap();
        for _ in 1..KEYS_MAX {
            book = book.apply(rotate("acme", OldKeys::Keep), &[]).unwrap().0;
        }
        assert_eq!(refused(&book, rotate("acme", OldKeys::Keep)), "tenant \"acme\" has more than 16 keys");
    }

    #[test]
    fn the_config_files_tenants_are_its_owners() {
        let told = "tenant \"filed\" is in the config file; change it there, then reload (SIGHUP)";
        assert_eq!(refused(&book(), rotate("filed", OldKeys::Revoke)), told);
        assert_eq!(refused(&book(), TenantChange::Remove { name: "filed".to_owned() }), told);
        assert_eq!(
            refused(&book(), TenantChange::Add(tenant("filed"))),
            "there is a tenant \"filed\" already"
        );
    }

    #[test]
    fn who_is_not_there_cannot_be_changed() {
        assert_eq!(
            refused(&book(), TenantChange::Remove { name: "x".to_owned() }),
            "there is no tenant \"x\""
        );
        assert_eq!(refused(&book(), TenantChange::Add(tenant("open"))), "no tenant may be named \"open\"");
    }
}
