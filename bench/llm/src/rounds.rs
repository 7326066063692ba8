//! Everybody is started once; in every round each has a turn at every workload, in random order.
//!
//! Bound: a run takes at most rounds × contenders × workloads × the limit of a turn. What is slow for longer than a
//! workload's part of a round is slow for all, and drops out of the ratios.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bench_support::{RowSamples, RunError, SplitMix64};

use crate::args::Options;
use crate::backend::NODES;
use crate::contender::{self, Contender, RunningProxy, Setup, SupportedWorkloads};
use crate::score::Score;
use crate::workload::{LlmWorkload, mib};
use crate::{json, table};

/// Where contenders have their files.
const FOLDER: &str = "target/llm-bench";

/// Everything that a run gave.
pub(crate) struct Outcome {
    pub(crate) scores: Vec<Score>,
    /// Labels with memory before any load, in MiB.
    pub(crate) idle: Vec<(String, f64)>,
    /// Labels with the reason why there is no row.
    pub(crate) missing: Vec<(String, String)>,
}

/// Runs what the options ask for, prints tables, and writes the figures where they are wanted.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    // Tried before the first round: nobody should wait to hear that a folder is missing.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    let backend = Backend::start()?;
    let place = Setup {
        nodes: backend.nodes.clone(),
        folder: FOLDER.into(),
        // Contenders start in folders of their own.
        evenkeel: std::path::absolute(&options.evenkeel)?,
        python: std::path::absolute(&options.python)?,
        litellm: std::path::absolute(&options.litellm)?,
    };
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(play(options, &place))?;
    crate::print(&table::all(&outcome, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&outcome, options)),
        None => Ok(()),
    }
}

/// A contender with its row's label.
struct Entrant {
    label: String,
    contender: &'static Contender,
    running: RunningProxy,
}

async fn play(options: &Options, place: &Setup) -> io::Result<Outcome> {
    let (entrants, missing) = start(options, place).await;
    let baseline = entrants.iter().find(|entrant| entrant.label != Contender::DIRECT);
    let baseline = baseline.map(|entrant| entrant.label.clone());
    let baseline = baseline.ok_or_else(|| io::Error::other("nobody could be started"))?;
    let mut scores: Vec<_> = (options.workloads.iter())
        .map(|workload| {
            let takes = |entrant: &&Entrant| {
                entrant.contender.takes == SupportedWorkloads::Everything || *workload == LlmWorkload::Load
            };
            let lines =
                entrants.iter().filter(takes).map(|entrant| RowSamples::new(&entrant.label)).collect();
            Score { workload: *workload, lines, baseline: baseline.clone() }
        })
        .collect();
    let mut random = SplitMix64::new(options.seed);
    for round in 1..=options.rounds {
        random.shuffle(&mut scores);
        for score in &mut scores {
            eprintln!("round {round}/{}: {}", options.rounds, score.workload.name());
            play_workload(score, &entrants, &mut random, options.scale).await;
        }
    }
    scores.sort_by_key(|score| LlmWorkload::ALL.iter().position(|workload| *workload == score.workload));
    let idle =
        entrants.iter().filter_map(|entrant| Some((entrant.label.clone(), mib(entrant.running.rss_idle?))));
    Ok(Outcome { scores, idle: idle.collect(), missing })
}

/// Gives everybody a turn, one right after the other, so that they share whatever the machine goes through.
async fn play_workload(score: &mut Score, entrants: &[Entrant], random: &mut SplitMix64, scale: f64) {
    let mut places: Vec<_> = (0..score.lines.len()).collect();
    random.shuffle(&mut places);
    for place in places {
        let line = &mut score.lines[place];
        let Some(entrant) = entrants.iter().find(|entrant| entrant.label == line.label) else { continue };
        let part = match score.workload {
            LlmWorkload::Load | LlmWorkload::One => entrant.contender.part,
            // Frames come at their own pace, however many were asked for.
            LlmWorkload::Stream => 1.0,
        };
        let outcome = score.workload.run(&entrant.running, scale * part).await;
        if let Err(RunError(what)) = &outcome {
            eprintln!("{}: {what}", line.label);
        }
        line.note(outcome);
    }
    score.note_added();
}

/// Starts everybody who is wanted and can be; the baseline twice.
async fn start(options: &Options, place: &Setup) -> (Vec<Entrant>, Vec<(String, String)>) {
    let mut entrants = Vec::new();
    let mut missing = Vec::new();
    for contender in contender::ALL.iter().filter(|contender| options.wants(contender)) {
        let again = format!("{} (again)", contender.name);
        let labels = if entrants.len() == 1 {
            vec![contender.name.to_owned(), again]
        } else {
            vec![contender.name.to_owned()]
        };
        for label in labels {
            eprintln!("starting {label}");
            match contender.start(&label, place).await {
                Ok(running) => entrants.push(Entrant { label, contender, running }),
                Err(error) => {
                    eprintln!("{label} is left out: {error}");
                    missing.push((label, error.to_string()));
                    break;
                }
            }
        }
    }
    (entrants, missing)
}

/// The nodes, in a process of their own.
struct Backend {
    /// Ends with its standard input, which ends with this.
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
            return Err(io::Error::other("the backend did not start"));
        }
        Ok(Self { _child: child, nodes })
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::write(path, text).map_err(named)
}
