//! `evenkeel queue …`: the queues of a running server.

use std::io::{self, IsTerminal, Read, Write};

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, segment};
use super::table::Table;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel queue create jobs lease_ms=60000
  evenkeel queue create jobs 'dead_letters={\"queue\": \"jobs-dead\", \"after\": 5}'
  evenkeel queue send jobs --key acme '{\"do\": \"this\"}'
  evenkeel queue list
  evenkeel queue stats jobs                             what each key holds
  evenkeel queue weight jobs acme 3                     acme gets three turns for everybody else's one
  evenkeel queue limit jobs acme --concurrency 5        acme has five messages in work at most
  evenkeel queue explain jobs 00000001-0000-0001-0000-000000000005
  evenkeel queue result jobs 00000001-0000-0001-0000-000000000005
  evenkeel queue redrive jobs-dead                      each message back to where it came from
  evenkeel queue purge jobs
";

/// Messages of one step of a redrive.
const STEP: u64 = 1_000;

/// Makes, lists, weighs, empties and explains the queues of a running server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    action: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Lists the queues and what they hold
    List(ListArgs),
    /// Shows what a queue holds, key by key
    Stats(StatsArgs),
    /// Makes a queue, or tells one that is there something else
    Create(CreateArgs),
    /// Removes a queue and its messages
    Delete(NamedArgs),
    /// Sends a message
    Send(SendArgs),
    /// Shows the next messages without touching them
    Peek(PeekArgs),
    /// Says why a message is where it is
    Explain(ExplainArgs),
    /// Prints what came of a job of a dispatched queue
    Result(ExplainArgs),
    /// Sets how many turns a key gets, relative to the others
    Weight(WeightArgs),
    /// Limits how many messages of a key are in work at once, and how many per second
    Limit(LimitArgs),
    /// Moves messages to another queue, or each to where it came from
    Redrive(RedriveArgs),
    /// Removes every message of a queue
    Purge(NamedArgs),
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
    /// The queue's name
    queue: String,
    #[command(flatten)]
    place: ConnectArgs,
}

#[derive(Debug, Args)]
struct StatsArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Shows at most so many keys
    #[arg(long, value_name = "N", default_value_t = 50)]
    keys: u32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// A setting, as in `lease_ms=60000`; `queue stats --json` shows all there are
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
struct SendArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The message; `-` reads it from standard input
    body: String,
    /// Who it belongs to: `tenant`, or `tenant/subkey`
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Delivered after so many milliseconds at the earliest
    #[arg(long, value_name = "N")]
    delay_ms: Option<u64>,
    /// Not delivered once so many milliseconds have passed; as long as the queue keeps messages unless told
    #[arg(long, visible_alias = "ttl", value_name = "N")]
    ttl_ms: Option<u64>,
}

#[derive(Debug, Args)]
struct PeekArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Shows at most so many
    #[arg(long, value_name = "N", default_value_t = 10)]
    max: u32,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The message's id
    id: String,
}

#[derive(Debug, Args)]
struct WeightArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The key
    key: String,
    /// From 0.01 to 1000; `none` has it be as its messages wish
    weight: String,
}

#[derive(Debug, Args)]
struct LimitArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The key; without `/` a tenant with all its keys
    key: String,
    /// At most so many in consumers' hands at once; `none` for no such limit
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
    /// At most so many deliveries per second; `none` for no such limit
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// So many at once after a pause; a second's worth unless told
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
}

#[derive(Debug, Args)]
struct RedriveArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The queue they go to
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
}

pub(super) fn run(args: QueueArgs) -> Result<(), CliError> {
    match args.action {
        QueueCommand::List(args) => list(&args),
        QueueCommand::Stats(args) => stats(&args),
        QueueCommand::Create(args) => create(&args),
        QueueCommand::Delete(args) => {
            args.place.client()?.request(Method::DELETE, &path(&args.queue, ""), None)?;
            eprintln!("queue {} removed", args.queue);
            Ok(())
        }
        QueueCommand::Send(args) => send(args),
        QueueCommand::Peek(args) => {
            let at = path(&args.named.queue, &format!("/messages?max={}", args.max));
            let found = args.named.place.client()?.request(Method::GET, &at, None)?;
            table(&found["messages"], &["id", "fairness_key", "body"], "no messages that wait\n")
        }
        QueueCommand::Explain(args) => {
            let at = path(&args.named.queue, &format!("/messages/{}", segment(&args.id)));
            let told = args.named.place.client()?.request(Method::GET, &at, None)?;
            print(&format!("{}\n", told["explanation"].as_str().unwrap_or_default()))
        }
        QueueCommand::Result(args) => {
            let at = path(&args.named.queue, &format!("/results/{}", segment(&args.id)));
            let told = args.named.place.client()?.request(Method::GET, &at, None)?;
            print(&format!("{told:#}\n"))
        }
        QueueCommand::Weight(args) => weigh(&args),
        QueueCommand::Limit(args) => limit(&args),
        QueueCommand::Redrive(args) => redrive(&args),
        QueueCommand::Purge(args) => {
            let told = args.place.client()?.request(Method::POST, &path(&args.queue, "/purge"), None)?;
            eprintln!("queue {}: {} messages removed", args.queue, told["purged"]);
            Ok(())
        }
    }
}

fn path(queue: &str, rest: &str) -> String {
    format!("/api/queues/{}{rest}", segment(queue))
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let listed = args.place.client()?.request(Method::GET, "/api/queues", None)?;
    if args.json {
        return print(&format!("{listed:#}\n"));
    }
    table(&listed["queues"], &["name", "pending", "in_flight", "delayed", "bytes"], "no queues\n")
}

fn stats(args: &StatsArgs) -> Result<(), CliError> {
    let client = args.named.place.client()?;
    let mut shown = client.request(Method::GET, &path(&args.named.queue, ""), None)?;
    let mut keys =
        client.request(Method::GET, &path(&args.named.queue, &format!("/keys?max={}", args.keys)), None)?;
    if args.json {
        shown["keys"] = keys["keys"].clone();
        return print(&format!("{shown:#}\n"));
    }
    print(&format!(
        "{} pending, {} in flight, {} delayed, {} bytes; {} expired\n",
        shown["pending"], shown["in_flight"], shown["delayed"], shown["bytes"], shown["expired"]
    ))?;
    let columns = [
        "name",
        "weight",
        "pending",
        "in_flight",
        "delayed",
        "oldest_age_ms",
        "wait_ms_p50",
        "wait_ms_p99",
        "concurrency_max",
        "rate_per_second",
        "burst",
        "throttled",
        "delivered",
        "redelivered",
    ];
    for key in keys["keys"].as_array_mut().into_iter().flatten() {
        // As in `rate of tenant`.
        let throttle = &key["throttled"];
        if let (Some(reason), Some(scope)) = (throttle["reason"].as_str(), throttle["scope"].as_str()) {
            key["throttled"] = json!(format!("{reason} of {scope}"));
        }
    }
    table(&keys["keys"], &columns, "no keys\n")
}

fn table(objects: &Value, columns: &[&str], none: &str) -> Result<(), CliError> {
    match objects.as_array().map(Vec::as_slice) {
        None | Some([]) => print(none),
        Some(objects) => print(&Table::of(columns, objects).to_string()),
    }
}

fn create(args: &CreateArgs) -> Result<(), CliError> {
    let mut settings = Map::new();
    for setting in &args.settings {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not KEY=VALUE"))?;
        // A word is a text, everything else what it looks like.
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        settings.insert(key.to_owned(), value);
    }
    let client = args.named.place.client()?;
    client.request(Method::PUT, &path(&args.named.queue, ""), Some(&Value::Object(settings)))?;
    eprintln!("queue {} is as it was told", args.named.queue);
    Ok(())
}

fn send(args: SendArgs) -> Result<(), CliError> {
    let mut body = args.body;
    if body == "-" {
        body.clear();
        io::stdin().lock().read_to_string(&mut body)?;
    }
    let mut message = json!({"body": body});
    if let Some(key) = args.key {
        message["fairness_key"] = json!(key);
    }
    if let Some(delay) = args.delay_ms {
        message["delay_ms"] = json!(delay);
    }
    if let Some(ttl) = args.ttl_ms {
        message["ttl_ms"] = json!(ttl);
    }
    let at = path(&args.named.queue, "/messages");
    let told = args.named.place.client()?.request(Method::POST, &at, Some(&message))?;
    print(&format!("{}\n", told["ids"][0].as_str().unwrap_or_default()))
}

fn weigh(args: &WeightArgs) -> Result<(), CliError> {
    let weight = number_or_none(&args.weight)?;
    let at = path(&args.named.queue, &format!("/keys/{}", segment(&args.key)));
    args.named.place.client()?.request(Method::PUT, &at, Some(&json!({"weight": weight})))?;
    eprintln!("key {} of queue {} has weight {}", args.key, args.named.queue, args.weight);
    Ok(())
}

fn limit(args: &LimitArgs) -> Result<(), CliError> {
    let mut wishes = Map::new();
    if let Some(concurrency) = &args.concurrency {
        wishes.insert("concurrency_max".to_owned(), number_or_none(concurrency)?);
    }
    if let Some(rate) = &args.rate {
        wishes.insert("rate_per_second".to_owned(), number_or_none(rate)?);
    }
    if let Some(burst) = args.burst {
        wishes.insert("burst".to_owned(), json!(burst));
    }
    let at = path(&args.named.queue, &format!("/keys/{}", segment(&args.key)));
    let told = args.named.place.client()?.request(Method::PUT, &at, Some(&Value::Object(wishes)))?;
    table(&json!([told]), &["name", "weight", "concurrency_max", "rate_per_second", "burst"], "")
}

fn number_or_none(text: &str) -> Result<Value, CliError> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let number: serde_json::Number =
        serde_json::from_str(text).map_err(|_| format!("{text:?} is neither a number nor none"))?;
    Ok(Value::Number(number))
}

/// Moves step by step, so that a long way can be watched and left.
fn redrive(args: &RedriveArgs) -> Result<(), CliError> {
    let client = args.named.place.client()?;
    let mut moved = 0;
    loop {
        let (step, left) = redrive_step(&client, args)?;
        moved += step;
        if io::stderr().is_terminal() {
            eprint!("\r{moved} moved, {left} left        ");
            io::stderr().flush()?;
        }
        if step == 0 {
            break;
        }
    }
    if io::stderr().is_terminal() {
        eprintln!();
    }
    print(&format!("{moved} messages moved\n"))
}

fn redrive_step(client: &AdminClient, args: &RedriveArgs) -> Result<(u64, u64), CliError> {
    let wish = json!({"to": args.to, "max": STEP});
    let told = client.request(Method::POST, &path(&args.named.queue, "/redrive"), Some(&wish))?;
    let number = |name: &str| told[name].as_u64().ok_or_else(|| format!("the server did not tell {name:?}"));
    Ok((number("moved")?, number("left")?))
}
