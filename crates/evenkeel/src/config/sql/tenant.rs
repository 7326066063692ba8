//! Settings of `[[tenants]]` for the SQL API: `datasources`, `role` and `set`.

use evenkeel_postgres::SETTINGS_MAX;
use evenkeel_server::tenant::TenantSql;
use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::{DATASOURCES_MAX, KnownDatasources};
use crate::config::reader::{Section, SourcedValue};
use crate::config::source::ValueSource;
use crate::config::value::ConfigValue;

/// Longest role name; PostgreSQL's own limit of identifiers.
const ROLE_BYTES_MAX: usize = 63;
const SETTING_NAME_BYTES_MAX: usize = 128;
const SETTING_VALUE_BYTES_MAX: usize = 1_024;
/// Settings by which the gateway itself controls a session.
const RESERVED_SETTINGS: &[&str] =
    &["default_transaction_read_only", "role", "session_authorization", "transaction_read_only"];

/// Names and values of session settings, such as `{"app.tenant" = "acme"}`, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::config) struct SessionSettings(pub(in crate::config) Vec<(String, String)>);

/// Reads a tenant's settings for the SQL API. With `known`, unknown datasources are errors.
pub(in crate::config) fn read_tenant_sql(
    table: &mut Section<'_>,
    known: Option<&KnownDatasources>,
) -> TenantSql {
    let datasources = table.read("datasources", Vec::<String>::new());
    if datasources.value.len() > DATASOURCES_MAX || datasources.value.iter().any(String::is_empty) {
        let message = format!("datasources must list at most {DATASOURCES_MAX} names, none of them empty");
        table.error(&datasources.origin, message);
    }
    let role = table.optional::<String>("role");
    if let Some(role) = &role
        && let Err(message) = check_role(&role.value)
    {
        table.error(&role.origin, message);
    }
    let settings = table.optional::<SessionSettings>("set");
    if let Some(settings) = &settings
        && let Err(message) = settings.value.check()
    {
        table.error(&settings.origin, message);
    }
    if let Some(known) = known {
        let role = role.as_ref().map(|role| &role.origin);
        let session = role.or(settings.as_ref().map(|settings| &settings.origin));
        check_datasources(table, known, &datasources, session);
    }
    TenantSql {
        datasources: datasources.value,
        role: role.map(|role| role.value),
        settings: settings.map(|settings| settings.value.0).unwrap_or_default(),
    }
}

/// Rejects unknown datasources, and SQLite for a tenant with a role or session settings (set at `session`).
fn check_datasources(
    table: &Section<'_>,
    known: &KnownDatasources,
    allowed: &SourcedValue<Vec<String>>,
    session: Option<&ValueSource>,
) {
    if allowed.value.iter().any(|name| !name.is_empty() && !known.names.contains(name)) {
        let names: Vec<_> = known.names.iter().map(|name| format!("{name:?}")).collect();
        let message = format!("datasources must be names of [[sql.datasources]]: {}", names.join(", "));
        table.error(&allowed.origin, message);
    }
    let may_use = |name: &&String| allowed.value.is_empty() || allowed.value.contains(name);
    if let (Some(session), Some(name)) = (session, known.sqlite.iter().find(may_use)) {
        let message = format!(
            "role and set are for PostgreSQL, and the tenant may use the SQLite datasource {name:?}; list its \
             PostgreSQL datasources in `datasources`"
        );
        table.error(session, message);
    }
}

/// Rejects names that no role of PostgreSQL can have.
pub(super) fn check_role(role: &str) -> Result<(), String> {
    let is_possible = (1..=ROLE_BYTES_MAX).contains(&role.len()) && !role.contains('\0') && role != "none";
    if is_possible {
        Ok(())
    } else {
        Err(format!("role must be a name of 1 to {ROLE_BYTES_MAX} bytes other than \"none\""))
    }
}

impl SessionSettings {
    fn check(&self) -> Result<(), String> {
        if self.0.len() > SETTINGS_MAX {
            return Err(format!("set must have at most {SETTINGS_MAX} settings"));
        }
        for (name, value) in &self.0 {
            if !is_setting_name(name) {
                return Err("the names in set must be names of PostgreSQL settings, such as \"app.tenant\""
                    .to_owned());
            }
            if RESERVED_SETTINGS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
                return Err(format!("set must not change {name:?}, which the gateway sets itself"));
            }
            if value.len() > SETTING_VALUE_BYTES_MAX || value.contains('\0') {
                let rule = format!("at most {SETTING_VALUE_BYTES_MAX} bytes, none of them zero");
                return Err(format!("the value of {name:?} in set must have {rule}"));
            }
        }
        Ok(())
    }
}

fn is_setting_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    };
    name.len() <= SETTING_NAME_BYTES_MAX && name.split('.').all(is_part)
}

impl ConfigValue for SessionSettings {
    fn kind() -> String {
        "a table of strings, such as {\"app.tenant\" = \"acme\"}".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let table = value.as_table()?;
        let pair = |name: &str, value: &DeValue<'_>| Some((name.to_owned(), value.as_str()?.to_owned()));
        let pairs: Option<Vec<_>> =
            table.iter().map(|(name, value)| pair(name.get_ref(), value.get_ref())).collect();
        let mut pairs = pairs?;
        pairs.sort();
        Some(Self(pairs))
    }

    /// Lists have no variables, so this is not used.
    fn from_text(_: &str) -> Option<Self> {
        None
    }

    fn to_json(&self) -> Json {
        self.0.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
    }
}
