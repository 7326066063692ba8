//! AWS access keys of tenants. Their secrets are derived from a master key and never stored.
//!
//! Guarantees: a secret is the HMAC-SHA256 of the access key id under a master key of 256 random bits, so known
//! key pairs reveal nothing about the others. An access key id is valid as long as its tenant has the API key whose hash
//! it contains.

use core::fmt;
use std::sync::Arc;

use evenkeel_telemetry::Secret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::hex::hex;
use crate::sigv4::SignatureError;
use crate::tenant::{Tenant, TenantSettings, TenantState, Tenants};
use crate::tenant_key::TenantKey;

/// The key that all secrets are derived from.
#[derive(Clone)]
pub struct MasterKey(hmac::Key);

/// AWS credentials of a client.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Name of the tenant, a dot, and the first digits of an API key's hash.
    pub access_key_id: String,
    pub secret_access_key: Secret<String>,
}

impl MasterKey {
    /// Generates a new master key as 64 hexadecimal digits.
    pub fn draw() -> Result<Secret<String>, ring::error::Unspecified> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Secret::new(hex(&bytes)))
    }

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

    /// Derives a tenant's credentials, one pair for each of its API keys.
    pub fn credentials(&self, tenant: &TenantSettings) -> Vec<Credentials> {
        let pair = |key: &TenantKey| {
            let access_key_id = format!("{}.{}", tenant.name, key.hash.short_digits());
            let secret_access_key = Secret::new(self.secret(&access_key_id));
            Credentials { access_key_id, secret_access_key }
        };
        tenant.keys.iter().map(pair).collect()
    }

    /// Derives the secret of an access key.
    pub(crate) fn secret(&self, access_key_id: &str) -> String {
        hex(hmac::sign(&self.0, access_key_id.as_bytes()).as_ref())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// Finds the active tenant that an access key id names. An expired key is found too: only a valid signature reveals that.
pub(crate) fn tenant_of(tenants: &Tenants, access_key_id: &str) -> Result<Arc<Tenant>, SignatureError> {
    let (name, digits) = access_key_id.rsplit_once('.').ok_or(SignatureError::UnknownKey)?;
    let tenant = tenants.get(name).ok_or(SignatureError::UnknownKey)?;
    let key = tenant.settings.keys.iter().find(|key| key.hash.short_digits() == digits);
    let by_key = key.and_then(|key| tenants.with_hash(&key.hash)).ok_or(SignatureError::UnknownKey)?;
    match tenant.settings.state {
        TenantState::Active => Ok(by_key.clone()),
        TenantState::Disabled => Err(SignatureError::Disabled),
    }
}

/// Parse error of a master key. It does not contain the text, which may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a master key must be 64 hexadecimal digits")]
pub struct MasterKeyError;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_key::KeyHash;

    fn tenants(state: TenantState) -> Tenants {
        let keys = ["ek-1", "ek-2"].map(|key| TenantKey::unnamed(KeyHash::of(key))).into();
        let acme = TenantSettings { name: "a.b".to_owned(), keys, state, ..TenantSettings::default() };
        Tenants::new(vec![acme], Vec::new()).unwrap()
    }

    #[test]
    fn each_api_key_has_an_access_key_and_unknown_ids_are_rejected() {
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
            assert_eq!(tenant_of(&tenants, unknown).unwrap_err(), SignatureError::UnknownKey);
        }
    }

    #[test]
    fn the_access_key_of_a_disabled_tenant_gets_access_denied() {
        let master = MasterKey::parse(&"0".repeat(64)).unwrap();
        let tenants = tenants(TenantState::Disabled);
        let pair = &master.credentials(&tenants.get("a.b").unwrap().settings)[0];
        assert_eq!(tenant_of(&tenants, &pair.access_key_id).unwrap_err(), SignatureError::Disabled);
    }

    #[test]
    fn an_invalid_master_key_is_rejected_and_a_valid_one_never_printed() {
        for bad in ["", "00", &"g".repeat(64), &"0".repeat(63), &"0".repeat(65)] {
            assert_eq!(MasterKey::parse(bad).unwrap_err(), MasterKeyError);
        }
        assert_eq!(format!("{:?}", MasterKey::parse(&"a".repeat(64))), "Ok(MasterKey(..))");
    }
}
