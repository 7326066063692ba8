//! `evenkeel demo`: fairness one can watch.

use std::fmt::Write as _;
use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use evenkeel::demo::{APPETITES, Demo, DemoTotals, MODEL};
use evenkeel_telemetry::logs::{self, Format, LogOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};

use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel demo                           a minute of it
  evenkeel demo --seconds 0               until it is interrupted, to try things out
  evenkeel demo --seconds 10 --quiet      what came of it and nothing else, for scripts
";

/// Runs a gateway, three simulated model servers and three tenants of unequal appetite in one process.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DemoArgs {
    /// How long; 0 until it is interrupted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds: u64,
    /// Shows what came of it at the end and nothing before
    #[arg(long)]
    quiet: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

pub(super) fn run(args: &DemoArgs) -> Result<(), CliError> {
    // What the demo shows would drown in a log; who wants one asks for it.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned());
    logs::install(LogOptions::new(Some(&filter), Format::for_stream(&std::io::stderr()))?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let figures = runtime.block_on(show(args))?;
    print(&verdict(&figures))?;
    let failed: u64 = figures.iter().map(|figures| figures.failed).sum();
    if 0 < failed {
        return Err(format!("{failed} requests failed that should not have").into());
    }
    if figures.iter().any(|figures| figures.served == 0) {
        return Err("a tenant was not served; more --seconds may help".into());
    }
    Ok(())
}

/// Runs the demo, and tells what each tenant got after the first moments.
async fn show(args: &DemoArgs) -> Result<Vec<DemoTotals>, CliError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut demo = Demo::start(args.listen).await?;
    if !args.quiet {
        print(&introduction(&demo))?;
    }
    demo.begin()?;
    let seconds = if args.seconds == 0 { u64::MAX } else { args.seconds };
    let end = Duration::from_secs(seconds);
    let warm_up = Duration::from_secs((seconds / 4).min(5));
    let mut tick = interval(Duration::from_secs(1));
    tick.tick().await;
    let mut first = vec![DemoTotals::default(); APPETITES.len()];
    let mut shown = 0;
    let mut ended = std::pin::pin!(sleep(end));
    let mut warmed = std::pin::pin!(sleep(warm_up));
    let mut warm = false;
    loop {
        tokio::select! {
            () = &mut ended => break,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = &mut warmed, if !warm => {
                first = figures(&demo);
                demo.tenants().iter().for_each(|tenant| tenant.ledger.forget_waits());
                warm = true;
            }
            _ = tick.tick(), if !args.quiet => {
                let again = if stdout().is_terminal() && 0 < shown { format!("\x1b[{shown}A") } else { String::new() };
                let table = table(&figures(&demo));
                shown = table.lines().count();
                print(&format!("{again}{table}"))?;
            }
        }
    }
    let since: Vec<DemoTotals> =
        figures(&demo).iter().zip(&first).map(|(last, first)| last.since(first)).collect();
    demo.stop().await?;
    Ok(since)
}

fn figures(demo: &Demo) -> Vec<DemoTotals> {
    demo.tenants().iter().map(|tenant| tenant.ledger.figures()).collect()
}

fn introduction(demo: &Demo) -> String {
    let url = demo.url();
    let mut text = String::new();
    let _ = writeln!(text, "gateway  {url}   (/v1/..., /api/load-status, /metrics)");
    for (name, address) in demo.nodes() {
        let _ = writeln!(text, "node     http://{address}   {name}");
    }
    for tenant in demo.tenants() {
        let appetite = tenant.appetite;
        let _ = writeln!(text, "tenant   {:6} weight {}: {}", appetite.name, appetite.weight, appetite.about);
    }
    if let Some(quiet) = demo.tenants().last() {
        let _ = writeln!(
            text,
            "\ncurl {url}/v1/chat/completions -H 'authorization: Bearer {}' \\\n  -d '{{\"model\": \"{MODEL}\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}'\n",
            quiet.key
        );
    }
    text
}

fn table(figures: &[DemoTotals]) -> String {
    let total: u64 = figures.iter().map(|figures| figures.cost).sum();
    let mut text = format!(
        "{:8}{:>7}{:>9}{:>9}{:>13}{:>11}{:>8}{:>11}{:>11}\n",
        "tenant", "weight", "asked", "served", "turned away", "cost", "share", "wait p50", "wait p99"
    );
    for (appetite, figures) in APPETITES.iter().zip(figures) {
        let share = 100.0 * figures.cost as f64 / total.max(1) as f64;
        let p50 = figures.wait_p50.as_millis();
        let p99 = figures.wait_p99.as_millis();
        let _ = writeln!(
            text,
            "{:8}{:>7}{:>9}{:>9}{:>13}{:>11}{:>7.1}%{:>8} ms{:>8} ms",
            appetite.name,
            appetite.weight,
            figures.asked,
            figures.served,
            figures.turned_away,
            figures.cost,
            share,
            p50,
            p99,
        );
    }
    text
}

/// Says in words what the numbers show.
fn verdict(figures: &[DemoTotals]) -> String {
    let [batch, team, chat] = figures else { return table(figures) };
    let ratio = team.cost as f64 / batch.cost.max(1) as f64;
    format!(
        "{}\nteam and batch both wanted more than there was: team got {ratio:.2} times what batch got, of twice the weight.\n\
         chat asked little and got it: {} of its {} questions were turned away, and 99 of 100 waited {} ms at most.\n",
        table(figures),
        chat.turned_away,
        chat.asked,
        chat.wait_p99.as_millis(),
    )
}
