//! `evenkeel tenant …`: manages tenants through the API of a running server, or in the data directory if none runs.

mod statement;
mod tenant_key;

use clap::{Args, Subcommand};
use evenkeel::audit_file::AuditFile;
use evenkeel::config::{Config, read_tenant};
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::sqs_key::master_key;
use evenkeel::tenant_store::{OldKeys, TenantChange, TenantStore};
use evenkeel_telemetry::Counter;
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ServerArgs, encode_segment};
use super::settings::SettingsArgs;
use super::table::Table;
use super::{CliError, exit_with_usage_error, print};

use statement::StatementArgs;
use tenant_key::KeyArgs;

const EXAMPLES: &str = "\
Examples:
  evenkeel tenant add acme --weight 2 --rpm 600         add a tenant and print its API key, shown only once
  evenkeel tenant list
  evenkeel tenant set acme --weight 3 --unlimited rpm
  evenkeel tenant set acme --tokens-per-day 1000000 --money-per-month 50
  evenkeel tenant statement acme --month 2026-11 --csv  print what it used, by day and model
  evenkeel tenant set acme --datasource orders          allow one of the SQL datasources
  evenkeel tenant set orders --act-for '*'              let it send to shared queues under any fairness key
  evenkeel tenant key add acme --name ci --expires 30d  create another key; the existing ones stay valid
  evenkeel tenant key list acme                         show names, expiry and last use
  evenkeel tenant key remove acme ci                    revoke one key
  evenkeel tenant rotate acme                           create a key and revoke all others
  evenkeel tenant remove acme
  evenkeel tenant sqs-key acme                          print AWS credentials as environment variables
  evenkeel tenant key                                   generate an API key and its hash for a config file
  EVENKEEL_ADMIN_KEY=ek-... evenkeel tenant list --url https://llm.example:7070
";

/// Limits that `--unlimited` removes.
const LIMITS: [&str; 10] = [
    "rpm",
    "tpm",
    "tokens_per_day",
    "tokens_per_month",
    "money_per_day",
    "money_per_month",
    "concurrency_max",
    "queues_max",
    "models",
    "datasources",
];
/// Value of `--role` and `--act-for` that restores the default; PostgreSQL has no role of this name.
const NONE: &str = "none";

/// Add, list, change and remove tenants, and rotate their API keys
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TenantArgs {
    #[command(subcommand)]
    action: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Add a tenant and print its API key; once there is a tenant, clients need an API key
    Add(AddArgs),
    /// List the tenants
    List(ListArgs),
    /// Change a tenant's weight, limits or state; omitted settings stay unchanged, and its keys stay valid
    Set(SetArgs),
    /// Create a new API key for a tenant, print it, and revoke all others, named or not
    Rotate(RotateArgs),
    /// Remove a tenant and its keys
    Remove(NamedArgs),
    /// Print a tenant's usage by day and model, and its cost
    Statement(StatementArgs),
    /// Print AWS credentials for a tenant's SQS clients, as environment variables
    SqsKey(NamedArgs),
    /// Add, list and remove a tenant's keys; without a command, generate a key and its hash for a config file
    Key(KeyArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    named: NamedArgs,
    #[command(flatten)]
    given: TenantSettingsArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    #[command(flatten)]
    named: NamedArgs,
    #[command(flatten)]
    given: TenantSettingsArgs,
    /// Remove a limit; repeatable
    #[arg(long, value_name = "LIMIT", value_parser = LIMITS)]
    unlimited: Vec<String>,
    /// `disabled` rejects all requests with the tenant's keys
    #[arg(long, value_parser = ["active", "disabled"])]
    state: Option<String>,
    /// Old name of `--state`
    #[arg(long, hide = true)]
    standing: Option<String>,
}

#[derive(Debug, Args)]
struct TenantSettingsArgs {
    /// Scheduling weight relative to other tenants, from 0.01 to 1000; a new tenant has weight 1
    #[arg(long, value_name = "F")]
    weight: Option<f64>,
    /// Maximum requests per minute
    #[arg(long, value_name = "N")]
    rpm: Option<u64>,
    /// Maximum tokens per minute
    #[arg(long, value_name = "N")]
    tpm: Option<u64>,
    /// Budget of tokens per day, in UTC
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<u64>,
    /// Budget of tokens per calendar month, in UTC
    #[arg(long, value_name = "N")]
    tokens_per_month: Option<u64>,
    /// Budget of money per day, in UTC, in the currency of [[llm.prices]]
    #[arg(long, value_name = "AMOUNT")]
    money_per_day: Option<f64>,
    /// Budget of money per calendar month, in UTC, in the currency of [[llm.prices]]
    #[arg(long, value_name = "AMOUNT")]
    money_per_month: Option<f64>,
    /// Maximum number of requests in flight
    #[arg(long, value_name = "N")]
    concurrency_max: Option<u32>,
    /// Class of requests that name none: high, normal or low [default: normal]; `none` removes it
    #[arg(long, value_name = "CLASS", value_parser = ["high", "normal", "low", NONE])]
    priority: Option<String>,
    /// Highest class that a request may name [default: --priority, or else high]; `none` removes it
    #[arg(long, value_name = "CLASS", value_parser = ["high", "normal", "low", NONE])]
    priority_max: Option<String>,
    /// Model that the tenant may use; repeatable; a new tenant may use all models
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// SQL datasource that the tenant may use; repeatable [default: all]
    #[arg(long = "datasource", value_name = "NAME")]
    datasources: Vec<String>,
    /// First level of fairness keys under which the tenant may send to shared queues, or '*' for all; repeatable;
    /// `none` leaves only the tenant's own name, as a new tenant has
    #[arg(long = "act-for", value_name = "KEY")]
    act_for: Vec<String>,
    /// PostgreSQL role that the tenant's statements run as; `none` means that of the datasource
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// Maximum number of queues that the tenant may own [default: 1000]
    #[arg(long, value_name = "N")]
    queues_max: Option<u32>,
}

#[derive(Debug, Args)]
struct RotateArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Keep the old keys valid
    #[arg(long)]
    keep_old: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: TenantStoreArgs,
}

#[derive(Debug, Args)]
struct NamedArgs {
    /// Name of the tenant
    name: String,
    #[command(flatten)]
    store: TenantStoreArgs,
}

#[derive(Debug, Args)]
struct TenantStoreArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// A running server, or the data directory if none runs.
enum TenantBackend {
    Server(AdminClient),
    Directory { data_dir: DataDir, config: Box<Config>, tenants: TenantStore },
}

pub(super) fn run(args: TenantArgs) -> Result<(), CliError> {
    match args.action {
        TenantCommand::Add(args) => add(args),
        TenantCommand::List(args) => list(&args),
        TenantCommand::Set(args) => set(args),
        TenantCommand::Rotate(args) => rotate(args),
        TenantCommand::Remove(args) => remove(args),
        TenantCommand::Statement(args) => statement::run(&args),
        TenantCommand::SqsKey(args) => sqs_key(args),
        TenantCommand::Key(args) => tenant_key::run(args),
    }
}

fn add(args: AddArgs) -> Result<(), CliError> {
    let name = args.named.name;
    let mut settings = args.given.settings();
    settings.insert("name".to_owned(), json!(name));
    let key = match args.named.store.open()? {
        TenantBackend::Server(client) => {
            let body = Value::Object(settings);
            api_key_from(&client.request(Method::POST, "/api/tenants", Some(&body))?)?
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            apply(&data_dir, &config, &tenants, TenantChange::Add(Box::new(read_tenant(&settings)?)))?
        }
    };
    eprintln!("added tenant {name:?}; its API key, shown only once:");
    print(&format!("{key}\n"))
}

fn set(args: SetArgs) -> Result<(), CliError> {
    let name = args.named.name;
    if args.standing.is_some() {
        exit_with_usage_error("--standing was renamed to --state");
    }
    let mut settings = args.given.settings();
    settings.extend(args.state.map(|state| ("state".to_owned(), json!(state))));
    settings.extend(args.unlimited.into_iter().map(|limit| (limit, Value::Null)));
    if settings.is_empty() {
        return Err("nothing to change; `evenkeel tenant set --help` lists the settings".into());
    }
    match args.named.store.open()? {
        TenantBackend::Server(client) => {
            client.request(Method::PATCH, &path(&name), Some(&Value::Object(settings)))?;
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            apply(&data_dir, &config, &tenants, TenantChange::Set { name: name.clone(), settings })?;
        }
    }
    eprintln!("updated tenant {name:?}");
    Ok(())
}

fn rotate(args: RotateArgs) -> Result<(), CliError> {
    let name = args.named.name;
    let key = match args.named.store.open()? {
        TenantBackend::Server(client) => {
            let body = json!({"keep_old": args.keep_old});
            api_key_from(&client.request(Method::POST, &format!("{}/rotate", path(&name)), Some(&body))?)?
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            let old_keys = if args.keep_old { OldKeys::Keep } else { OldKeys::Revoke };
            apply(&data_dir, &config, &tenants, TenantChange::Rotate { name: name.clone(), old_keys })?
        }
    };
    let old = if args.keep_old { "its old keys stay valid" } else { "its old keys are revoked" };
    eprintln!("created a new API key for tenant {name:?}; {old}; the new key, shown only once:");
    print(&format!("{key}\n"))
}

fn remove(args: NamedArgs) -> Result<(), CliError> {
    let name = args.name;
    match args.store.open()? {
        TenantBackend::Server(client) => {
            client.request(Method::DELETE, &path(&name), None)?;
        }
        TenantBackend::Directory { data_dir, config, tenants } => {
            apply(&data_dir, &config, &tenants, TenantChange::Remove { name: name.clone() })?;
        }
    }
    eprintln!("removed tenant {name:?} and its keys");
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let response = args.store.list()?;
    if args.json {
        return print(&format!("{response:#}\n"));
    }
    let tenants = response["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
    let columns = [
        "name",
        "weight",
        "rpm",
        "tpm",
        "tokens_per_day",
        "tokens_per_month",
        "money_per_day",
        "money_per_month",
        "concurrency_max",
        "models",
        "datasources",
        "role",
        "act_for",
        "state",
        "keys",
        "account",
        "from",
    ];
    // Few tenants have budgets, settings for the SQL API, or send for others.
    let is_set = |column: &str| tenants.iter().any(|tenant| !is_empty(&tenant[column]));
    let is_rare =
        |column: &str| column.contains("_per_") || ["datasources", "role", "act_for"].contains(&column);
    let is_shown = |column: &&str| !is_rare(column) || is_set(column);
    let columns: Vec<_> = columns.into_iter().filter(is_shown).collect();
    if tenants.is_empty() {
        return print("no tenants; the server accepts requests without an API key\n");
    }
    print(&Table::new(&columns, tenants).to_string())
}

fn is_empty(setting: &Value) -> bool {
    setting.is_null() || setting.as_array().is_some_and(Vec::is_empty)
}

fn sqs_key(args: NamedArgs) -> Result<(), CliError> {
    let name = args.name;
    let keys = match args.store.open()? {
        TenantBackend::Server(client) => {
            let mut response = client.request(Method::GET, &format!("{}/sqs-key", path(&name)), None)?;
            response["keys"].take()
        }
        TenantBackend::Directory { data_dir, tenants, .. } => {
            Value::Array(tenants.sqs_keys(&name, &master_key(&data_dir)?)?)
        }
    };
    // The newest key is last. It is valid as long as the API key from which it is derived.
    let newest = keys.as_array().and_then(|keys| keys.last()).ok_or_else(|| {
        format!("tenant {name:?} has no API key; create one with `evenkeel tenant rotate {name}`")
    })?;
    let field = |field: &str| newest[field].as_str().ok_or("the server's response has no key");
    let id = field("access_key_id")?;
    let secret = field("secret_access_key")?;
    print(&format!("AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY={secret}\n"))
}

/// Applies a change in the data directory; returns the API key that it created, or an empty string if it created none.
fn apply(
    data_dir: &DataDir,
    config: &Config,
    tenants: &TenantStore,
    change: TenantChange,
) -> Result<String, CliError> {
    let action = change.action();
    let tenant = change.tenant().to_owned();
    let audit = AuditFile::new(data_dir.path(), Counter::default());
    let applied = tenants.apply(change, &config.server.admin_key_hashes);
    let applied = applied.and_then(|(next, key)| next.write(data_dir).map(|()| (next, key)));
    let error = applied.as_ref().err().map(ToString::to_string);
    let after = applied.as_ref().ok().and_then(|(next, _)| next.describe_one(&tenant));
    let user = format!("command line, uid {}", rustix::process::geteuid().as_raw());
    audit.record_local(&user, action, json!({"tenant": tenant, "after": after}), error);
    let (_, key) = applied?;
    Ok(key.map(|key| key.expose().clone()).unwrap_or_default())
}

fn api_key_from(response: &Value) -> Result<String, CliError> {
    let key = response["key"].as_str().ok_or("the server's response has no key")?;
    Ok(key.to_owned())
}

fn path(name: &str) -> String {
    format!("/api/tenants/{}", encode_segment(name))
}

impl TenantSettingsArgs {
    /// Returns the settings that were given, by name.
    fn settings(&self) -> Map<String, Value> {
        let models = (!self.models.is_empty()).then_some(&self.models);
        let datasources = (!self.datasources.is_empty()).then_some(&self.datasources);
        let role = self.role.as_deref().filter(|role| *role != NONE);
        let clears_act_for = self.act_for.iter().any(|entry| entry == NONE);
        let act_for = (!self.act_for.is_empty() && !clears_act_for).then_some(&self.act_for);
        let settings = [
            ("weight", json!(self.weight)),
            ("rpm", json!(self.rpm)),
            ("tpm", json!(self.tpm)),
            ("tokens_per_day", json!(self.tokens_per_day)),
            ("tokens_per_month", json!(self.tokens_per_month)),
            ("money_per_day", json!(self.money_per_day)),
            ("money_per_month", json!(self.money_per_month)),
            ("concurrency_max", json!(self.concurrency_max)),
            ("priority", json!(self.priority.as_deref().filter(|class| *class != NONE))),
            ("priority_max", json!(self.priority_max.as_deref().filter(|class| *class != NONE))),
            ("models", json!(models)),
            ("datasources", json!(datasources)),
            ("role", json!(role)),
            ("act_for", json!(act_for)),
            ("queues_max", json!(self.queues_max)),
        ];
        let given = settings.into_iter().filter(|(_, value)| !value.is_null());
        // Null restores the default.
        let no_role = (self.role.as_deref() == Some(NONE)).then_some(("role", Value::Null));
        let no_act_for = clears_act_for.then_some(("act_for", Value::Null));
        let classes = [("priority", &self.priority), ("priority_max", &self.priority_max)];
        let cleared = classes.into_iter().filter(|(_, class)| class.as_deref() == Some(NONE));
        let no_classes = cleared.map(|(key, _)| (key, Value::Null));
        given
            .chain(no_role)
            .chain(no_act_for)
            .chain(no_classes)
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

impl TenantStoreArgs {
    /// Lists the tenants without locking the data directory.
    fn list(&self) -> Result<Value, CliError> {
        let request = |client: AdminClient| client.request(Method::GET, "/api/tenants", None);
        if let Some(url) = &self.server.url {
            return request(AdminClient::for_url(url, &self.server, &self.settings)?);
        }
        let config = self.settings.read()?;
        let server = &config.server;
        match DataDir::server_urls(&server.data_dir) {
            Some(urls) => request(AdminClient::announced(&urls.admin, &server.data_dir, &self.server)?),
            None => {
                let tenants = TenantStore::read(&server.data_dir, config.tenants, &server.admin_key_hashes)?;
                Ok(tenants.describe())
            }
        }
    }

    /// Creates a client for the given or running server, or else locks the data directory.
    fn open(&self) -> Result<TenantBackend, CliError> {
        if let Some(url) = &self.server.url {
            let client = AdminClient::for_url(url, &self.server, &self.settings)?;
            return Ok(TenantBackend::Server(client));
        }
        let config = Box::new(self.settings.read()?);
        match DataDir::claim(&config.server.data_dir)? {
            DataDirClaim::InUse(urls) => {
                let client = AdminClient::announced(&urls.admin, &config.server.data_dir, &self.server)?;
                Ok(TenantBackend::Server(client))
            }
            DataDirClaim::Locked(data_dir) => {
                let admin_key_hashes = &config.server.admin_key_hashes;
                let tenants = TenantStore::read(data_dir.path(), config.tenants.clone(), admin_key_hashes)?;
                Ok(TenantBackend::Directory { data_dir, config, tenants })
            }
        }
    }
}
