//! `evenkeel tenant …`: who may ask. Through the server's API if one runs, in its data folder if none does.

use clap::{Args, Subcommand};
use evenkeel::config::{Config, read_tenant};
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::sqs_key::master_key;
use evenkeel::tenant_store::{OldKeys, TenantChange, TenantStore};
use evenkeel_server::api_key::{KeyHash, make_key};
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ServerArgs, segment};
use super::settings::SettingsArgs;
use super::table::Table;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel tenant add acme --weight 2 --rpm 600         prints the key, once
  evenkeel tenant list
  evenkeel tenant set acme --weight 3 --unlimited rpm
  evenkeel tenant rotate acme --keep-old                another key beside the old one ...
  evenkeel tenant rotate acme                           ... and a last one, which ends all others
  evenkeel tenant remove acme
  evenkeel tenant sqs-key acme                          what its SQS clients sign with, as variables
  evenkeel tenant key                                   a key and its hash, for a config file
  EVENKEEL_ADMIN_KEY=ek-... evenkeel tenant list --url https://llm.example:7070
";

/// Adds, lists and removes tenants, and changes their keys.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TenantArgs {
    #[command(subcommand)]
    action: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Takes a tenant in, and prints its key
    Add(AddArgs),
    /// Lists the tenants
    List(ListArgs),
    /// Changes a tenant's weight and limits; its keys stay
    Set(SetArgs),
    /// Gives a tenant a new key, and prints it
    Rotate(RotateArgs),
    /// Forgets a tenant and its keys
    Remove(NamedArgs),
    /// Prints what a tenant's SQS clients sign with, as the variables that AWS clients read
    SqsKey(NamedArgs),
    /// Makes a key and prints it with its hash, which is what a config file holds
    Key,
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    named: NamedArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    #[command(flatten)]
    named: NamedArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Takes a limit away; may be given several times
    #[arg(long, value_name = "LIMIT", value_parser = ["rpm", "tpm", "concurrency_max", "models"])]
    unlimited: Vec<String>,
    /// Refuses its keys, or takes them again
    #[arg(long, value_parser = ["active", "disabled"])]
    standing: Option<String>,
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Its share, relative to the others
    #[arg(long, value_name = "F")]
    weight: Option<f64>,
    /// Requests per minute
    #[arg(long, value_name = "N")]
    rpm: Option<u64>,
    /// Tokens per minute
    #[arg(long, value_name = "N")]
    tpm: Option<u64>,
    /// Requests in flight
    #[arg(long, value_name = "N")]
    concurrency_max: Option<u32>,
    /// A model it may use; may be given several times, and none is all
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
}

#[derive(Debug, Args)]
struct RotateArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Leaves the old keys good beside the new one
    #[arg(long)]
    keep_old: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: TenantStoreArgs,
}

#[derive(Debug, Args)]
struct NamedArgs {
    /// The tenant's name
    name: String,
    #[command(flatten)]
    place: TenantStoreArgs,
}

#[derive(Debug, Args)]
struct TenantStoreArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Who keeps the tenants.
enum TenantBackend {
    Server(AdminClient),
    Folder { folder: DataDir, config: Box<Config>, book: TenantStore },
}

pub(super) fn run(args: TenantArgs) -> Result<(), CliError> {
    match args.action {
        TenantCommand::Add(args) => add(args),
        TenantCommand::List(args) => list(&args),
        TenantCommand::Set(args) => set(args),
        TenantCommand::Rotate(args) => rotate(args),
        TenantCommand::Remove(args) => remove(args),
        TenantCommand::SqsKey(args) => sqs_key(args),
        TenantCommand::Key => key(),
    }
}

fn add(args: AddArgs) -> Result<(), CliError> {
    let name = args.named.name;
    let mut settings = args.limits.settings();
    settings.insert("name".to_owned(), json!(name));
    let key = match args.named.place.find()? {
        TenantBackend::Server(client) => {
            let body = Value::Object(settings);
            told_key(&client.request(Method::POST, "/api/tenants", Some(&body))?)?
        }
        TenantBackend::Folder { folder, config, book } => {
            changed(&folder, &config, &book, TenantChange::Add(read_tenant(&settings)?))?
        }
    };
    eprintln!("tenant {name} added; this is its key, and it is shown only now:");
    print(&format!("{key}\n"))
}

fn set(args: SetArgs) -> Result<(), CliError> {
    let name = args.named.name;
    let mut settings = args.limits.settings();
    settings.extend(args.standing.map(|standing| ("standing".to_owned(), json!(standing))));
    settings.extend(args.unlimited.into_iter().map(|limit| (limit, Value::Null)));
    if settings.is_empty() {
        return Err("nothing to change; --help lists what there is".into());
    }
    match args.named.place.find()? {
        TenantBackend::Server(client) => {
            client.request(Method::PATCH, &path_of(&name), Some(&Value::Object(settings)))?;
        }
        TenantBackend::Folder { folder, config, book } => {
            changed(&folder, &config, &book, TenantChange::Set { name: name.clone(), settings })?;
        }
    }
    eprintln!("tenant {name} changed");
    Ok(())
}

fn rotate(args: RotateArgs) -> Result<(), CliError> {
    let name = args.named.name;
    let key = match args.named.place.find()? {
        TenantBackend::Server(client) => {
            let body = json!({"keep_old": args.keep_old});
            told_key(&client.request(Method::POST, &format!("{}/rotate", path_of(&name)), Some(&body))?)?
        }
        TenantBackend::Folder { folder, config, book } => {
            let old_keys = if args.keep_old { OldKeys::Keep } else { OldKeys::Revoke };
            changed(&folder, &config, &book, TenantChange::Rotate { name: name.clone(), old_keys })?
        }
    };
    let old = if args.keep_old { "its old keys stay good" } else { "its old keys have ended" };
    eprintln!("tenant {name} has a new key, shown only now; {old}:");
    print(&format!("{key}\n"))
}

fn remove(args: NamedArgs) -> Result<(), CliError> {
    let name = args.name;
    match args.place.find()? {
        TenantBackend::Server(client) => {
            client.request(Method::DELETE, &path_of(&name), None)?;
        }
        TenantBackend::Folder { folder, config, book } => {
            changed(&folder, &config, &book, TenantChange::Remove { name: name.clone() })?;
        }
    }
    eprintln!("tenant {name} removed");
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let listed = args.place.listed()?;
    if args.json {
        return print(&format!("{listed:#}\n"));
    }
    let columns = ["name", "weight", "rpm", "tpm", "concurrency_max", "models", "standing", "keys", "from"];
    let none = Vec::new();
    let tenants = listed["tenants"].as_array().unwrap_or(&none);
    if tenants.is_empty() {
        return print("no tenants: everybody who reaches the server is served\n");
    }
    print(&Table::of(&columns, tenants).to_string())
}

fn sqs_key(args: NamedArgs) -> Result<(), CliError> {
    let name = args.name;
    let keys = match args.place.find()? {
        TenantBackend::Server(client) => {
            let mut answer = client.request(Method::GET, &format!("{}/sqs-key", path_of(&name)), None)?;
            answer["keys"].take()
        }
        TenantBackend::Folder { folder, book, .. } => {
            Value::Array(book.sqs_keys(&name, &master_key(&folder)?)?)
        }
    };
    // The newest is last; it ends with the API key it belongs to.
    let newest =
        keys.as_array().and_then(|keys| keys.last()).ok_or("the tenant has no key; rotate gives it one")?;
    let told = |field: &str| newest[field].as_str().ok_or("the server told no key");
    let id = told("access_key_id")?;
    let secret = told("secret_access_key")?;
    print(&format!("AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY={secret}\n"))
}

fn key() -> Result<(), CliError> {
    let key = make_key().map_err(|_| "the system gives no random numbers")?;
    print(&format!("{key}\n{}\n", KeyHash::of(&key)))
}

fn changed(
    folder: &DataDir,
    config: &Config,
    book: &TenantStore,
    change: TenantChange,
) -> Result<String, CliError> {
    let (next, key) = book.apply(change, &config.server.admin)?;
    next.write(folder)?;
    Ok(key.map(|key| key.expose().clone()).unwrap_or_default())
}

fn told_key(answer: &Value) -> Result<String, CliError> {
    let key = answer["key"].as_str().ok_or("the server told no key")?;
    Ok(key.to_owned())
}

fn path_of(name: &str) -> String {
    format!("/api/tenants/{}", segment(name))
}

impl LimitArgs {
    /// What was given, by the names of the settings.
    fn settings(&self) -> Map<String, Value> {
        let models = (!self.models.is_empty()).then_some(&self.models);
        let given = [
            ("weight", json!(self.weight)),
            ("rpm", json!(self.rpm)),
            ("tpm", json!(self.tpm)),
            ("concurrency_max", json!(self.concurrency_max)),
            ("models", json!(models)),
        ];
        given
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

impl TenantStoreArgs {
    /// Asks whoever keeps the tenants, and takes nothing from anybody.
    fn listed(&self) -> Result<Value, CliError> {
        let ask = |url: &str| AdminClient::new(url, &self.server)?.request(Method::GET, "/api/tenants", None);
        if let Some(url) = &self.server.url {
            return ask(url);
        }
        let config = self.settings.read()?;
        match DataDir::server_of(&config.server.data_dir) {
            Some(url) => ask(&url),
            None => {
                Ok(TenantStore::read(&config.server.data_dir, config.tenants, &config.server.admin)?
                    .describe())
            }
        }
    }

    fn find(&self) -> Result<TenantBackend, CliError> {
        if let Some(url) = &self.server.url {
            return Ok(TenantBackend::Server(AdminClient::new(url, &self.server)?));
        }
        let config = Box::new(self.settings.read()?);
        match DataDir::claim(&config.server.data_dir)? {
            DataDirClaim::Served { url } => Ok(TenantBackend::Server(AdminClient::new(&url, &self.server)?)),
            DataDirClaim::Ours(folder) => {
                let book = TenantStore::read(folder.path(), config.tenants.clone(), &config.server.admin)?;
                Ok(TenantBackend::Folder { folder, config, book })
            }
        }
    }
}
