//! Access keys: named after their tenants, with secrets that are derived and never stored.
//!
//! Bound: a secret is HMAC-SHA256 of the access key id under a master key of 256 random bits; who holds any number of
//! pairs learns nothing about another. An access key id is good as long as its tenant holds the API key it names.

use core::fmt;
use std::sync::Arc;

use evenkeel_server::api_key::KeyHash;
use evenkeel_server::tenant::{Tenant, TenantSettings, TenantState, Tenants};
use evenkeel_telemetry::Secret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::attribute::hex;
use crate::error::SqsError;

/// Digits of an API key's hash that an access key id names it by.
const NAMED_BY: usize = 8;

/// What all secrets are derived from.
#[derive(Clone)]
pub struct MasterKey(hmac::Key);

/// What a client signs with.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Names the tenant, and one of its API keys.
    pub access_key_id: String,
    /// Signs.
    pub secret_access_key: Secret<String>,
}

impl MasterKey {
    /// Draws a new one, as text: 64 hexadecimal digits.
    pub fn draw() -> Result<Secret<String>, ring::error::Unspecified> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Secret::new(hex(&bytes)))
    }

    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, MasterKeyError> {
        let digits: Option<Vec<u8>> = text
            .trim()
            .chars()
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or(MasterKeyError)?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// Derives what a tenant's clients sign with, one pair for each of its API keys.
    pub fn credentials(&self, tenant: &TenantSettings) -> Vec<Credentials> {
        let of_key = |hash: &KeyHash| {
            let access_key_id = format!("{}.{}", tenant.name, named_by(hash));
            let secret_access_key = Secret::new(self.secret(&access_key_id));
            Credentials { access_key_id, secret_access_key }
        };
        tenant.key_hashes.iter().map(of_key).collect()
    }

    /// Derives an access key's secret.
    pub(crate) fn secret(&self, access_key_id: &str) -> String {
        hex(hmac::sign(&self.0, access_key_id.as_bytes()).as_ref())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// Finds the tenant that an access key id names.
pub(crate) fn tenant_of(tenants: &Tenants, access_key_id: &str) -> Result<Arc<Tenant>, SqsError> {
    let (name, digits) = access_key_id.rsplit_once('.').ok_or(SqsError::UnknownKey)?;
    let tenant = tenants.get(name).ok_or(SqsError::UnknownKey)?;
    if !tenant.settings.key_hashes.iter().any(|hash| named_by(hash) == digits) {
        return Err(SqsError::UnknownKey);
    }
    match tenant.settings.state {
        TenantState::Active => Ok(tenant.clone()),
        TenantState::Disabled => Err(SqsError::Disabled),
    }
}

fn named_by(hash: &KeyHash) -> String {
    let text = hash.to_string();
    let digits = text.split(':').next_back().unwrap_or_default();
    digits.chars().take(NAMED_BY).collect()
}

/// A text that is no master key; it is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterKeyError;

impl fmt::Display for MasterKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a master key is 64 hexadecimal digits")
    }
}

impl core::error::Error for MasterKeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(state: TenantState) -> Tenants {
        let key_hashes = vec![KeyHash::of("ek-1"), KeyHash::of("ek-2")];
        let acme =
            TenantSettings { name: "a.b".to_owned(), key_hashes, state, ..TenantSettings::default() };
        Tenants::new(vec![acme], Vec::new()).unwrap()
    }

    #[test]
    fn every_api_key_has_an_access_key_and_another_has_none() {
        let master = MasterKey::parse(MasterKey::draw().unwrap().expose()).unwrap();
        let tenants = tenants(TenantState::Active);
        let pairs = master.credentials(&tenants.get("a.b").unwrap().settings);
        assert_eq!(pairs.len(), 2);
        assert_ne!(pairs[0].secret_access_key.expose(), pairs[1].secret_access_key.expose());
        for pair in &pairs {
            assert_eq!(tenant_of(&tenants, &pair.access_key_id).unwrap().settings.name, "a.b");
            assert_eq!(&master.secret(&pair.access_key_id), pair.secret_access_key.expose());
        }
        for unknown in ["", "a.b", "a.b.00000000", "b.12345678", "AKIAIOSFODNN7EXAMPLE"] {
            assert_eq!(tenant_of(&tenants, unknown).unwrap_err(), SqsError::UnknownKey);
        }
    }

    #[test]
    fn a_disabled_tenants_key_is_known_and_refused() {
        let master = MasterKey::parse(&"0".repeat(64)).unwrap();
        let tenants = tenants(TenantState::Disabled);
        let pair = &master.credentials(&tenants.get("a.b").unwrap().settings)[0];
        assert_eq!(tenant_of(&tenants, &pair.access_key_id).unwrap_err(), SqsError::Disabled);
    }

    #[test]
    fn what_is_no_master_key_is_refused_and_never_shown() {
        for bad in ["", "00", &"g".repeat(64), &"0".repeat(63), &"0".repeat(65)] {
            assert_eq!(MasterKey::parse(bad).unwrap_err(), MasterKeyError);
        }
        assert_eq!(format!("{:?}", MasterKey::parse(&"a".repeat(64))), "Ok(MasterKey(..))");
    }
}
