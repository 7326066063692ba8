//! `evenkeel tenant key …`: adds, lists and removes a tenant's keys, or generates one for a config file.

use clap::{Args, Subcommand};
use evenkeel::key_use::{KeyUses, parse_expiry};
use evenkeel::tenant_store::TenantChange;
use evenkeel_policy::class::Class;
use evenkeel_server::api_key::{KeyHash, make_key};
use evenkeel_server::unix_seconds::UnixSeconds;
use http::Method;
use serde_json::json;

use super::super::client::encode_segment;
use super::super::table::Table;
use super::super::{CliError, print};
use super::{NamedArgs, TenantBackend, api_key_from, apply, path};

const EXAMPLES: &str = "\
Examples:
  evenkeel tenant key                                   generate an API key and its hash for a config file
  evenkeel tenant key add acme --name ci --expires 30d
  evenkeel tenant key add acme --expires 2027-01-31
  evenkeel tenant key list acme
  evenkeel tenant key remove acme ci
";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    action: Option<KeyCommand>,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key for a tenant and print it; its other keys stay valid
    Add(AddKeyArgs),
    /// List a tenant's keys with their expiry and last use
    List(ListKeysArgs),
    /// Revoke one key of a tenant
    Remove(RemoveKeyArgs),
}

#[derive(Debug, Args)]
struct AddKeyArgs {
    #[command(flatten)]
    tenant: NamedArgs,
    /// Name of the key, unique among the tenant's [default: the first digits of its hash]
    #[arg(long = "name", value_name = "NAME")]
    key_name: Option<String>,
    /// Time at which the key expires: 30d, 12h, 90m, 2027-01-31 or 2027-01-31T12:00:00Z [default: never]
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Class of requests with the key, which they may lower: high, normal or low [default: that of the tenant]
    #[arg(long, value_name = "CLASS")]
    priority: Option<Class>,
}

#[derive(Debug, Args)]
struct ListKeysArgs {
    #[command(flatten)]
    tenant: NamedArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RemoveKeyArgs {
    #[command(flatten)]
    tenant: NamedArgs,
    /// Name of the key, as `evenkeel tenant key list` shows it
    #[arg(value_name = "KEY")]
    key_name: String,
}

pub(super) fn run(args: KeyArgs) -> Result<(), CliError> {
    match args.action {
        None => generate(),
        Some(KeyCommand::Add(args)) => add(args),
        Some(KeyCommand::List(args)) => list(&args),
        Some(KeyCommand::Remove(args)) => remove(args),
    }
}

fn generate() -> Result<(), CliError> {
    let key = make_key().map_err(|_| "the system's random number generator failed")?;
    print(&format!("{key}\n{}\n", KeyHash::of(&key)))
}

fn add(args: AddKeyArgs) -> Result<(), CliError> {
    let tenant = args.tenant.name;
    let name = args.key_name;
    let priority = args.priority;
    let expires_at = args.expires.map(|text| parse_expiry(&text, UnixSeconds::now())).transpose()?;
    let until =
        expires_at.map_or("does not expire".to_owned(), |at| format!("expires at {}", at.to_rfc3339()));
    let key = match args.tenant.store.open()? {
        TenantBackend::Server(client) => {
            let body = json!({
                "name": name,
                "expires_at": expires_at.map(UnixSeconds::to_rfc3339),
                "priority": priority.map(Class::name),
            });
            api_key_from(&client.request(Method::POST, &format!("{}/keys", path(&tenant)), Some(&body))?)?
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            let name = name.clone();
            let change = TenantChange::AddKey { tenant: tenant.clone(), name, expires_at, priority };
            apply(&data_dir, &config, &tenants, change)?
        }
    };
    let name = name.unwrap_or_else(|| KeyHash::of(&key).short_digits());
    eprintln!("added key {name:?} to tenant {tenant:?}; it {until}; the key, shown only once:");
    print(&format!("{key}\n"))
}

fn list(args: &ListKeysArgs) -> Result<(), CliError> {
    let tenant = &args.tenant.name;
    let response = match args.tenant.store.open()? {
        TenantBackend::Server(client) => {
            client.request(Method::GET, &format!("{}/keys", path(tenant)), None)?
        }
        TenantBackend::Directory { data_dir, tenants, .. } => {
            let uses = KeyUses::read(data_dir.path())?;
            tenants.describe_keys(tenant, UnixSeconds::now(), |hash| uses.get(hash))?
        }
    };
    if args.json {
        return print(&format!("{response:#}\n"));
    }
    let keys = response["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    if keys.is_empty() {
        return print(&format!("tenant {tenant:?} has no keys\n"));
    }
    let columns = ["name", "fingerprint", "state", "expires_at", "last_used_at", "priority"];
    print(&Table::new(&columns, keys).to_string())
}

fn remove(args: RemoveKeyArgs) -> Result<(), CliError> {
    let tenant = args.tenant.name;
    let name = args.key_name;
    match args.tenant.store.open()? {
        TenantBackend::Server(client) => {
            let path = format!("{}/keys/{}", path(&tenant), encode_segment(&name));
            client.request(Method::DELETE, &path, None)?;
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            let change = TenantChange::RemoveKey { tenant: tenant.clone(), name: name.clone() };
            apply(&data_dir, &config, &tenants, change)?;
        }
    }
    eprintln!("removed key {name:?} of tenant {tenant:?}");
    Ok(())
}
