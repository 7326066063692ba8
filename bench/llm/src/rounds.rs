//! Alternating rounds: every contender is started once; in each round it runs every workload once, in random order.
//!
//! Limits: a benchmark takes at most rounds × contenders × workloads × the time limit of a turn. If the machine is slow
//! for a workload's whole part of a round, all contenders are slowed down alike, which cancels out in the ratios.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bench_support::{RowSamples, SplitMix64};

use crate::args::Options;
use crate::backend::NODES;
use crate::contender::{self, Contender, RunningProxy, Setup, SupportedWorkloads};
use crate::score::Score;
use crate::workload::{LlmWorkload, mib};
use crate::{json, table};

/// Directory of the contenders' files.
const DIRECTORY: &str = "target/llm-bench";

pub(crate) struct Outcome {
    pub(crate) scores: Vec<Score>,
    /// Labels with the memory in MiB before any load.
    pub(crate) idle: Vec<(String, f64)>,
    /// Labels of contenders that could not be started, with the reason.
    pub(crate) missing: Vec<(String, String)>,
}

/// Runs the rounds, prints the tables, and writes the JSON results if requested.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    // Fails before the first round if the file cannot be written.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    let backend = Backend::start()?;
    let setup = Setup {
        nodes: backend.nodes.clone(),
        directory: DIRECTORY.into(),
        // Contenders run in their own directories.
        evenkeel: std::path::absolute(&options.evenkeel)?,
        python: std::path::absolute(&options.python)?,
        litellm: std::path::absolute(&options.litellm)?,
    };
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run_rounds(options, &setup))?;
    crate::print(&table::all(&outcome, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&outcome, options)),
        None => Ok(()),
    }
}

/// A running contender with the label of its row.
struct Entrant {
    label: String,
    contender: &'static Contender,
    running: RunningProxy,
}

async fn run_rounds(options: &Options, setup: &Setup) -> io::Result<Outcome> {
    let (entrants, missing) = start_all(options, setup).await;
    let baseline = entrants.iter().find(|entrant| entrant.label != Contender::DIRECT);
    let baseline = baseline.map(|entrant| entrant.label.clone());
    let baseline = baseline.ok_or_else(|| io::Error::other("no contender could be started"))?;
    let mut scores: Vec<_> = (options.workloads().iter())
        .map(|workload| {
            let supports = |entrant: &&Entrant| {
                entrant.contender.supports == SupportedWorkloads::All || *workload == LlmWorkload::Load
            };
            let rows =
                entrants.iter().filter(supports).map(|entrant| RowSamples::new(&entrant.label)).collect();
            Score { workload: *workload, rows, baseline: baseline.clone() }
        })
        .collect();
    let mut random = SplitMix64::new(options.seed);
    for round in 1..=options.rounds {
        random.shuffle(&mut scores);
        for score in &mut scores {
            eprintln!("round {round}/{}: {}", options.rounds, score.workload.name());
            run_workload(score, &entrants, &mut random, options.scale).await;
        }
    }
    scores.sort_by_key(|score| LlmWorkload::ALL.iter().position(|workload| *workload == score.workload));
    let idle =
        entrants.iter().filter_map(|entrant| Some((entrant.label.clone(), mib(entrant.running.rss_idle?))));
    Ok(Outcome { scores, idle: idle.collect(), missing })
}

/// Runs the contenders directly after each other, so that the machine is in the same state for all of them.
async fn run_workload(score: &mut Score, entrants: &[Entrant], random: &mut SplitMix64, scale: f64) {
    let mut order: Vec<_> = (0..score.rows.len()).collect();
    random.shuffle(&mut order);
    for index in order {
        let row = &mut score.rows[index];
        let Some(entrant) = entrants.iter().find(|entrant| entrant.label == row.label) else { continue };
        let fraction = match score.workload {
            LlmWorkload::Load | LlmWorkload::One => entrant.contender.request_fraction,
            // Frames are sent at a fixed rate, so a slow contender's turn takes no longer.
            LlmWorkload::Stream => 1.0,
        };
        let outcome = score.workload.run(&entrant.running, scale * fraction).await;
        if let Err(error) = &outcome {
            eprintln!("{}: {error}", row.label);
        }
        row.record(outcome);
    }
    score.record_overhead();
}

/// Starts all selected contenders, the baseline twice; returns those that could not be started with the reason.
async fn start_all(options: &Options, setup: &Setup) -> (Vec<Entrant>, Vec<(String, String)>) {
    let mut entrants = Vec::new();
    let mut missing = Vec::new();
    for contender in contender::ALL.iter().filter(|contender| options.includes(contender)) {
        let again = format!("{} (again)", contender.name);
        let labels = if entrants.len() == 1 {
            vec![contender.name.to_owned(), again]
        } else {
            vec![contender.name.to_owned()]
        };
        for label in labels {
            eprintln!("starting {label}");
            match contender.start(&label, setup).await {
                Ok(running) => entrants.push(Entrant { label, contender, running }),
                Err(error) => {
                    eprintln!("skipping {label}: {error}");
                    missing.push((label, error.to_string()));
                    break;
                }
            }
        }
    }
    (entrants, missing)
}

/// The process of the model servers.
struct Backend {
    /// Dropping it closes its standard input, on which it exits.
    _child: Child,
    nodes: Vec<std::net::SocketAddr>,
}

impl Backend {
    fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("backend").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let nodes: Vec<_> =
            (lines.into_iter().flatten().take(NODES)).filter_map(|line| line.ok()?.parse().ok()).collect();
        if nodes.len() < NODES {
            return Err(io::Error::other("backend did not start"));
        }
        Ok(Self { _child: child, nodes })
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::write(path, text).map_err(with_path)
}
