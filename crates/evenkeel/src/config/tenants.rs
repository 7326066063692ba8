//! `[[tenants]]`: who may ask, with which keys, how much.

use std::collections::BTreeMap;

use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::tenant::{KEYS_MAX, TenantSettings, TenantState, Tenants, TenantsError};
use serde_json::{Map, Value as Json, json};

use super::effective::toml_text;
use super::llm::check_name;
use super::reader::Section;
use super::source::ValueSource;
use super::value::{ConfigValue as _, Float, Integer};

const STANDINGS: &[(&str, TenantState)] =
    &[("active", TenantState::Active), ("disabled", TenantState::Disabled)];
/// As many requests or tokens as TOML can count.
const PER_MINUTE: std::ops::RangeInclusive<Integer> = Integer(0)..=Integer(i64::MAX);
const CONCURRENCY: std::ops::RangeInclusive<Integer> = Integer(0)..=Integer(1_000_000);
const MODELS_MAX: usize = 1_000;

pub(super) fn read(root: &mut Section<'_>, admin: &[KeyHash]) -> Vec<TenantSettings> {
    let mut tenants = Vec::new();
    let mut places: BTreeMap<String, ValueSource> = BTreeMap::new();
    for (origin, mut table) in root.sections("tenants") {
        let Some(tenant) = tenant(&mut table, &origin) else { continue };
        if let Some(first) = places.get(&tenant.name) {
            let what = format!("two tenants are named {:?}; the first is at {first}", tenant.name);
            table.error(&origin, what);
            continue;
        }
        places.insert(tenant.name.clone(), origin);
        tenants.push(tenant);
    }
    if let Err(wrong) = Tenants::new(tenants.clone(), admin.to_vec()) {
        let origin = wrong_one(&wrong).and_then(|name| places.get(name)).unwrap_or(&ValueSource::Default);
        root.error(origin, wrong);
    }
    tenants
}

fn wrong_one(wrong: &TenantsError) -> Option<&str> {
    match wrong {
        TenantsError::TooManyKeys { name }
        | TenantsError::Reserved { name }
        | TenantsError::DuplicateName { name }
        | TenantsError::DuplicateKey { name } => Some(name),
        TenantsError::TooMany | TenantsError::NoName | TenantsError::Open | TenantsError::Clear => None,
    }
}

/// Reads a tenant; one without a name is a mistake, and none.
fn tenant(table: &mut Section<'_>, origin: &ValueSource) -> Option<TenantSettings> {
    let name = table.optional::<String>("name");
    let key_hashes = table.read("key_hashes", Vec::<KeyHash>::new());
    if KEYS_MAX < key_hashes.value.len() {
        table.error(&key_hashes.origin, format!("key_hashes must be at most {KEYS_MAX}"));
    }
    let weight = table.read("weight", Weight::ONE).value;
    let rpm = table.optional_within("rpm", PER_MINUTE).map(Integer::as_u64);
    let tpm = table.optional_within("tpm", PER_MINUTE).map(Integer::as_u64);
    let concurrency_max = table.optional_within("concurrency_max", CONCURRENCY).map(Integer::as_u32);
    let models = table.read("models", Vec::<String>::new());
    if MODELS_MAX < models.value.len() || models.value.iter().any(String::is_empty) {
        table.error(&models.origin, format!("models must be at most {MODELS_MAX} names"));
    }
    let standing = table.word("standing", "active", STANDINGS);
    let Some(name) = name else {
        table.error(origin, "a tenant needs a name");
        return None;
    };
    if let Err(what) = check_name(&name.value) {
        table.error(&name.origin, what);
    }
    Some(TenantSettings {
        name: name.value,
        key_hashes: key_hashes.value,
        weight,
        rpm,
        tpm,
        concurrency_max,
        models: models.value,
        state: standing,
    })
}

/// Describes a tenant without its keys, by the names of its settings.
pub fn describe(tenant: &TenantSettings) -> Map<String, Json> {
    let standing = STANDINGS.iter().find(|(_, standing)| *standing == tenant.state).map(|(word, _)| *word);
    let settings = [
        ("name", json!(tenant.name)),
        ("weight", Float(tenant.weight.as_f64()).show()),
        ("rpm", json!(tenant.rpm)),
        ("tpm", json!(tenant.tpm)),
        ("concurrency_max", json!(tenant.concurrency_max)),
        ("models", json!(tenant.models)),
        ("standing", json!(standing)),
    ];
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Writes tenants as a file that reads as the same tenants, keys included.
pub(crate) fn to_toml(tenants: &[TenantSettings]) -> String {
    let mut text = String::new();
    for tenant in tenants {
        let hashes: Vec<String> = tenant.key_hashes.iter().map(ToString::to_string).collect();
        let mut settings = describe(tenant);
        settings.insert("key_hashes".to_owned(), json!(hashes));
        text.push_str(&table_of("tenants", &settings));
    }
    text
}

/// Writes one entry of a list as a file would; what is `null` is left out.
pub(crate) fn table_of(list: &str, settings: &Map<String, Json>) -> String {
    let mut text = format!("[[{list}]]\n");
    for (key, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
        text.push_str(&format!("{} = {}\n", toml_text(&json!(key)), toml_text(value)));
    }
    text + "\n"
}
