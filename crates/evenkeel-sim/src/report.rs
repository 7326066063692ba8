//! Prints the results of runs.

use std::io::{self, Write};
use std::time::Duration;

use evenkeel_policy::id::TenantId;
use evenkeel_sim::choice::{ChoiceMode, ChoiceRow, ChoiceRun};
use evenkeel_sim::fairness::{FairnessResult, Workload};
use evenkeel_sim::link::{LinkPlan, LinkRun};
use evenkeel_sim::poison::{PoisonCell, PoisonCellResult};
use evenkeel_sim::redirect::{RedirectPlan, RedirectRule, RedirectRun};
use evenkeel_sim::{
    EngineShape, KneeCell, KneeCellResult, Scenario, Share, SimRun, TenantSummary, TimedEvent, TraceEvent,
};

/// Prints a table of the tenants and a line per node.
pub(crate) fn table(out: &mut impl Write, scenario: &Scenario, run: &SimRun) -> io::Result<()> {
    let tenants = summaries(scenario, run);
    let total: u64 = tenants.iter().map(|(_, tenant)| tenant.service.0).sum();
    writeln!(
        out,
        "  {:<9} {:>6} {:>7} {:>7} {:>8} {:>11} {:>10} {:>10}",
        "tenant", "weight", "sent", "served", "rejected", "share", "wait p50", "wait p99"
    )?;
    for (name, tenant) in &tenants {
        let plan = scenario.tenants.iter().find(|plan| plan.name == *name);
        writeln!(
            out,
            "  {:<9} {:>6} {:>7} {:>7} {:>8} {:>11} {:>10} {:>10}",
            name,
            plan.map_or(String::new(), |plan| plan.weight.to_string()),
            tenant.arrived,
            tenant.dispatched,
            tenant.rejected,
            Share(tenant.service.0 as f64 / total.max(1) as f64).to_string(),
            millis(tenant.wait_percentile(50)),
            millis(tenant.wait_percentile(99)),
        )?;
    }
    nodes(out, scenario, run)
}

/// Prints the figures of an adaptive limit on engines of one shape, and the goals that it misses.
pub(crate) fn capacity(
    out: &mut impl Write,
    shape: EngineShape,
    seed: u64,
    rows: &[(KneeCell, KneeCellResult)],
) -> io::Result<()> {
    writeln!(out, "{shape:?}, seed {seed}: 10 minutes, then 2 minutes with half the knee.")?;
    writeln!(
        out,
        "  {:>4} {:>6} {:<7} {:<7} {:>9} {:>7} {:>9} {:>10} {:>11}  missed",
        "knee", "demand", "service", "prompts", "limit 60s", "within", "baseline", "throughput", "60s halved"
    )?;
    for (cell, result) in rows {
        writeln!(
            out,
            "  {:>4} {:>6} {:<7} {:<7} {:>9} {:>6.0}% {:>8.0}% {:>9.0}% {:>11}  {}",
            cell.knee,
            cell.demand,
            format!("{:?}", cell.service),
            format!("{:?}", cell.prompts),
            result.limit,
            100.0 * result.within,
            100.0 * result.baseline_error,
            100.0 * result.throughput,
            result.limit_after.map_or(String::new(), |limit| limit.to_string()),
            cell.misses(result).join(", "),
        )?;
    }
    Ok(())
}

/// Prints one line with each tenant's served and rejected requests and its wait.
pub(crate) fn line(out: &mut impl Write, scenario: &Scenario, run: &SimRun) -> io::Result<()> {
    let summary = |(name, tenant): (&str, TenantSummary)| {
        let wait = millis(tenant.wait_percentile(99));
        format!("{name}: {} served, {} rejected, wait p99 {wait}", tenant.dispatched, tenant.rejected)
    };
    let tenants: Vec<_> = summaries(scenario, run).into_iter().map(summary).collect();
    writeln!(out, "seed {}; {}", scenario.seed, tenants.join("; "))
}

/// Prints the gaps under Evenkeel, plain VTC and first come first served on the same engine, and
/// VTC's published gap for comparison.
pub(crate) fn fairness(
    out: &mut impl Write,
    seed: u64,
    rows: &[(Workload, [FairnessResult; 3])],
) -> io::Result<()> {
    writeln!(
        out,
        "Ten simulated minutes each on one engine of 20 sequences (an A10G with a 7B model), seed {seed}."
    )?;
    writeln!(out, "Largest gap in service (units: input + 2 x output tokens) between two waiting clients,")?;
    writeln!(out, "once the engine is busy (after 30 s); in brackets, from the start.\n")?;
    writeln!(
        out,
        "  {:<12} {:>16} {:>16} {:>18} {:>14}",
        "clients", "Evenkeel", "plain VTC", "FIFO", "published VTC"
    )?;
    for (workload, runs) in rows {
        let cell = |run: &FairnessResult| {
            format!("{} ({})", run.gap.since_both_waited, run.from_start.since_both_waited)
        };
        let [ours, vtc, fifo] = runs.each_ref().map(cell);
        writeln!(
            out,
            "  {:<12} {ours:>16} {vtc:>16} {fifo:>18} {:>14}",
            workload.name,
            workload.vtc_gap.to_string()
        )?;
    }
    Ok(())
}

/// Prints the shares of nodes, and how well conversations stay on theirs.
pub(crate) fn choice(
    out: &mut impl Write,
    seed: u64,
    rows: &[ChoiceRow],
    conversations: &[(ChoiceMode, ChoiceRun)],
) -> io::Result<()> {
    writeln!(
        out,
        "Share of the fast node (25 ms beside 822 ms), of the heavy one (9 to 1), and of one of two equal"
    )?;
    writeln!(out, "nodes a minute after it recovered from being slow; seed {seed}.\n")?;
    writeln!(
        out,
        "  {:>7} {:<9} {:<9} {:>8} {:>8} {:>10}",
        "clients", "keys", "response", "fast", "heavy", "recovered"
    )?;
    for ChoiceRow { clients, keys, mode, fast, heavy, recovered } in rows {
        let [keys, mode] = [keys.to_string(), mode.to_string()];
        let [fast, heavy, recovered] = [fast, heavy, recovered].map(ToString::to_string);
        writeln!(out, "  {clients:>7} {keys:<9} {mode:<9} {fast:>8} {heavy:>8} {recovered:>10}")?;
    }
    for (mode, run) in conversations {
        writeln!(
            out,
            "\n20 conversations on four nodes, {mode}: {} of {} requests hit the prefix cache of their engine.",
            Share(run.prefix_hit_ratio()),
            run.sent.len(),
        )?;
    }
    Ok(())
}

/// Prints what poison requests do to another client, and to the throughput of those that keep all slots busy.
pub(crate) fn poison(
    out: &mut impl Write,
    seed: u64,
    rows: &[(PoisonCell, PoisonCellResult)],
) -> io::Result<()> {
    writeln!(
        out,
        "Requests that every node fails, beside a client that sends four a second; seed {seed}.\n"
    )?;
    writeln!(
        out,
        "  {:<5} {:>5} {:>7} {:<5} {:<10} {:>5} {:>9} {:>9} {:>10}",
        "fault", "nodes", "every", "slots", "tenants", "lost", "p95", "calm p95", "throughput"
    )?;
    for (cell, result) in rows {
        let [every, p95, calm] =
            [cell.poison_every, result.p95, result.calm_p95].map(|time| format!("{} ms", time.as_millis()));
        let slots = if cell.is_busy { "busy" } else { "free" };
        let tenants = if cell.is_one_tenant { "one" } else { "separate" };
        let throughput = if cell.is_busy { Share(result.throughput).to_string() } else { "-".to_owned() };
        writeln!(
            out,
            "  {:<5} {:>5} {every:>8} {slots:<5} {tenants:<10} {:>5} {p95:>9} {calm:>9} {throughput:>10}",
            cell.fault.to_string(),
            cell.nodes,
            result.lost,
        )?;
    }
    Ok(())
}

/// Prints mean and 99th percentile of the latency under each rule, beside those of one queue over all slots.
pub(crate) fn redirect(
    out: &mut impl Write,
    plan: &RedirectPlan,
    rows: &[(RedirectRule, RedirectRun)],
) -> io::Result<()> {
    writeln!(out, "{}: {} (seed {})", plan.name, plan.about, plan.seed)?;
    writeln!(
        out,
        "  {:<28} {:>10} {:>10} {:>8} {:>11} {:>9}",
        "rule", "mean", "p99", "to ideal", "redirected", "rejected"
    )?;
    if let Some((_, run)) = rows.first() {
        let [mean, p99] = run.ideal_mean_and_p99().map(millis);
        writeln!(out, "  {:<28} {mean:>10} {p99:>10} {:>8}", "one queue over all slots", "1.00")?;
    }
    for (rule, run) in rows {
        let [mean, p99] = run.mean_and_p99().map(millis);
        let share = Share(run.redirect_share()).to_string();
        let ratio = run.ratio();
        let name = rule.as_str();
        writeln!(out, "  {name:<28} {mean:>10} {p99:>10} {ratio:>8.2} {share:>11} {:>9}", run.rejected)?;
    }
    Ok(())
}

/// Prints a row per path and a summary of the flows; with `events` also the changes of path health.
pub(crate) fn link(out: &mut impl Write, plan: &LinkPlan, run: &LinkRun, events: bool) -> io::Result<()> {
    writeln!(out, "{}: {} (seed {})", plan.name, plan.about, plan.seed)?;
    if events {
        for timed in &run.transitions {
            let at = timed.at.as_nanos() as f64 / 1e9;
            writeln!(out, "{at:>14.6} path {}: {}", timed.path.0, timed.transition)?;
        }
    }
    let bytes: u64 = run.path_bytes.iter().sum();
    let picks: u64 = run.flow_picks.iter().sum();
    for (index, path) in plan.paths.iter().enumerate() {
        writeln!(
            out,
            "  path {index}: {} Mbit/s, {} ms; {} of the bytes, {} of the flows",
            path.mbit,
            2 * path.delay.as_millis(),
            Share(run.path_bytes[index] as f64 / bytes.max(1) as f64),
            Share(run.flow_picks[index] as f64 / picks.max(1) as f64),
        )?;
    }
    let complete = run.flows.iter().filter(|flow| flow.completed_at.is_some()).count();
    let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap_or_default();
    writeln!(
        out,
        "  {complete} of {} flows complete, {:.1} Mbit/s, longest pause {}, {} bytes sent again, {} wrong",
        run.flows.len(),
        run.goodput_mbit,
        millis(gap),
        run.reinjected_bytes,
        run.wrong_bytes
    )?;
    for flow in run.flows.iter().filter_map(|flow| flow.datagrams.as_ref()) {
        writeln!(
            out,
            "  {} datagrams arrived, {} out of order, {} twice, after up to {}",
            flow.received.len(),
            flow.disordered,
            flow.repeated,
            millis(flow.delay_max),
        )?;
    }
    if let Some(failure) = &run.failure {
        let at = failure.at.as_nanos() as f64 / 1e9;
        writeln!(out, "  the session failed after {at:.1} s: {}", failure.error)?;
    }
    Ok(())
}

pub(crate) fn events(out: &mut impl Write, run: &SimRun) -> io::Result<()> {
    for TimedEvent { at, event } in &run.events {
        writeln!(out, "{:>14.6} {event:?}", at.as_nanos() as f64 / 1e9)?;
    }
    Ok(())
}

fn nodes(out: &mut impl Write, scenario: &Scenario, run: &SimRun) -> io::Result<()> {
    for (id, node) in (0..).zip(&scenario.nodes) {
        let mut sent = 0_usize;
        let mut by_path = vec![0_usize; node.paths.len()];
        for TimedEvent { event, .. } in &run.events {
            if let TraceEvent::Dispatched { node, path, .. } = event
                && node.0 == id
            {
                sent += 1;
                if let Some(path) = path {
                    by_path[path.index()] += 1;
                }
            }
        }
        let paths = by_path.iter().zip(&node.paths).map(|(count, path)| {
            let share = Share(*count as f64 / sent.max(1) as f64);
            format!("{share} over the {} ms path", path.rtt.as_millis())
        });
        let paths: Vec<_> = paths.collect();
        writeln!(
            out,
            "  node {id}: {sent} requests at {} ms per message{}{}",
            node.message_time.as_millis(),
            if paths.is_empty() { "" } else { "; " },
            paths.join(", ")
        )?;
    }
    Ok(())
}

fn summaries<'a>(scenario: &'a Scenario, run: &SimRun) -> Vec<(&'a str, TenantSummary)> {
    (0..).zip(&scenario.tenants).map(|(id, plan)| (plan.name, run.tenant(TenantId(id)))).collect()
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
