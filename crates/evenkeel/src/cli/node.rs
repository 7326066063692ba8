//! `evenkeel node …`: the model servers of a running server.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::client::{ConnectArgs, segment};
use super::table::Table;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel node list
  evenkeel node add gpu-3 http://10.0.0.7:8000          from here on it gets its share
  evenkeel node drain gpu-1                             finishes what it has, gets nothing new
  evenkeel node resume gpu-1
  EVENKEEL_ADMIN_KEY=ek-... evenkeel node list --url https://llm.example:7070
";

/// Lists, drains, resumes, adds and removes the model servers of a running server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct NodeArgs {
    #[command(subcommand)]
    action: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Lists the nodes and how they are
    List(ListArgs),
    /// Lets a node finish what it has and gives it nothing new
    Drain(NamedArgs),
    /// Gives a drained node work again
    Resume(NamedArgs),
    /// Takes a node in
    Add(AddArgs),
    /// Takes a node out; what it has is left to it
    Remove(NamedArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ConnectArgs,
}

#[derive(Debug, Args)]
struct NamedArgs {
    /// The node's name
    name: String,
    #[command(flatten)]
    place: ConnectArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Where it listens
    #[arg(value_name = "NODE_URL")]
    node_url: String,
    /// A model it serves; may be given several times, and without any it is asked
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// Requests it works on at once; `adaptive` finds it out
    #[arg(long, value_name = "N")]
    max_concurrency: Option<String>,
    /// How much of the work it gets, relative to the others
    #[arg(long, value_name = "F")]
    weight: Option<f64>,
}

pub(super) fn run(args: NodeArgs) -> Result<(), CliError> {
    match args.action {
        NodeCommand::List(args) => list(&args),
        NodeCommand::Drain(args) => change(&args, "drain", "drains"),
        NodeCommand::Resume(args) => change(&args, "resume", "takes work again"),
        NodeCommand::Add(args) => add(&args),
        NodeCommand::Remove(args) => {
            let path = format!("/api/nodes/{}", segment(&args.name));
            let done = args.place.client()?.request(Method::DELETE, &path, None)?;
            let until = if done["until_restart"] == true {
                ", until the server is started again: the config file has it"
            } else {
                ""
            };
            eprintln!("node {} removed{until}", args.name);
            Ok(())
        }
    }
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let listed = args.place.client()?.request(Method::GET, "/api/nodes", None)?;
    if args.json {
        return print(&format!("{listed:#}\n"));
    }
    let none = Vec::new();
    let nodes = listed["nodes"].as_array().unwrap_or(&none);
    if nodes.is_empty() {
        return print("no nodes\n");
    }
    let columns = ["name", "admin_state", "breaker", "busy", "slots", "weight", "models", "urls"];
    print(&Table::of(&columns, nodes).to_string())
}

fn change(args: &NamedArgs, change: &str, becomes: &str) -> Result<(), CliError> {
    let path = format!("/api/nodes/{}/{change}", segment(&args.name));
    args.place.client()?.request(Method::POST, &path, None)?;
    eprintln!("node {} {becomes}", args.name);
    Ok(())
}

fn add(args: &AddArgs) -> Result<(), CliError> {
    let mut settings = json!({"name": args.named.name, "url": args.node_url, "models": args.models});
    if let Some(slots) = &args.max_concurrency {
        settings["max_concurrency"] = slots.parse::<u32>().map_or_else(|_| json!(slots), Value::from);
    }
    if let Some(weight) = args.weight {
        settings["weight"] = Value::from(weight);
    }
    args.named.place.client()?.request(Method::POST, "/api/nodes", Some(&settings))?;
    eprintln!("node {} added", args.named.name);
    Ok(())
}
