//! `[[tenants]]`: API keys, weights and limits of tenants.

use std::collections::BTreeMap;

use evenkeel_policy::class::{Class, ClassRule};
use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::budget::{BudgetKind, Budgets};
use evenkeel_server::money::Money;
use evenkeel_server::tenant::{ACT_FOR_ALL, KEYS_MAX, TenantSettings, TenantState, Tenants, TenantsError};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_server::unix_seconds::UnixSeconds;
use serde_json::{Map, Value as Json, json};

use super::effective::toml_value;
use super::llm::check_name;
use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::sql::{KnownDatasources, SessionSettings, read_tenant_sql};
use super::value::{ConfigValue as _, Float, Integer};

const STATES: &[(&str, TenantState)] =
    &[("active", TenantState::Active), ("disabled", TenantState::Disabled)];
/// The largest integer in TOML is `i64::MAX`.
const COUNTS: std::ops::RangeInclusive<Integer> = Integer(0)..=Integer(i64::MAX);
const CONCURRENCY: std::ops::RangeInclusive<Integer> = Integer(0)..=Integer(1_000_000);
const QUEUES: std::ops::RangeInclusive<Integer> = Integer(0)..=Integer(1_000_000);
const MODELS_MAX: usize = 1_000;
const ACT_FOR_MAX: usize = 1_000;

/// Origin of a list of tenants.
#[derive(Clone, Copy, Debug)]
pub(super) enum TenantsFrom<'a> {
    /// The config file; datasources that it does not have are errors, as are old names of renamed keys.
    ConfigFile(&'a KnownDatasources),
    /// An API request; old names of renamed keys are errors.
    Request,
    /// A file in the data directory, possibly written by an earlier version; old names of renamed keys are accepted.
    Store,
}

pub(super) fn read(
    root: &mut Section<'_>,
    admin_key_hashes: &[KeyHash],
    from: TenantsFrom<'_>,
) -> Vec<TenantSettings> {
    let known = match from {
        TenantsFrom::ConfigFile(known) => Some(known),
        TenantsFrom::Request | TenantsFrom::Store => None,
    };
    let mut tenants = Vec::new();
    let mut origins: BTreeMap<String, ValueSource> = BTreeMap::new();
    for (origin, mut table) in root.sections("tenants") {
        if matches!(from, TenantsFrom::Store) {
            table.accept_old_name("state");
        }
        let Some(tenant) = read_tenant(&mut table, &origin, known) else { continue };
        if let Some(first) = origins.get(&tenant.name) {
            let message = format!("two tenants are named {:?}; the first is at {first}", tenant.name);
            table.error(&origin, message);
            continue;
        }
        origins.insert(tenant.name.clone(), origin);
        tenants.push(tenant);
    }
    if let Err(error) = Tenants::new(tenants.clone(), admin_key_hashes.to_vec()) {
        let origin = tenant_name(&error).and_then(|name| origins.get(name)).unwrap_or(&ValueSource::Default);
        root.error(origin, error);
    }
    tenants
}

/// Returns the name of the tenant that an error is about.
fn tenant_name(error: &TenantsError) -> Option<&str> {
    match error {
        TenantsError::TooManyKeys { name }
        | TenantsError::Reserved { name }
        | TenantsError::DuplicateName { name }
        | TenantsError::DuplicateKeyName { name, .. }
        | TenantsError::DuplicateKey { name } => Some(name),
        TenantsError::TooMany | TenantsError::NoName | TenantsError::Open | TenantsError::Clear => None,
    }
}

/// Reads a tenant; `None`, with an error, if it has no name.
fn read_tenant(
    table: &mut Section<'_>,
    origin: &ValueSource,
    known: Option<&KnownDatasources>,
) -> Option<TenantSettings> {
    let name = table.optional::<String>("name");
    let keys = read_keys(table);
    let weight = table.read("weight", Weight::ONE).value;
    let rpm = table.optional_within("rpm", COUNTS).map(Integer::as_u64);
    let tpm = table.optional_within("tpm", COUNTS).map(Integer::as_u64);
    let budgets = read_budgets(table);
    let concurrency_max = table.optional_within("concurrency_max", CONCURRENCY).map(Integer::as_u32);
    let (priority, priority_max) = read_priority(table);
    let models = table.read("models", Vec::<String>::new());
    if models.value.len() > MODELS_MAX || models.value.iter().any(String::is_empty) {
        table.error(
            &models.origin,
            format!("models must list at most {MODELS_MAX} names, none of them empty"),
        );
    }
    let act_for = read_act_for(table);
    let sql = read_tenant_sql(table, known);
    let queues_max = table.optional_within("queues_max", QUEUES).map(Integer::as_u32);
    let state = table.one_of("state", "active", STATES);
    let Some(name) = name else {
        table.error(origin, "a tenant needs a name");
        return None;
    };
    if let Err(message) = check_name(&name.value) {
        table.error(&name.origin, message);
    }
    Some(TenantSettings {
        name: name.value,
        keys,
        weight,
        rpm,
        tpm,
        budgets,
        concurrency_max,
        priority,
        priority_max,
        models: models.value,
        sql,
        act_for,
        queues_max,
        account: None,
        state,
    })
}

fn read_budgets(table: &mut Section<'_>) -> Budgets {
    let mut budgets = Budgets::default();
    for budget in BudgetKind::ALL {
        let limit = if budget.is_money() {
            let units = table.optional_within(budget.name(), Float(0.0)..=Float(Money::UNITS_MAX));
            units.and_then(|units| Money::from_units(units.0)).map(Money::as_nanos)
        } else {
            table.optional_within(budget.name(), COUNTS).map(Integer::as_u64)
        };
        budgets.set(budget, limit);
    }
    budgets
}

/// Returns a limit as in the configuration; null if there is none.
pub(crate) fn budget_to_json(budget: BudgetKind, amount: Option<u64>) -> Json {
    match amount {
        Some(nanos) if budget.is_money() => Float(Money::from_nanos(nanos).as_units()).to_json(),
        tokens => json!(tokens),
    }
}

/// Reads the class of requests that name none, and the highest class.
fn read_priority(table: &mut Section<'_>) -> (Option<Class>, Option<Class>) {
    let priority = read_class(table, "priority");
    let priority_max = read_class(table, "priority_max");
    if let Err(error) = ClassRule::new(priority.value, priority_max.value) {
        table.error(&priority.origin, error);
    }
    (priority.value, priority_max.value)
}

fn read_class(table: &mut Section<'_>, key: &'static str) -> SourcedValue<Option<Class>> {
    let Some(name) = table.optional::<String>(key) else {
        return SourcedValue { value: None, origin: ValueSource::Default };
    };
    let class = name.value.parse::<Class>();
    if class.is_err() {
        table.error(&name.origin, format!("{key} must be one of {}, not {:?}", Class::NAMES, name.value));
    }
    SourcedValue { value: class.ok(), origin: name.origin }
}

/// Reads a tenant's keys: those of `key_hashes`, then those of `[[tenants.keys]]`.
fn read_keys(table: &mut Section<'_>) -> Vec<TenantKey> {
    let mut keys: Vec<TenantKey> = read_key_hashes(table).into_iter().map(TenantKey::unnamed).collect();
    for (origin, mut entry) in table.sections("keys") {
        let name = entry.optional::<String>("name");
        let hash = entry.optional::<KeyHash>("hash");
        let expires_at = entry.optional::<UnixSeconds>("expires_at").map(|setting| setting.value);
        let priority = read_class(&mut entry, "priority").value;
        if let Some(name) = &name
            && let Err(message) = check_name(&name.value)
        {
            entry.error(&name.origin, message);
        }
        let Some(hash) = hash.map(|hash| hash.value) else {
            entry.error(&origin, "a key needs a hash (`evenkeel tenant key` prints one)");
            continue;
        };
        let unnamed = TenantKey::unnamed(hash);
        let name = name.map_or(unnamed.name, |name| name.value);
        keys.push(TenantKey { name, hash, expires_at, priority });
    }
    keys
}

/// Reads the hashes of a tenant's keys that have no name.
///
/// An empty list is an error: it looks like a tenant with keys, but no client could authenticate as it. A tenant that
/// needs no keys, because it only owns dispatched jobs, leaves the setting out.
fn read_key_hashes(table: &mut Section<'_>) -> Vec<KeyHash> {
    let Some(key_hashes) = table.optional::<Vec<KeyHash>>("key_hashes") else { return Vec::new() };
    if key_hashes.value.is_empty() {
        table.error(
            &key_hashes.origin,
            "key_hashes is empty, so no client can authenticate as this tenant; add a hash (`evenkeel tenant key` \
             prints one) or remove the line",
        );
    }
    if key_hashes.value.len() > KEYS_MAX {
        table.error(&key_hashes.origin, format!("key_hashes must list at most {KEYS_MAX} hashes"));
    }
    key_hashes.value
}

/// Reads the first levels of fairness keys that a tenant may use in queues of others.
fn read_act_for(table: &mut Section<'_>) -> Vec<String> {
    let act_for = table.read("act_for", Vec::<String>::new());
    let is_first_level = |entry: &String| {
        let is_plain = entry.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        entry == ACT_FOR_ALL || (!entry.is_empty() && is_plain && !entry.contains('*'))
    };
    if ACT_FOR_MAX < act_for.value.len() || !act_for.value.iter().all(is_first_level) {
        let message = format!(
            "act_for must list at most {ACT_FOR_MAX} first levels of fairness keys, such as \"acme\", or \"*\" for all; \
             an entry is not empty and contains no `/`, no space and no other `*`"
        );
        table.error(&act_for.origin, message);
    }
    act_for.value
}

/// Returns a tenant's settings by name, without its key hashes.
pub fn describe(tenant: &TenantSettings) -> Map<String, Json> {
    let state = STATES.iter().find(|(_, state)| *state == tenant.state).map(|(name, _)| *name);
    let session = (!tenant.sql.settings.is_empty()).then(|| SessionSettings(tenant.sql.settings.clone()));
    let budget = |budget: BudgetKind| (budget.name(), budget_to_json(budget, tenant.budgets.limit(budget)));
    let settings = [
        ("name", json!(tenant.name)),
        ("weight", Float(tenant.weight.as_f64()).to_json()),
        ("rpm", json!(tenant.rpm)),
        ("tpm", json!(tenant.tpm)),
        budget(BudgetKind::TokensPerDay),
        budget(BudgetKind::TokensPerMonth),
        budget(BudgetKind::MoneyPerDay),
        budget(BudgetKind::MoneyPerMonth),
        ("concurrency_max", json!(tenant.concurrency_max)),
        ("priority", json!(tenant.priority.map(Class::name))),
        ("priority_max", json!(tenant.priority_max.map(Class::name))),
        ("models", json!(tenant.models)),
        ("datasources", json!(tenant.sql.datasources)),
        ("role", json!(tenant.sql.role)),
        ("set", session.map_or(Json::Null, |session| session.to_json())),
        ("act_for", json!(tenant.act_for)),
        ("queues_max", json!(tenant.queues_max)),
        ("state", json!(state)),
    ];
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Serializes tenants to TOML, including key hashes; the inverse of [`read`].
pub(crate) fn to_toml(tenants: &[TenantSettings]) -> String {
    let mut text = String::new();
    for tenant in tenants {
        let mut settings = describe(tenant);
        // Earlier versions read `key_hashes` only.
        if !tenant.keys.is_empty() && tenant.keys.iter().all(TenantKey::is_unnamed) {
            let hashes: Vec<String> = tenant.keys.iter().map(|key| key.hash.to_string()).collect();
            settings.insert("key_hashes".to_owned(), json!(hashes));
        } else if !tenant.keys.is_empty() {
            settings.insert("keys".to_owned(), tenant.keys.iter().map(key_to_json).collect());
        }
        text.push_str(&table_to_toml("tenants", &settings));
    }
    text
}

fn key_to_json(key: &TenantKey) -> Json {
    let mut entry = json!({"name": key.name, "hash": key.hash.to_string()});
    if let Some(at) = key.expires_at {
        entry["expires_at"] = json!(at.to_rfc3339());
    }
    if let Some(priority) = key.priority {
        entry["priority"] = json!(priority.name());
    }
    entry
}

/// Serializes one entry of a list to TOML, without settings that are `null`.
pub(crate) fn table_to_toml(list: &str, settings: &Map<String, Json>) -> String {
    let mut text = format!("[[{list}]]\n");
    for (key, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
        text.push_str(&format!("{} = {}\n", toml_value(&json!(key)), toml_value(value)));
    }
    text + "\n"
}
