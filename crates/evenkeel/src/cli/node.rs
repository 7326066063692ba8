//! `evenkeel node …`: manages the model servers of a running server.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, encode_segment};
use super::table::Table;
use super::{CliError, exit_with_usage_error, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel node list
  evenkeel node add gpu-3 http://10.0.0.7:8000          add a node, without a restart
  evenkeel node add gpu-4 http://10.0.0.5:8000 --via site-b
                                                        add a node at the other side of a link
  evenkeel node set gpu-3 --max-concurrency 8 --weight 2  change a node in place; requests in flight continue
  evenkeel node set gpu-3 --default max_concurrency     restore a default
  evenkeel node drain gpu-1                             finish requests in flight, send no new ones
  evenkeel node resume gpu-1
  EVENKEEL_ADMIN_KEY=ek-... evenkeel node list --url https://llm.example:7070
";

/// List, add, change, drain, resume and remove the nodes (model servers) of a running server; `list` also shows its SQL peers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct NodeArgs {
    #[command(subcommand)]
    action: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// List the nodes and their state, and all peers with their scores per shared datasource
    List(ListArgs),
    /// Drain a node: requests in flight finish, new ones go to other nodes
    Drain(NamedArgs),
    /// Send requests to a drained node again
    Resume(NamedArgs),
    /// Add a node
    Add(AddArgs),
    /// Change a node that was added at run time; omitted settings stay unchanged
    Set(SetArgs),
    /// Remove a node; its requests in flight are allowed to finish
    Remove(NamedArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
struct NamedArgs {
    /// Name of the node
    name: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// URL of the model server to add
    #[arg(value_name = "NODE_URL")]
    node_url: String,
    #[command(flatten)]
    settings: NodeSettingsArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// New URL of the model server; the requests in flight finish at the old one
    #[arg(long, value_name = "NODE_URL")]
    node_url: Option<String>,
    #[command(flatten)]
    settings: NodeSettingsArgs,
    /// Setting to restore to its default, such as `models`, `max_concurrency` or `inject_stream_options`; repeatable
    #[arg(long = "default", value_name = "SETTING")]
    defaults: Vec<String>,
}

#[derive(Debug, Args)]
struct NodeSettingsArgs {
    /// Model that the node serves; repeatable [default: discovered from the node]
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// Maximum number of concurrent requests, or `adaptive` to adjust the number to measured latency
    #[arg(long, value_name = "N|adaptive")]
    max_concurrency: Option<String>,
    /// Weight relative to other nodes, from 0.01 to 1000 [default: 1]
    #[arg(long, value_name = "F")]
    weight: Option<f64>,
    /// Path under /v1 that clients may call on this node in addition to those of inference; repeatable
    #[arg(long = "extra-path", value_name = "PATH")]
    extra_paths: Vec<String>,
    /// Do not add `stream_options.include_usage` to streams, for an engine that rejects it
    #[arg(long)]
    no_inject_stream_options: bool,
    /// Link over which the server reaches the node, as named in [[links]]
    #[arg(long, value_name = "LINK")]
    via: Option<String>,
}

impl NodeSettingsArgs {
    /// Returns the settings that were given.
    fn to_json(&self) -> Map<String, Value> {
        let mut settings = Map::new();
        let mut insert = |key: &str, value: Value| settings.insert(key.to_owned(), value);
        if !self.models.is_empty() {
            insert("models", json!(self.models));
        }
        if let Some(limit) = &self.max_concurrency {
            insert("max_concurrency", limit.parse::<u32>().map_or_else(|_| json!(limit), Value::from));
        }
        if let Some(weight) = self.weight {
            insert("weight", Value::from(weight));
        }
        if !self.extra_paths.is_empty() {
            insert("extra_paths", json!(self.extra_paths));
        }
        if self.no_inject_stream_options {
            insert("inject_stream_options", Value::from(false));
        }
        if let Some(link) = &self.via {
            insert("via", Value::from(link.as_str()));
        }
        settings
    }
}

pub(super) fn run(args: NodeArgs) -> Result<(), CliError> {
    match args.action {
        NodeCommand::List(args) => list(&args),
        NodeCommand::Drain(args) => drain(&args),
        NodeCommand::Resume(args) => resume(&args),
        NodeCommand::Add(args) => add(&args),
        NodeCommand::Set(args) => set(&args),
        NodeCommand::Remove(args) => remove(&args),
    }
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let client = args.connect.client()?;
    let mut response = client.request(Method::GET, "/api/nodes", None)?;
    let sql = client.request(Method::GET, "/api/sql", None)?;
    let peers = peer_rows(&sql);
    if args.json {
        response["peers"] = Value::from(peers);
        return print(&format!("{response:#}\n"));
    }
    let nodes = response["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if nodes.is_empty() {
        print("no nodes\n")?;
    } else {
        let columns = [
            "name",
            "admin_state",
            "breaker",
            "busy",
            "slots",
            "weight",
            "models",
            "urls",
            "via",
            "health_error",
        ];
        print(&Table::new(&columns, nodes).to_string())?;
    }
    if peers.is_empty() {
        return Ok(());
    }
    let columns = ["peer", "datasource", "status", "age_ms", "query", "execute", "begin", "url", "error"];
    print(&format!("\npeers of node {}, with their scores:\n", sql["cluster"]["node"]))?;
    print(&Table::new(&columns, &peers).to_string())
}

/// Returns a row per peer and shared datasource, with the score or closed gate for each kind of request, and one row for
/// a peer that shares none.
fn peer_rows(sql: &Value) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for peer in list(&sql["cluster"]["peers"]) {
        let mut row = json!({
            "peer": peer["name"], "status": peer["status"], "age_ms": peer["ageMs"], "url": peer["url"],
            "error": peer["error"],
        });
        let mut shared = 0;
        for datasource in list(&sql["datasources"]) {
            let compared = list(&datasource["peers"]["peers"]);
            let Some(compared) = compared.iter().find(|other| other["name"] == peer["name"]) else {
                continue;
            };
            shared += 1;
            row["datasource"] = datasource["name"].clone();
            for kind in ["query", "execute", "begin"] {
                row[kind] = round(&compared["scores"][kind]);
            }
            rows.push(row.clone());
        }
        if shared == 0 {
            rows.push(row);
        }
    }
    rows
}

/// Rounds a score to two digits; a closed gate stays as it is.
fn round(score: &Value) -> Value {
    score.as_f64().map_or_else(|| score.clone(), |score| json!(format!("{score:.2}")))
}

fn drain(args: &NamedArgs) -> Result<(), CliError> {
    let client = args.connect.client()?;
    client.request(Method::POST, &format!("{}/drain", path(&args.name)), None)?;
    let in_flight = in_flight(&client, &args.name)?;
    eprintln!("draining node {:?}: no new requests, {in_flight} in flight", args.name);
    Ok(())
}

/// Returns the number of requests in flight on a node.
fn in_flight(client: &AdminClient, name: &str) -> Result<u64, CliError> {
    let response = client.request(Method::GET, "/api/nodes", None)?;
    let mut nodes = response["nodes"].as_array().into_iter().flatten();
    let node = nodes.find(|node| node["name"] == name);
    Ok(node.and_then(|node| node["busy"].as_u64()).unwrap_or(0))
}

fn resume(args: &NamedArgs) -> Result<(), CliError> {
    args.connect.client()?.request(Method::POST, &format!("{}/resume", path(&args.name)), None)?;
    eprintln!("resumed node {:?}: it receives new requests again", args.name);
    Ok(())
}

fn add(args: &AddArgs) -> Result<(), CliError> {
    let mut settings = args.settings.to_json();
    settings.insert("name".to_owned(), Value::from(args.named.name.as_str()));
    settings.insert("url".to_owned(), Value::from(args.node_url.as_str()));
    args.named.connect.client()?.request(Method::POST, "/api/nodes", Some(&Value::Object(settings)))?;
    eprintln!("added node {:?} at {}", args.named.name, args.node_url);
    Ok(())
}

fn set(args: &SetArgs) -> Result<(), CliError> {
    let mut settings = args.settings.to_json();
    if let Some(url) = &args.node_url {
        settings.insert("url".to_owned(), Value::from(url.as_str()));
    }
    for setting in &args.defaults {
        if settings.insert(setting.clone(), Value::Null).is_some() {
            exit_with_usage_error(format_args!(
                "--default {setting} contradicts the value that is given for it"
            ));
        }
    }
    if settings.is_empty() {
        exit_with_usage_error("nothing to change; see `evenkeel node set --help`");
    }
    let client = args.named.connect.client()?;
    client.request(Method::PATCH, &path(&args.named.name), Some(&Value::Object(settings)))?;
    eprintln!("changed node {:?}", args.named.name);
    Ok(())
}

fn remove(args: &NamedArgs) -> Result<(), CliError> {
    let response = args.connect.client()?.request(Method::DELETE, &path(&args.name), None)?;
    let hint = if response["until_restart"] == true {
        "; it is in the config file, so a restart brings it back"
    } else {
        ""
    };
    eprintln!("removed node {:?}{hint}", args.name);
    Ok(())
}

fn path(name: &str) -> String {
    format!("/api/nodes/{}", encode_segment(name))
}
