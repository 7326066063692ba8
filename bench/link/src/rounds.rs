//! Rounds: in each, every contender runs every case once, in random order, in a new network.
//!
//! In fail-over cases, round `n` turns path `n` into a black hole; after the last path, path 1 is next. TCP in the multipath
//! cases, WireGuard, and the long cases (`shared-*`, `flapping`) run in the first round only: their results hardly differ
//! from round to round.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use bench_support::{RowSamples, SplitMix64};

use crate::args::LinkBenchOptions;
use crate::case::{CaseKind, LinkCase};
use crate::contender::LinkContender;
use crate::goals;
use crate::interrupt::InterruptFlag;
use crate::table;
use crate::turn::{self, TurnPlan};

/// Directory of the contenders' files.
const DIRECTORY: &str = "target/link-bench";

pub(crate) struct LinkOutcome {
    pub(crate) scores: Vec<LinkScore>,
    /// Contenders that cannot run here, with the reason.
    pub(crate) missing: Vec<(&'static str, String)>,
    /// Load average before each round.
    pub(crate) loads: Vec<String>,
    pub(crate) kernel: String,
}

/// All rounds of one case.
pub(crate) struct LinkScore {
    pub(crate) case: LinkCase,
    pub(crate) rows: Vec<LinkRow>,
}

pub(crate) struct LinkRow {
    pub(crate) contender: LinkContender,
    pub(crate) samples: RowSamples,
}

/// Runs the rounds and prints the tables.
pub(crate) fn main(options: &LinkBenchOptions) -> io::Result<()> {
    evenkeel_test_network::check_available().map_err(io::Error::other)?;
    fs::create_dir_all(DIRECTORY)?;
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let outcome = run_rounds(options)?;
    let text = table::all(&outcome, options) + &goals::list(&outcome.scores);
    io::stdout().lock().write_all(text.as_bytes())
}

fn run_rounds(options: &LinkBenchOptions) -> io::Result<LinkOutcome> {
    // Contenders run in their own directories.
    let evenkeel = std::path::absolute(&options.evenkeel)?;
    let directory = std::path::absolute(DIRECTORY)?;
    let interrupt = InterruptFlag::register()?;
    let mut missing = Vec::new();
    for contender in LinkContender::ALL.iter().filter(|contender| options.includes(**contender)) {
        if let Err(error) = contender.check(&evenkeel) {
            eprintln!("skipping {}: {error}", contender.name());
            missing.push((contender.name(), error.to_string()));
        }
    }
    let takes_part = |contender: &LinkContender| {
        options.includes(*contender) && missing.iter().all(|(name, _)| *name != contender.name())
    };
    let score = |case: &LinkCase| {
        let contenders = LinkContender::in_case(case).into_iter().filter(takes_part);
        let row =
            |contender: LinkContender| LinkRow { contender, samples: RowSamples::new(&contender.label()) };
        LinkScore { case: *case, rows: contenders.map(row).collect() }
    };
    let mut scores: Vec<_> = options.cases().iter().map(score).collect();
    let mut loads = Vec::new();
    let mut random = SplitMix64::new(options.seed);
    for round in 1..=options.rounds {
        loads.push(first_word("/proc/loadavg")?);
        for score in &mut scores {
            eprintln!("round {round}/{}: {}", options.rounds, score.case.name);
            let turns =
                TurnSettings { options, evenkeel: &evenkeel, directory: &directory, interrupt: &interrupt };
            run_case(score, round, &turns, &mut random);
            interrupt.check().map_err(io::Error::other)?;
        }
    }
    Ok(LinkOutcome { scores, missing, loads, kernel: first_word("/proc/sys/kernel/osrelease")? })
}

/// Settings that all turns share.
struct TurnSettings<'a> {
    options: &'a LinkBenchOptions,
    evenkeel: &'a Path,
    directory: &'a Path,
    interrupt: &'a InterruptFlag,
}

/// Runs the contenders directly after each other, so that the machine is in the same state for all of them.
fn run_case(score: &mut LinkScore, round: u32, settings: &TurnSettings, random: &mut SplitMix64) {
    let case = score.case;
    let failing_path = (round as usize - 1) % case.paths.len() + 1;
    let mut order: Vec<_> = (0..score.rows.len()).collect();
    random.shuffle(&mut order);
    for index in order {
        let LinkRow { contender, samples } = &mut score.rows[index];
        if round != 1 && !is_repeated(&case, *contender) {
            continue;
        }
        let fails = case.kind == CaseKind::FailOver && contender.is_multipath();
        let outcome = turn::run(&TurnPlan {
            case: &case,
            contender: *contender,
            window: Duration::from_secs(settings.options.seconds.into()),
            failing_path: fails.then_some(failing_path),
            seed: random.next_number(),
            evenkeel: settings.evenkeel,
            directory: settings.directory,
            interrupt: settings.interrupt,
        });
        match &outcome {
            Ok(sample) => eprintln!("{}: {sample:.1?}", samples.label),
            Err(error) => eprintln!("{}: {error}", samples.label),
        }
        samples.record(outcome);
        if settings.interrupt.check().is_err() {
            return;
        }
    }
}

/// Reports whether a contender runs a case in every round.
fn is_repeated(case: &LinkCase, contender: LinkContender) -> bool {
    match case.kind {
        CaseKind::Multipath | CaseKind::FailOver => contender.is_multipath(),
        CaseKind::SinglePath => contender != LinkContender::WireGuard,
        CaseKind::Shared | CaseKind::Flapping => false,
    }
}

fn first_word(file: &str) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.split_whitespace().next().unwrap_or_default().to_owned())
}
