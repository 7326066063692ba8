//! Account numbers of tenants, which name the owners of queues. Stored in the data directory.
//!
//! Guarantees: a number is drawn at random once and never given to another tenant. A tenant that was added at run time and
//! removed loses its number for good: a tenant added under the same name later gets another one, and with it none of the
//! queues. A tenant that disappears from the config file keeps its number and its queues until it returns, because the
//! gateway cannot tell a removal from an editing mistake.
//!
//! Limits: at most `ACCOUNTS_MAX` numbers, those of removed tenants included.

use std::collections::HashSet;
use std::path::Path;

use evenkeel_policy::account::AccountNumber;
use evenkeel_server::tenant::TenantSettings;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "accounts.json";
const ACCOUNTS_MAX: usize = 100_000;

/// The account numbers of all tenants, and of those that were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accounts {
    accounts: Vec<AccountRecord>,
}

/// An account number. Field names are part of the stored format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountRecord {
    #[serde(with = "account_text")]
    number: AccountNumber,
    tenant: String,
    from: AccountOrigin,
}

/// Origin of the tenant that has an account number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AccountOrigin {
    Config,
    Added,
    /// The tenant was removed.
    Removed,
}

/// Difference between the stored account numbers and those that the current tenants need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountsChange {
    None,
    Changed,
}

impl Accounts {
    /// Reads the stored numbers; there are none before the first start.
    pub fn read(data_dir: &Path) -> Result<Self, AccountsError> {
        let Some(text) = DataDir::read(data_dir, FILE)? else { return Ok(Self::default()) };
        let invalid =
            |error| AccountsError::Invalid { path: data_dir.join(FILE).display().to_string(), error };
        serde_json::from_str(&text).map_err(invalid)
    }

    /// Stores the numbers in the data directory.
    pub fn write(&self, data_dir: &DataDir) -> Result<(), AccountsError> {
        let mut text = serde_json::to_string_pretty(self).expect("texts are JSON");
        text.push('\n');
        Ok(data_dir.replace(FILE, &text)?)
    }

    /// Returns the account number of a tenant.
    pub fn get(&self, tenant: &str) -> Option<AccountNumber> {
        let mut records = self.accounts.iter();
        let record = records.find(|record| record.tenant == tenant && record.from != AccountOrigin::Removed);
        record.map(|record| record.number)
    }

    /// Draws a number for each tenant that has none, and retires the numbers of tenants that were removed.
    pub fn update(
        &mut self,
        configured: &[TenantSettings],
        added: &[TenantSettings],
    ) -> Result<AccountsChange, AccountsError> {
        let names = |tenants: &[TenantSettings]| -> HashSet<String> {
            tenants.iter().map(|tenant| tenant.name.clone()).collect()
        };
        let configured = names(configured);
        let added = names(added);
        let before = self.accounts.clone();
        for record in &mut self.accounts {
            let is_gone = match record.from {
                AccountOrigin::Config => added.contains(&record.tenant),
                AccountOrigin::Added => !added.contains(&record.tenant),
                AccountOrigin::Removed => false,
            };
            if is_gone {
                record.from = AccountOrigin::Removed;
            }
        }
        let current = self.accounts.iter().filter(|record| record.from != AccountOrigin::Removed);
        let known: HashSet<String> = current.map(|record| record.tenant.clone()).collect();
        let mut numbers: HashSet<AccountNumber> = self.accounts.iter().map(|record| record.number).collect();
        let config = configured.into_iter().map(|tenant| (tenant, AccountOrigin::Config));
        let missing = config.chain(added.into_iter().map(|tenant| (tenant, AccountOrigin::Added)));
        for (tenant, from) in missing.filter(|(tenant, _)| !known.contains(tenant)) {
            let number = draw(&mut numbers)?;
            self.accounts.push(AccountRecord { number, tenant, from });
        }
        if self.accounts == before { Ok(AccountsChange::None) } else { Ok(AccountsChange::Changed) }
    }
}

/// Draws a number that was never drawn before.
fn draw(numbers: &mut HashSet<AccountNumber>) -> Result<AccountNumber, AccountsError> {
    if ACCOUNTS_MAX <= numbers.len() {
        return Err(AccountsError::TooMany);
    }
    loop {
        let mut random = [0; 8];
        SystemRandom::new().fill(&mut random).map_err(|_| AccountsError::NoRandomness)?;
        let number = AccountNumber::from_random(u64::from_ne_bytes(random));
        if numbers.insert(number) {
            return Ok(number);
        }
    }
}

mod account_text {
    use evenkeel_policy::account::AccountNumber;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(number: &AccountNumber, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AccountNumber, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Error when reading, drawing or storing account numbers.
#[derive(Debug, Error)]
pub enum AccountsError {
    #[error("{path}: {error}")]
    Invalid {
        path: String,
        #[source]
        error: serde_json::Error,
    },
    #[error(
        "{ACCOUNTS_MAX} account numbers were drawn, those of removed tenants included, which is the maximum"
    )]
    TooMany,
    #[error("the system's random number generator failed")]
    NoRandomness,
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(names: &[&str]) -> Vec<TenantSettings> {
        let tenant = |name: &&str| TenantSettings { name: (*name).to_owned(), ..TenantSettings::default() };
        names.iter().map(tenant).collect()
    }

    fn update(accounts: &mut Accounts, configured: &[&str], added: &[&str]) -> AccountsChange {
        accounts.update(&tenants(configured), &tenants(added)).unwrap()
    }

    #[test]
    fn each_tenant_keeps_the_number_that_was_drawn_for_it() {
        let mut accounts = Accounts::default();
        assert_eq!(update(&mut accounts, &["filed"], &["acme", "beta"]), AccountsChange::Changed);
        let numbers = ["filed", "acme", "beta"].map(|name| accounts.get(name).unwrap());
        assert_eq!(HashSet::from(numbers).len(), 3);
        assert_eq!(update(&mut accounts, &["filed"], &["beta", "acme"]), AccountsChange::None);
        assert_eq!(["filed", "acme", "beta"].map(|name| accounts.get(name).unwrap()), numbers);
    }

    #[test]
    fn a_tenant_that_was_removed_and_added_again_has_another_number() {
        let mut accounts = Accounts::default();
        update(&mut accounts, &[], &["acme"]);
        let first = accounts.get("acme");
        update(&mut accounts, &[], &[]);
        assert_eq!(accounts.get("acme"), None);
        update(&mut accounts, &[], &["acme"]);
        let second = accounts.get("acme");
        assert!(second.is_some() && second != first);
        // The same holds if it moves between the config file and the data directory.
        update(&mut accounts, &["acme"], &[]);
        let third = accounts.get("acme");
        update(&mut accounts, &[], &["acme"]);
        let all = [first, second, third, accounts.get("acme")];
        assert_eq!(HashSet::from(all).len(), 4, "{all:?}");
    }

    #[test]
    fn a_tenant_that_returns_to_the_config_file_has_its_old_number() {
        let mut accounts = Accounts::default();
        update(&mut accounts, &["filed"], &[]);
        let number = accounts.get("filed");
        assert_eq!(update(&mut accounts, &[], &[]), AccountsChange::None);
        update(&mut accounts, &["filed"], &[]);
        assert_eq!(accounts.get("filed"), number);
    }

    #[test]
    fn the_number_of_accounts_is_limited() {
        let number = |n: u64| AccountNumber::from_random(n);
        let record =
            |n| AccountRecord { number: number(n), tenant: n.to_string(), from: AccountOrigin::Removed };
        let mut accounts = Accounts { accounts: (0..ACCOUNTS_MAX as u64 - 1).map(record).collect() };
        update(&mut accounts, &[], &["last"]);
        let error = accounts.update(&[], &tenants(&["last", "one more"])).unwrap_err();
        assert!(matches!(error, AccountsError::TooMany), "{error}");
    }

    #[test]
    fn the_stored_format_is_unchanged() {
        let text = r#"{"accounts":[{"number":"123456789012","tenant":"acme","from":"added"},{"number":"210987654321","tenant":"old","from":"removed"},{"number":"111111111111","tenant":"filed","from":"config"}]}"#;
        let accounts: Accounts = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&accounts).unwrap(), text);
        assert_eq!(accounts.get("acme").map(|number| number.to_string()).as_deref(), Some("123456789012"));
        assert_eq!(accounts.get("old"), None);
        assert!(serde_json::from_str::<Accounts>(&text.replace("123456789012", "12")).is_err());
    }
}
