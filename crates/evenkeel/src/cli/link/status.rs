//! `evenkeel link status`: shows the paths of the links on this machine.

use std::thread;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::run_file::RunningLink;
use crate::cli::client::AdminClient;
use crate::cli::table::Table;
use crate::cli::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel link status                                  show all links of this machine
  evenkeel link status --watch                          refresh every second
  evenkeel link status --json | jq '.[].sessions[].paths[].rtt_ms'
  evenkeel link status --url http://127.0.0.1:9464      show the link whose --status-listen is this address
";

/// Number of flows of datagrams that are shown, those with most traffic first.
const DATAGRAM_ROWS_MAX: usize = 10;

/// Show state, hops, RTT, loss, weight and shares of the paths of the links on this machine, and its relays
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second until interrupted
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Status page of a link [default: all links of this machine]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

pub(super) fn run(args: &StatusArgs) -> Result<(), CliError> {
    loop {
        let links = read(args)?;
        if args.json {
            return print(&format!("{:#}\n", Value::Array(links)));
        }
        let clear = if args.watch { "\x1b[2J\x1b[H" } else { "" };
        print(&format!("{clear}{}", describe(&links)))?;
        if !args.watch {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Reads the status of one link, or of all links of this machine.
fn read(args: &StatusArgs) -> Result<Vec<Value>, CliError> {
    if let Some(url) = &args.url {
        return Ok(vec![AdminClient::unauthenticated(url)?.request(Method::GET, "/status", None)?]);
    }
    let mut found = Vec::new();
    for link in RunningLink::all()? {
        let status = AdminClient::unauthenticated(&link.url)
            .and_then(|client| client.request(Method::GET, "/status", None));
        match status {
            Ok(mut status) => {
                status["pid"] = json!(link.pid);
                found.push(status);
            }
            Err(_) if link.remove_if_ended() => {}
            Err(error) => eprintln!("evenkeel: the link of process {} does not answer: {error}", link.pid),
        }
    }
    if found.is_empty() {
        return Err(
            "found no running link of this user; start one with `evenkeel link listen`, `evenkeel link connect` or `evenkeel link relay`"
                .into(),
        );
    }
    Ok(found)
}

fn describe(links: &[Value]) -> String {
    let mut out = String::new();
    for link in links {
        if let Some(pid) = link["pid"].as_u64() {
            let kind = if link["relay"].is_null() { "link" } else { "relay" };
            out.push_str(&format!("{kind} of process {pid}\n"));
        }
        if !link["relay"].is_null() {
            out.push_str(&describe_relay(&link["relay"]));
            continue;
        }
        let sessions = link["sessions"].as_array().map_or(&[][..], Vec::as_slice);
        if sessions.is_empty() {
            out.push_str("no session: the other side is not connected\n");
        }
        for session in sessions {
            out.push_str(&describe_session(session));
        }
    }
    out
}

fn describe_session(session: &Value) -> String {
    let header = [
        "PATH",
        "STATE",
        "HOPS",
        "RTT",
        "LOSS",
        "WEIGHT",
        "FLOWS",
        "BONDED",
        "IN FLIGHT",
        "SENT",
        "RE-INJECTED",
    ];
    let paths = session["paths"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = paths.iter().map(|path| {
        vec![
            path["name"].as_str().unwrap_or("-").to_owned(),
            describe_state(path),
            path["hops"].as_u64().map_or("-".to_owned(), |hops| hops.to_string()),
            path["rtt_ms"].as_f64().map_or("-".to_owned(), |rtt| format!("{rtt:.1} ms")),
            path["loss"].as_f64().map_or("-".to_owned(), |loss| format!("{:.1} %", loss * 100.0)),
            path["weight"].as_u64().map_or("-".to_owned(), |weight| weight.to_string()),
            describe_share(&path["flow_share"]),
            describe_bonded(path),
            bytes(&path["in_flight_bytes"]),
            bytes(&path["sent_bytes"]),
            bytes(&path["reinjected_bytes"]),
        ]
    });
    let table = Table::of_rows(header.map(str::to_owned).to_vec(), rows);
    let flows = session["flows"].as_array().map_or(0, Vec::len);
    format!("{table}open flows: {flows}\n{}", describe_datagrams(session))
}

/// Formats the datagrams of each path and of the flows that carry most; empty if there were none.
fn describe_datagrams(session: &Value) -> String {
    let count = |value: &Value| value.as_u64().map_or("-".to_owned(), |count| count.to_string());
    let counts = |value: &Value| {
        ["sent", "unsent", "received", "duplicates", "lost", "late", "unread"].map(|key| count(&value[key]))
    };
    let total = &session["datagrams"];
    if ["sent", "unsent", "received", "lost"].iter().all(|key| total[key].as_u64().unwrap_or(0) == 0) {
        return String::new();
    }
    let paths = session["paths"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = paths.iter().map(|path| {
        vec![
            path["name"].as_str().unwrap_or("-").to_owned(),
            count(&path["datagrams_sent"]),
            count(&path["datagrams_received"]),
        ]
    });
    let header = ["PATH", "DATAGRAMS SENT", "DATAGRAMS RECEIVED"];
    let by_path = Table::of_rows(header.map(str::to_owned).to_vec(), rows);
    let flows = session["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut flows: Vec<&Value> = flows.iter().filter(|flow| !flow["datagrams"].is_null()).collect();
    let traffic = |flow: &Value| {
        let counters = &flow["datagrams"];
        counters["sent"].as_u64().unwrap_or(0) + counters["received"].as_u64().unwrap_or(0)
    };
    flows.sort_by_key(|flow| std::cmp::Reverse(traffic(flow)));
    let of_flow = |flow: &&Value| {
        let mut row = vec![count(&flow["flow"]), flow["lane"].as_str().unwrap_or("-").to_owned()];
        row.extend(counts(&flow["datagrams"]));
        row.push(count(&flow["reorder_datagrams"]));
        row
    };
    let mut rows =
        vec![["all".to_owned(), "-".to_owned()].into_iter().chain(counts(total)).collect::<Vec<_>>()];
    rows[0].push("-".to_owned());
    rows.extend(flows.iter().take(DATAGRAM_ROWS_MAX).map(of_flow));
    let header =
        ["FLOW", "MODE", "SENT", "UNSENT", "RECEIVED", "DUPLICATES", "LOST", "LATE", "UNREAD", "REORDERING"];
    let by_flow = Table::of_rows(header.map(str::to_owned).to_vec(), rows);
    format!("{by_path}{by_flow}")
}

fn describe_relay(relay: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let count = |value: &Value| value.as_u64().unwrap_or_default().to_string();
    let peers = relay["peers"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = peers.iter().map(|peer| vec![text(&peer["fingerprint"]), count(&peer["associations"])]);
    let peers = Table::of_rows(vec!["PEER".to_owned(), "ASSOCIATIONS".to_owned()], rows);
    let header = ["DIRECTION", "PACKETS", "BYTES", "DROPPED"];
    let rows = ["to_next", "to_client"].map(|direction| {
        let traffic = &relay[direction];
        let name = direction.replace('_', " ");
        vec![name, count(&traffic["packets"]), bytes(&traffic["bytes"]), count(&traffic["dropped_packets"])]
    });
    let traffic = Table::of_rows(header.map(str::to_owned).to_vec(), rows);
    let refused = relay["refused"].as_object().into_iter().flatten();
    let refused: Vec<String> = refused
        .filter(|(_, count)| count.as_u64() > Some(0))
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let refused = if refused.is_empty() { "none".to_owned() } else { refused.join(", ") };
    format!("listening on {}\n{peers}{traffic}refused: {refused}\n", text(&relay["listen"]))
}

fn describe_state(path: &Value) -> String {
    let state = match (path["state"].as_str(), path["role"].as_str()) {
        (Some("ACTIVE"), Some("candidate")) => "CANDIDATE".to_owned(),
        (Some(state), Some("candidate")) => format!("{state}, candidate"),
        (state, _) => state.unwrap_or("-").to_owned(),
    };
    match (path["connected"].as_bool(), path["silent"].as_bool()) {
        (Some(false), _) => format!("{state}, not connected"),
        (_, Some(true)) => format!("{state}, silent"),
        _ => state,
    }
}

/// Formats the share of the bonded bytes, of a path in the bonded lane.
fn describe_bonded(path: &Value) -> String {
    if path["bonded"] == false { "out".to_owned() } else { describe_share(&path["bonded_share"]) }
}

/// Formats a share as observed and expected percentages.
fn describe_share(share: &Value) -> String {
    match (share["observed"].as_f64(), share["theory"].as_f64()) {
        (Some(observed), Some(theory)) => format!("{:.1} % ({:.1} %)", observed * 100.0, theory * 100.0),
        _ => "-".to_owned(),
    }
}

fn bytes(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else { return "-".to_owned() };
    let scaled = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.0} kB", scaled(1_000)),
        10_000_000..10_000_000_000 => format!("{:.0} MB", scaled(1_000_000)),
        _ => format!("{:.0} GB", scaled(1_000_000_000)),
    }
}
