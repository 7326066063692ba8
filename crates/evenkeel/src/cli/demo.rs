//! `evenkeel demo`: runs the same load first with one shared API key, then with a key per tenant.

mod screen;
mod summary;

use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use evenkeel::demo::{Demo, DemoStats, DemoTotals, KeyScheme};
use evenkeel_telemetry::logs::{self, Format, LogOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval};

use super::{CliError, print};
use screen::Screen;

const EXAMPLES: &str = "\
Examples:
  evenkeel demo                           one minute: half with one shared key, half with a key per tenant
  evenkeel demo --seconds 0               keep the second phase running until interrupted, to send your own requests
  evenkeel demo --seconds 10 --quiet      print only the result, for scripts
";

/// Length of the first phase with `--seconds 0`, when the second runs until interrupted.
const FIRST_PHASE: Duration = Duration::from_secs(30);
/// Maximum warm-up of a phase; otherwise it is a third of the phase.
const WARM_UP_MAX: Duration = Duration::from_secs(10);
/// One-second ticks per printed line if the output is not a terminal.
const TICKS_PER_LINE: u32 = 5;

/// Compare FIFO with fair queueing on simulated model servers
///
/// Runs a gateway, three simulated model servers and three tenants in one process: first with one
/// API key for all tenants, so that their requests queue FIFO, then with one key per tenant, which queues them fairly.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DemoArgs {
    /// Duration in seconds, half for each of two phases; 0 runs the first for 30 s and the second until interrupted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Progress of one phase; `totals` are per tenant, in the order of `PROFILES`.
#[derive(Clone, Debug, PartialEq)]
struct Phase {
    scheme: KeyScheme,
    /// `None`: until interrupted.
    length: Option<Duration>,
    elapsed: Duration,
    /// False during the warm-up, which the final totals do not include.
    is_warm: bool,
    totals: Vec<DemoTotals>,
}

pub(super) fn run(args: &DemoArgs) -> Result<(), CliError> {
    // Only errors are logged by default, because log lines would garble the screen; RUST_LOG overrides this.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned());
    logs::install(LogOptions::new(Some(&filter), Format::for_stream(&std::io::stderr()))?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let phases = runtime.block_on(run_phases(args))?;
    print(&summary::text(&phases))?;
    verify(&phases)
}

/// Returns an error if a request failed, or if a tenant with its own key was not served.
fn verify(phases: &[Phase]) -> Result<(), CliError> {
    let failed: u64 = phases.iter().flat_map(|phase| &phase.totals).map(|totals| totals.failed).sum();
    if failed != 0 {
        return Err(format!("{failed} requests failed; run with RUST_LOG=warn to see why").into());
    }
    let unserved = |phase: &Phase| {
        phase.scheme == KeyScheme::PerTenant && phase.totals.iter().any(|totals| totals.served == 0)
    };
    if phases.iter().any(unserved) {
        return Err("a tenant was not served; try more --seconds".into());
    }
    Ok(())
}

async fn run_phases(args: &DemoArgs) -> Result<Vec<Phase>, CliError> {
    let mut stop = StopSignals {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
    };
    let mut demo = Demo::start(args.listen).await?;
    let screen = Screen::new(&demo);
    let mut output =
        Output { screen, quiet: args.quiet, is_terminal: stdout().is_terminal(), lines_shown: 0, ticks: 0 };
    output.begin()?;
    let half = Duration::from_secs(args.seconds) / 2;
    let lengths = if args.seconds == 0 { [Some(FIRST_PHASE), None] } else { [Some(half), Some(half)] };
    let mut phases = Vec::new();
    for (scheme, length) in [KeyScheme::Shared, KeyScheme::PerTenant].into_iter().zip(lengths) {
        let stats = demo.start_phase(scheme).await?;
        phases.push(Phase { scheme, length, elapsed: Duration::ZERO, is_warm: false, totals: Vec::new() });
        if run_phase(&mut phases, &stats, &mut stop, &mut output).await? == PhaseEnd::Interrupted {
            break;
        }
    }
    demo.stop().await?;
    output.finish(&phases)?;
    Ok(phases)
}

struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhaseEnd {
    TimeUp,
    Interrupted,
}

/// Runs the current phase, which is the last of `phases`, to its end and keeps its totals up to date.
async fn run_phase(
    phases: &mut [Phase],
    stats: &[Arc<DemoStats>],
    stop: &mut StopSignals,
    output: &mut Output,
) -> Result<PhaseEnd, CliError> {
    let started = Instant::now();
    let current = phases.len() - 1;
    let length = phases[current].length;
    // Without a length, a year: practically never, but still a valid instant.
    let end = started + length.unwrap_or(Duration::from_hours(24 * 365));
    let warm_up_end = started + (end - started).min(3 * WARM_UP_MAX) / 3;
    let mut tick = interval(Duration::from_secs(1));
    tick.tick().await;
    let end_reason = loop {
        tokio::select! {
            () = tokio::time::sleep_until(end) => break PhaseEnd::TimeUp,
            _ = stop.interrupt.recv() => break PhaseEnd::Interrupted,
            _ = stop.terminate.recv() => break PhaseEnd::Interrupted,
            () = tokio::time::sleep_until(warm_up_end), if !phases[current].is_warm => {
                stats.iter().for_each(|stats| stats.restart());
                phases[current].is_warm = true;
            }
            _ = tick.tick() => {
                update(&mut phases[current], started, stats);
                output.tick(phases)?;
            }
        }
    };
    update(&mut phases[current], started, stats);
    Ok(end_reason)
}

fn update(phase: &mut Phase, started: Instant, stats: &[Arc<DemoStats>]) {
    phase.elapsed = started.elapsed();
    phase.totals = stats.iter().map(|stats| stats.totals()).collect();
}

/// Redraws the screen in place on a terminal, and prints plain lines elsewhere; with `--quiet`, prints only the result.
struct Output {
    screen: Screen,
    quiet: bool,
    is_terminal: bool,
    lines_shown: usize,
    ticks: u32,
}

impl Output {
    fn begin(&mut self) -> Result<(), CliError> {
        if self.quiet || self.is_terminal {
            return Ok(());
        }
        print(&self.screen.header())
    }

    fn tick(&mut self, phases: &[Phase]) -> Result<(), CliError> {
        if self.quiet {
            return Ok(());
        }
        if self.is_terminal {
            return self.redraw(&self.screen.render(phases));
        }
        self.ticks += 1;
        if !self.ticks.is_multiple_of(TICKS_PER_LINE) {
            return Ok(());
        }
        phases.last().map_or(Ok(()), |phase| print(&screen::line(phase)))
    }

    fn redraw(&mut self, text: &str) -> Result<(), CliError> {
        let mut frame = String::new();
        if self.lines_shown != 0 {
            frame += &format!("\x1b[{}A", self.lines_shown);
        }
        // Clears the rest of each line, and the screen below the last line, so that no old text remains.
        for line in text.lines() {
            frame += line;
            frame += "\x1b[K\n";
        }
        frame += "\x1b[J";
        self.lines_shown = text.lines().count();
        print(&frame)
    }

    /// Prints the final tables, without the "Try it" hint because the gateway has stopped.
    fn finish(&mut self, phases: &[Phase]) -> Result<(), CliError> {
        let tables = self.screen.tables(phases);
        if self.quiet || !self.is_terminal {
            return print(&tables);
        }
        self.redraw(&(self.screen.header() + &tables))
    }
}
