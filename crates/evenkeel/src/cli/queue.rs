//! `evenkeel queue …`: manages the queues of a running server.

use std::io::{self, IsTerminal, Read, Write};

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, encode_segment};
use super::table::Table;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel queue create jobs --owner acme lease_ms=60000
  evenkeel queue create events --shared                 let every tenant use the queue
  evenkeel queue assign jobs jobs-dead --owner acme     give a shared queue and its dead-letter queue an owner
  evenkeel queue create jobs 'dead_letters={\"queue\": \"jobs-dead\", \"after\": 5}'
  evenkeel queue send jobs --key acme '{\"do\": \"this\"}'
  evenkeel queue list
  evenkeel queue stats acme/jobs                        show messages by fairness key, of a queue that acme owns
  evenkeel queue weight jobs acme 3                     give acme three times the share of a key of weight 1
  evenkeel queue limit jobs acme --concurrency 5        deliver at most five of acme's messages at a time
  evenkeel queue explain jobs 5c2f0c3e-8d0b-4a51-9e07-1f6f3b0d2a94
  evenkeel queue result jobs 5c2f0c3e-8d0b-4a51-9e07-1f6f3b0d2a94
  evenkeel queue redrive jobs-dead                      move messages back to the queues they came from
  evenkeel queue purge jobs
";

/// Maximum number of messages per redrive request.
const REDRIVE_BATCH: u64 = 1_000;

/// Manage the queues of a running server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    action: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// List the queues and their message counts
    List(ListArgs),
    /// Show message counts and wait times by fairness key
    Stats(StatsArgs),
    /// Create a queue, or change the settings of an existing one
    Create(CreateArgs),
    /// Give queues to another owner, with their messages, or share them
    Assign(AssignArgs),
    /// Delete a queue and its messages
    Delete(NamedArgs),
    /// Send a message and print its ID
    Send(SendArgs),
    /// Show the next messages without receiving them
    Peek(PeekArgs),
    /// Explain where a message is, and why it has not been delivered or acknowledged
    Explain(MessageArgs),
    /// Print the result of a message (job) that the gateway dispatched to a model or URL
    Result(MessageArgs),
    /// Set the weight of a fairness key, relative to other keys
    Weight(WeightArgs),
    /// Limit the concurrency and rate of a fairness key
    Limit(LimitArgs),
    /// Move messages to another queue, or back to the queues they came from
    Redrive(RedriveArgs),
    /// Delete all messages in a queue
    Purge(NamedArgs),
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
    /// Name of the queue; `tenant/queue` for a queue that a tenant owns
    queue: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
struct StatsArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Maximum number of keys to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    keys: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Tenant that owns the queue
    #[arg(long, value_name = "TENANT", conflicts_with = "shared")]
    owner: Option<String>,
    /// The queue has no owner: every tenant may use it, or those that its policy names
    #[arg(long)]
    shared: bool,
    /// Setting such as `lease_ms=60000`; `queue stats --json` shows the settings of an existing queue
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
struct AssignArgs {
    /// Names of the queues; `tenant/queue` for a queue that a tenant owns
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// Tenant that becomes the owner
    #[arg(long, value_name = "TENANT", required_unless_present = "shared", conflicts_with = "shared")]
    owner: Option<String>,
    /// Share the queues with all tenants
    #[arg(long)]
    shared: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
struct SendArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Message body; `-` reads it from standard input
    body: String,
    /// Fairness key: `tenant` or `tenant/subkey`
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Delay before the first delivery, in milliseconds
    #[arg(long, value_name = "N")]
    delay_ms: Option<u64>,
    /// Time to live, in milliseconds [default: the queue's retention]
    #[arg(long, visible_alias = "ttl", value_name = "N")]
    ttl_ms: Option<u64>,
}

#[derive(Debug, Args)]
struct PeekArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Maximum number of messages to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    max: u32,
}

#[derive(Debug, Args)]
struct MessageArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Message ID
    id: String,
}

#[derive(Debug, Args)]
struct WeightArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Fairness key
    key: String,
    /// Weight from 0.01 to 1000; `none` removes it, so that the weight in the messages applies again
    weight: String,
}

#[derive(Debug, Args)]
struct LimitArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Fairness key: `tenant/subkey`, or `tenant` to limit all keys of a tenant together
    key: String,
    /// Maximum number of messages in flight; `none` removes the limit
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
    /// Maximum deliveries per second; `none` removes the limit
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// Burst size of the rate limit, in deliveries [default: the rate, that is, the deliveries of one second]
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
}

#[derive(Debug, Args)]
struct RedriveArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Destination queue [default: each message's original queue]
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
}

pub(super) fn run(args: QueueArgs) -> Result<(), CliError> {
    match args.action {
        QueueCommand::List(args) => list(&args),
        QueueCommand::Stats(args) => stats(&args),
        QueueCommand::Create(args) => create(&args),
        QueueCommand::Assign(args) => assign(&args),
        QueueCommand::Delete(args) => {
            args.connect.client()?.request(Method::DELETE, &path(&args.queue, ""), None)?;
            eprintln!("deleted queue {:?} and its messages", args.queue);
            Ok(())
        }
        QueueCommand::Send(args) => send(args),
        QueueCommand::Peek(args) => {
            let path = path(&args.named.queue, &format!("/messages?max={}", args.max));
            let response = args.named.connect.client()?.request(Method::GET, &path, None)?;
            table(&response["messages"], &["id", "fairness_key", "body"], "no messages ready\n")
        }
        QueueCommand::Explain(args) => {
            let path = path(&args.named.queue, &format!("/messages/{}", encode_segment(&args.id)));
            let response = args.named.connect.client()?.request(Method::GET, &path, None)?;
            print(&format!("{}\n", response["explanation"].as_str().unwrap_or_default()))
        }
        QueueCommand::Result(args) => {
            let path = path(&args.named.queue, &format!("/results/{}", encode_segment(&args.id)));
            let response = args.named.connect.client()?.request(Method::GET, &path, None)?;
            print(&format!("{response:#}\n"))
        }
        QueueCommand::Weight(args) => set_weight(&args),
        QueueCommand::Limit(args) => set_limits(&args),
        QueueCommand::Redrive(args) => redrive(&args),
        QueueCommand::Purge(args) => {
            let response =
                args.connect.client()?.request(Method::POST, &path(&args.queue, "/purge"), None)?;
            eprintln!("deleted {} messages of queue {:?}", response["purged"], args.queue);
            Ok(())
        }
    }
}

fn path(queue: &str, rest: &str) -> String {
    format!("/api/queues/{}{rest}", encode_segment(queue))
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let response = args.connect.client()?.request(Method::GET, "/api/queues", None)?;
    if args.json {
        return print(&format!("{response:#}\n"));
    }
    table(&response["queues"], &["name", "owner", "pending", "in_flight", "delayed", "bytes"], "no queues\n")
}

fn stats(args: &StatsArgs) -> Result<(), CliError> {
    let client = args.named.connect.client()?;
    let mut queue = client.request(Method::GET, &path(&args.named.queue, ""), None)?;
    let mut keys =
        client.request(Method::GET, &path(&args.named.queue, &format!("/keys?max={}", args.keys)), None)?;
    if args.json {
        queue["keys"] = keys["keys"].clone();
        return print(&format!("{queue:#}\n"));
    }
    print(&format!(
        "{} pending, {} in flight, {} delayed, {} bytes; {} expired\n",
        queue["pending"], queue["in_flight"], queue["delayed"], queue["bytes"], queue["expired"]
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
        let throttled = &key["throttled"];
        if let (Some(reason), Some(scope)) = (throttled["reason"].as_str(), throttled["scope"].as_str()) {
            key["throttled"] = json!(format!("{reason} of {scope}"));
        }
    }
    table(&keys["keys"], &columns, "no keys\n")
}

/// Prints a table, or `empty` if there are no objects.
fn table(objects: &Value, columns: &[&str], empty: &str) -> Result<(), CliError> {
    match objects.as_array().map(Vec::as_slice) {
        None | Some([]) => print(empty),
        Some(objects) => print(&Table::new(columns, objects).to_string()),
    }
}

fn create(args: &CreateArgs) -> Result<(), CliError> {
    let mut settings = Map::new();
    for setting in &args.settings {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not KEY=VALUE"))?;
        // A value that is not JSON is a string.
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        settings.insert(key.to_owned(), value);
    }
    let client = args.named.connect.client()?;
    let name = &match &args.owner {
        Some(owner) => format!("{owner}/{}", args.named.queue),
        None => args.named.queue.clone(),
    };
    let path = path(name, "");
    let before = client.get_optional(&path)?;
    let has_owner = args.shared || name.contains('/');
    if before.is_none() && !has_owner && has_tenants(&client)? {
        return Err(format!(
            "name the owner of queue {name:?} with --owner TENANT, or share it with --shared"
        )
        .into());
    }
    let after = client.request(Method::PUT, &path, Some(&Value::Object(settings)))?;
    match before {
        None => eprintln!("created queue {name:?}"),
        Some(before) => match &changes(&before["settings"], &after["settings"])[..] {
            [] => eprintln!("queue {name:?} already has these settings"),
            changes => eprintln!("updated queue {name:?}: {}", changes.join(", ")),
        },
    }
    Ok(())
}

fn has_tenants(client: &AdminClient) -> Result<bool, CliError> {
    let response = client.request(Method::GET, "/api/tenants", None)?;
    Ok(response["tenants"].as_array().is_some_and(|tenants| !tenants.is_empty()))
}

fn assign(args: &AssignArgs) -> Result<(), CliError> {
    let (first, others) = args.queues.split_first().ok_or("no queue given")?;
    let body = json!({"owner": args.owner, "with": others});
    args.connect.client()?.request(Method::POST, &path(first, "/assign"), Some(&body))?;
    for queue in &args.queues {
        match &args.owner {
            Some(owner) => eprintln!("queue {queue:?} is owned by tenant {owner:?}"),
            None => eprintln!("queue {queue:?} is shared"),
        }
    }
    Ok(())
}

/// Returns the settings that differ, each as `lease_ms 30000 → 60000`.
fn changes(before: &Value, after: &Value) -> Vec<String> {
    let after = after.as_object().into_iter().flatten();
    let changed = after.filter(|(key, value)| before[key.as_str()] != **value);
    changed.map(|(key, value)| format!("{key} {} → {value}", before[key.as_str()])).collect()
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
    let path = path(&args.named.queue, "/messages");
    let response = args.named.connect.client()?.request(Method::POST, &path, Some(&message))?;
    print(&format!("{}\n", response["ids"][0].as_str().unwrap_or_default()))
}

fn set_weight(args: &WeightArgs) -> Result<(), CliError> {
    let weight = number_or_none(&args.weight)?;
    let queue = &args.named.queue;
    let path = path(queue, &format!("/keys/{}", encode_segment(&args.key)));
    args.named.connect.client()?.request(Method::PUT, &path, Some(&json!({"weight": weight})))?;
    match weight {
        Value::Null => eprintln!("removed the weight of key {:?} in queue {queue:?}", args.key),
        weight => eprintln!("set the weight of key {:?} in queue {queue:?} to {weight}", args.key),
    }
    Ok(())
}

fn set_limits(args: &LimitArgs) -> Result<(), CliError> {
    let mut limits = Map::new();
    if let Some(concurrency) = &args.concurrency {
        limits.insert("concurrency_max".to_owned(), number_or_none(concurrency)?);
    }
    if let Some(rate) = &args.rate {
        limits.insert("rate_per_second".to_owned(), number_or_none(rate)?);
    }
    if let Some(burst) = args.burst {
        limits.insert("burst".to_owned(), json!(burst));
    }
    let path = path(&args.named.queue, &format!("/keys/{}", encode_segment(&args.key)));
    let key_settings =
        args.named.connect.client()?.request(Method::PUT, &path, Some(&Value::Object(limits)))?;
    table(&json!([key_settings]), &["name", "weight", "concurrency_max", "rate_per_second", "burst"], "")
}

fn number_or_none(text: &str) -> Result<Value, CliError> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let number: serde_json::Number =
        serde_json::from_str(text).map_err(|_| format!("{text:?} is neither a number nor \"none\""))?;
    Ok(Value::Number(number))
}

/// Moves messages in batches, so that a long redrive shows its progress and can be interrupted.
fn redrive(args: &RedriveArgs) -> Result<(), CliError> {
    let client = args.named.connect.client()?;
    let mut moved = 0;
    loop {
        let batch = redrive_batch(&client, args)?;
        moved += batch.moved;
        if io::stderr().is_terminal() {
            eprint!("\r{moved} moved, {} remaining   ", batch.remaining);
            io::stderr().flush()?;
        }
        if batch.moved == 0 {
            break;
        }
    }
    if io::stderr().is_terminal() {
        eprintln!();
    }
    print(&format!("{moved} messages moved\n"))
}

/// Result of one redrive request.
struct RedriveBatch {
    moved: u64,
    remaining: u64,
}

fn redrive_batch(client: &AdminClient, args: &RedriveArgs) -> Result<RedriveBatch, CliError> {
    let body = json!({"to": args.to, "max": REDRIVE_BATCH});
    let response = client.request(Method::POST, &path(&args.named.queue, "/redrive"), Some(&body))?;
    let number =
        |name: &str| response[name].as_u64().ok_or_else(|| format!("the server's response has no {name:?}"));
    Ok(RedriveBatch { moved: number("moved")?, remaining: number("left")? })
}
