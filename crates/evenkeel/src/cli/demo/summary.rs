//! The demo's conclusions. A claim is printed only if the numbers of this run support it.

use evenkeel::demo::{DemoTotals, KeyScheme, PROFILES};

use super::Phase;
use super::screen::{format_wait, tokens_per_second};

/// Maximum relative difference of throughputs that the summary calls the same.
const THROUGHPUT_TOLERANCE: f64 = 0.05;
/// Maximum relative error of the service ratio at which the summary says that it follows the weights.
const RATIO_TOLERANCE: f64 = 0.10;
/// Minimum improvement of the wait that the summary claims as a gain.
const GAIN_FACTOR_MIN: f64 = 2.0;

/// Describes the difference between the two phases.
pub(super) fn text(phases: &[Phase]) -> String {
    let (Some(shared), Some(per_tenant)) =
        (find(phases, KeyScheme::Shared), find(phases, KeyScheme::PerTenant))
    else {
        return "\nInterrupted before the second phase; nothing to compare.\n".to_owned();
    };
    format!("\n{}{}{}", waits(shared, per_tenant), throughput(shared, per_tenant), weights(per_tenant))
}

fn find(phases: &[Phase], scheme: KeyScheme) -> Option<&[DemoTotals]> {
    let phase = phases.iter().find(|phase| phase.scheme == scheme)?;
    Some(phase.totals.as_slice()).filter(|totals| totals.len() == PROFILES.len())
}

fn totals_of<'a>(name: &str, totals: &'a [DemoTotals]) -> &'a DemoTotals {
    let index = PROFILES.iter().position(|profile| profile.name == name);
    &totals[index.expect("a tenant of the demo")]
}

fn waits(shared: &[DemoTotals], per_tenant: &[DemoTotals]) -> String {
    let before = totals_of("chat", shared).wait_p99;
    let after = totals_of("chat", per_tenant).wait_p99;
    let factor = before.duration.as_secs_f64() / after.duration.as_secs_f64().max(0.001);
    let is_clear = factor >= GAIN_FACTOR_MIN && !after.is_pending;
    let end = if is_clear { "with a key of its own" } else { "with its own: no clear gain" };
    let before = format_wait(before);
    let after = format_wait(after);
    format!("chat waited {before} at p99 behind one key, {after} {end}.\n")
}

fn throughput(shared: &[DemoTotals], per_tenant: &[DemoTotals]) -> String {
    let before = tokens_per_second(shared);
    let after = tokens_per_second(per_tenant);
    let change = (after - before) / before.max(1.0);
    let claim =
        if change.abs() <= THROUGHPUT_TOLERANCE { "same total throughput" } else { "total throughput" };
    format!(
        "Same servers, same load, {claim}: {before:.0}, then {after:.0} tokens/s ({:+.0} %).\n",
        100.0 * change
    )
}

fn weights(per_tenant: &[DemoTotals]) -> String {
    let team = totals_of("team", per_tenant).cost;
    let batch = totals_of("batch", per_tenant).cost;
    let ratio = team as f64 / batch.max(1) as f64;
    let follows =
        if (ratio / 2.0 - 1.0).abs() <= RATIO_TOLERANCE { ", matching its weight of 2" } else { "" };
    format!("team got {ratio:.2} times the service of batch{follows}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel::demo::Wait;
    use std::time::Duration;

    #[test]
    fn a_clear_gain_is_reported_with_the_numbers_of_the_run() {
        let text = text(&[
            phase(KeyScheme::Shared, 8_100, 4_000, 100),
            phase(KeyScheme::PerTenant, 200, 4_050, 205),
        ]);
        assert!(
            text.contains("chat waited 8.1 s at p99 behind one key, 200 ms with a key of its own.\n"),
            "{text}"
        );
        assert!(text.contains("same total throughput: 4000, then 4050 tokens/s (+1 %)"), "{text}");
        assert!(text.contains("team got 2.05 times the service of batch"), "{text}");
        assert!(text.contains("matching its weight of 2"), "{text}");
    }

    #[test]
    fn without_a_clear_gain_nothing_is_claimed() {
        let text =
            text(&[phase(KeyScheme::Shared, 300, 4_000, 100), phase(KeyScheme::PerTenant, 200, 3_000, 130)]);
        assert!(text.contains("no clear gain"), "{text}");
        assert!(!text.contains("same total throughput"), "{text}");
        assert!(text.contains("(-25 %)"), "{text}");
        assert!(!text.contains("matching its weight"), "{text}");
    }

    #[test]
    fn an_interrupted_run_has_nothing_to_compare() {
        assert!(text(&[phase(KeyScheme::Shared, 8_100, 4_000, 100)]).contains("nothing to compare"));
    }

    fn phase(scheme: KeyScheme, chat_wait_ms: u64, tokens: u64, team_cost: u64) -> Phase {
        let measured = Duration::from_secs(1);
        let wait_p99 = Wait { duration: Duration::from_millis(chat_wait_ms), is_pending: false };
        let chat = DemoTotals { measured, tokens, wait_p99, ..DemoTotals::default() };
        let team = DemoTotals { measured, cost: team_cost, ..DemoTotals::default() };
        let batch = DemoTotals { measured, cost: 100, ..DemoTotals::default() };
        Phase {
            scheme,
            length: Some(measured),
            elapsed: measured,
            is_warm: true,
            totals: vec![chat, team, batch],
        }
    }
}
