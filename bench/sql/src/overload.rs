//! `cargo xtask bench sql -- overload`: three nodes under a load that one of them cannot serve, from clients that know
//! one address.
//!
//! Contenders: one node with as many connections as all three together, which is the ideal; HAProxy in front of three
//! independent nodes; and a cluster whose first node hands requests over, by redirects that the client follows or by
//! forwarding them. Each [`trace`] of queries is the same for all contenders of a round. PostgreSQL sleeps, so the
//! capacity of a node is its number of connections and not the machine's.
//!
//! Limits: a turn takes at most [`TURN_TIME_MAX`]; a turn in which a query has no response by then has no sample.

mod client;
mod deployment;
mod trace;

use std::io;
use std::path::absolute;
use std::time::Duration;

use bench_support::{RowSamples, RunError, SplitMix64, TurnSample, latency_percentiles};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::args::OverloadOptions;
use crate::case::{Comparison, SqlMetric};
use crate::database::BenchDatabase;
use crate::rounds::{DIRECTORY, load_average};
use crate::score::CaseScore;
use crate::{json as results, table};

use self::client::{OverloadTurn, ServedBy};
use self::deployment::{Arrangement, Deployment, OverloadSetup};
use self::trace::Trace;

/// Connections to the database of each node.
const CONNECTIONS: u32 = 9;
/// Capacity that is left of a small or slow node: one in so many.
const REDUCTION: u32 = 3;
const TURN_TIME_MAX: Duration = Duration::from_secs(60);
const WARM_UP: Duration = Duration::from_millis(500);
const BASELINE: &str = "one-node";

/// Rows of each table.
const CONTENDERS: &[(&str, Arrangement)] = &[
    (BASELINE, Arrangement::OneNode),
    ("one-node (again)", Arrangement::OneNode),
    ("haproxy", Arrangement::Haproxy),
    ("evenkeel-redirect", Arrangement::Redirect),
    ("evenkeel-forward", Arrangement::Forward),
];

const METRICS: &[SqlMetric] = &[
    SqlMetric { name: "rate", heading: "queries/s", comparison: Comparison::Table },
    SqlMetric { name: "mean_ms", heading: "mean ms", comparison: Comparison::TableAndJson("latency") },
    SqlMetric { name: "p50_ms", heading: "p50 ms", comparison: Comparison::Table },
    SqlMetric { name: "p99_ms", heading: "p99 ms", comparison: Comparison::TableAndJson("p99") },
    SqlMetric { name: "elsewhere_percent", heading: "% elsewhere", comparison: Comparison::None },
    SqlMetric { name: "redirects", heading: "redirects/query", comparison: Comparison::None },
    SqlMetric { name: "refused_percent", heading: "% refused", comparison: Comparison::None },
    SqlMetric { name: "cpu_us", heading: "CPU µs/query", comparison: Comparison::TableAndJson("cpu") },
];

/// Capacity of the third node; the other two have all their connections at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThirdNode {
    Equal,
    /// A third of the connections.
    Small,
    /// Every query takes three times as long.
    Slow,
}

struct OverloadCase {
    name: &'static str,
    about: &'static str,
    third: ThirdNode,
    /// Average number of connections that the queries need.
    load: f64,
}

/// Load of 1.5 times the capacity of one node.
const LOAD_OF_ONE: f64 = 1.5 * CONNECTIONS as f64;

const CASES: &[OverloadCase] = &[
    OverloadCase {
        name: "overload-one",
        about: "1.5 times the capacity of one node, half of that of three",
        third: ThirdNode::Equal,
        load: LOAD_OF_ONE,
    },
    OverloadCase {
        name: "overload-three",
        about: "0.9 times the capacity of three nodes",
        third: ThirdNode::Equal,
        load: 0.9 * 3.0 * CONNECTIONS as f64,
    },
    OverloadCase {
        name: "overload-small",
        about: "1.5 times the capacity of one node; the third node has a third of the connections",
        third: ThirdNode::Small,
        load: LOAD_OF_ONE,
    },
    OverloadCase {
        name: "overload-slow",
        about: "1.5 times the capacity of one node; the third node is three times as slow",
        third: ThirdNode::Slow,
        load: LOAD_OF_ONE,
    },
];

/// Runs all cases and prints a table for each.
pub(crate) fn main(options: &OverloadOptions) -> io::Result<()> {
    options.run.prepare()?;
    let database = BenchDatabase::start_empty()?;
    let setup = OverloadSetup {
        directory: absolute(DIRECTORY)?.join("overload"),
        evenkeel: absolute(&options.run.evenkeel)?,
        database_url: database.url(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut random = SplitMix64::new(options.run.seed);
    let mut scores = Vec::new();
    let mut loads = Vec::new();
    for case in CASES {
        loads.push(load_average());
        scores.push(runtime.block_on(run_case(case, options, &setup, &mut random)));
    }
    let mut text = format!(
        "rounds: {}, seconds per turn: {}, seed: {}; load average before each case: {}\n",
        options.rounds,
        options.seconds,
        options.run.seed,
        loads.join(", ")
    );
    scores.iter().for_each(|score| text += &table::one(score));
    crate::print(&text)?;
    options.run.write_json(|| to_json(&scores, &loads, options))
}

fn to_json(scores: &[CaseScore], loads: &[String], options: &OverloadOptions) -> String {
    let rows: Vec<Value> = scores.iter().flat_map(results::rows).collect();
    let all = json!({
        "suite": "sql-overload",
        "better": "lower",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "seed": options.run.seed,
        "load_average": loads,
        "rows": rows,
    });
    format!("{all:#}\n")
}

/// Starts all contenders, and runs them in random order in every round.
async fn run_case(
    case: &OverloadCase,
    options: &OverloadOptions,
    setup: &OverloadSetup,
    random: &mut SplitMix64,
) -> CaseScore {
    let window = Duration::from_secs(options.seconds.into());
    let warm_up = Trace::new(random.next_number(), case.load, WARM_UP);
    let mut rows = Vec::new();
    let mut deployments = Vec::new();
    let start = |(label, arrangement)| (label, Deployment::start(label, arrangement, case.third, setup));
    // All processes start before the first is waited for.
    let started: Vec<_> = CONTENDERS.iter().copied().map(start).collect();
    for (label, deployment) in started {
        match warm_up_when_ready(deployment, &warm_up).await {
            Ok(deployment) => {
                rows.push(RowSamples::new(label));
                deployments.push(deployment);
            }
            Err(error) => eprintln!("skipping {label}: {error}"),
        }
    }
    for round in 1..=options.rounds {
        eprintln!("round {round}/{}: {}", options.rounds, case.name);
        let trace = Trace::new(random.next_number(), case.load, window);
        let mut order: Vec<_> = (0..rows.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let outcome = measure(&deployments[index], &trace).await;
            if let Err(error) = &outcome {
                eprintln!("{}: {error}", rows[index].label);
            }
            rows[index].record(outcome);
        }
    }
    let name = case.name.to_owned();
    CaseScore { name, about: case.about.to_owned(), metrics: METRICS, baseline: BASELINE, rows }
}

async fn warm_up_when_ready(
    deployment: io::Result<Deployment>,
    trace: &Trace,
) -> Result<Deployment, RunError> {
    let deployment = deployment?;
    deployment.wait_until_ready().await?;
    measure(&deployment, trace).await?;
    Ok(deployment)
}

async fn measure(deployment: &Deployment, trace: &Trace) -> Result<TurnSample, RunError> {
    let cpu_before = deployment.cpu()?;
    let timed_out = RunError(format!("timed out after {} s", TURN_TIME_MAX.as_secs()));
    let turn =
        timeout(TURN_TIME_MAX, client::run(deployment.entry, trace)).await.unwrap_or(Err(timed_out))?;
    let cpu = deployment.cpu()?.saturating_sub(cpu_before);
    Ok(sample(turn, cpu))
}

fn sample(OverloadTurn { outcomes, window }: OverloadTurn, cpu: Duration) -> TurnSample {
    let queries = outcomes.len() as f64;
    let count = |served_by: ServedBy| outcomes.iter().filter(|one| one.served_by == served_by).count() as f64;
    let refused = count(ServedBy::Nobody);
    let served: Vec<_> = outcomes.iter().filter(|one| one.served_by != ServedBy::Nobody).collect();
    let in_window = served.iter().filter(|one| one.ended <= window).count() as f64;
    let redirects: u32 = outcomes.iter().map(|one| one.redirects).sum();
    let total: Duration = served.iter().map(|one| one.latency).sum();
    let mut sample = vec![
        ("rate", in_window / window.as_secs_f64()),
        ("mean_ms", total.as_secs_f64() * 1e3 / served.len() as f64),
        ("elsewhere_percent", count(ServedBy::Other) * 100.0 / queries),
        ("redirects", f64::from(redirects) / queries),
        ("refused_percent", refused * 100.0 / queries),
        ("cpu_us", cpu.as_secs_f64() * 1e6 / queries),
    ];
    let latencies_ns = served.iter().map(|one| one.latency.as_nanos() as u64).collect();
    for (name, us) in latency_percentiles(latencies_ns) {
        sample.push((if name == "p50_us" { "p50_ms" } else { "p99_ms" }, us / 1e3));
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::client::QueryOutcome;
    use super::*;
    use bench_support::get;

    #[test]
    fn refused_queries_have_no_latency_and_late_ones_no_share_in_the_rate() {
        let outcome = |ended_ms, redirects, served_by| QueryOutcome {
            latency: Duration::from_millis(10),
            ended: Duration::from_millis(ended_ms),
            redirects,
            served_by,
        };
        let outcomes = vec![
            outcome(100, 0, ServedBy::Entry),
            outcome(900, 1, ServedBy::Other),
            outcome(1_100, 1, ServedBy::Other),
            outcome(1, 0, ServedBy::Nobody),
        ];
        let window = Duration::from_secs(1);
        let sample = sample(OverloadTurn { outcomes, window }, Duration::from_millis(2));
        for (name, expected) in [
            ("rate", 2.0),
            ("mean_ms", 10.0),
            ("p99_ms", 10.0),
            ("elsewhere_percent", 50.0),
            ("redirects", 0.5),
            ("refused_percent", 25.0),
            ("cpu_us", 500.0),
        ] {
            assert_eq!(get(&sample, name), Some(expected), "{name}");
        }
    }
}
