//! The demo's screen: two tables with bars. Fits 80 columns and, together with the summary, 24 lines.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel::demo::{Demo, DemoTotals, KeyScheme, MODEL, NODES, PROFILES, SLOTS, Wait};

use super::Phase;

const BAR_COLUMNS: f64 = 20.0;

/// Constant parts of the screen, and the rendering of a frame.
pub(super) struct Screen {
    url: String,
    key: String,
    block: char,
}

impl Screen {
    pub(super) fn new(demo: &Demo) -> Self {
        let block = if is_utf8_locale() { '█' } else { '#' };
        Self { url: demo.url().to_owned(), key: demo.key().to_owned(), block }
    }

    pub(super) fn header(&self) -> String {
        let clients: u32 = PROFILES.iter().map(|profile| profile.clients).sum();
        format!(
            "evenkeel demo: {clients} clients of {} tenants share {} model servers with {SLOTS} slots each\n\
             gateway {}   (/v1/..., /api/load-status, /metrics)\n\n",
            PROFILES.len(),
            NODES.len(),
            self.url
        )
    }

    /// Renders one frame.
    pub(super) fn render(&self, phases: &[Phase]) -> String {
        let mut text = self.header() + &self.tables(phases);
        let _ = writeln!(text, "\nTry it: KEY={}", self.key);
        let _ = writeln!(text, "  curl {}/v1/chat/completions \\", self.url);
        let _ = writeln!(text, "  -H \"authorization: Bearer $KEY\" \\");
        let _ = writeln!(
            text,
            "  -d '{{\"model\":\"{MODEL}\",\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'"
        );
        text
    }

    pub(super) fn tables(&self, phases: &[Phase]) -> String {
        let totals = phases.iter().flat_map(|phase| &phase.totals);
        let longest = totals.map(|totals| totals.wait_p99.duration).max().unwrap_or_default();
        let tables: Vec<_> = phases.iter().map(|phase| self.table(phase, longest)).collect();
        tables.join("\n")
    }

    fn table(&self, phase: &Phase, longest: Duration) -> String {
        let title = match phase.scheme {
            KeyScheme::Shared => "1. One shared key, as behind a plain proxy (FIFO)",
            KeyScheme::PerTenant => "2. A key per tenant, queued fairly by weight",
        };
        let mut text = format!("{title:<52}{:>28}\n", progress(phase));
        text += "tenant  clients  weight  served  share  wait p50  wait p99  (time in the queue)\n";
        let total_cost: u64 = phase.totals.iter().map(|totals| totals.cost).sum();
        for (profile, totals) in PROFILES.iter().zip(&phase.totals) {
            let weight = match phase.scheme {
                KeyScheme::Shared => "-".to_owned(),
                KeyScheme::PerTenant => profile.weight.to_string(),
            };
            let share = 100.0 * totals.cost as f64 / total_cost.max(1) as f64;
            let _ = writeln!(
                text,
                "{:<7}{:>8}{:>8}{:>8}{:>6.1}%{:>10}{:>10}  {}",
                profile.name,
                profile.clients,
                weight,
                totals.served,
                share,
                format_wait(totals.wait_p50),
                format_wait(totals.wait_p99),
                self.bar(totals.wait_p99.duration, longest),
            );
        }
        text
    }

    fn bar(&self, duration: Duration, longest: Duration) -> String {
        if longest.is_zero() {
            return String::new();
        }
        let share = duration.as_secs_f64() / longest.as_secs_f64();
        self.block.to_string().repeat((share * BAR_COLUMNS).ceil() as usize)
    }
}

fn is_utf8_locale() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"].iter().any(|name| {
        let value = std::env::var(name).unwrap_or_default().to_ascii_lowercase();
        value.ends_with("utf-8") || value.ends_with("utf8")
    })
}

fn progress(phase: &Phase) -> String {
    let time = match phase.length {
        Some(length) => format!("{:.0} s left", length.saturating_sub(phase.elapsed).as_secs_f64()),
        None => format!("{} s", phase.elapsed.as_secs()),
    };
    if phase.is_warm {
        format!("{:.0} tokens/s, {time}", tokens_per_second(&phase.totals))
    } else {
        format!("warming up, {time}")
    }
}

/// Renders one phase as a single line, for output that is not a terminal.
pub(super) fn line(phase: &Phase) -> String {
    let name = match phase.scheme {
        KeyScheme::Shared => "one key",
        KeyScheme::PerTenant => "a key each",
    };
    let waits = PROFILES.iter().zip(&phase.totals);
    let waits = waits.map(|(profile, totals)| format!("{} {}", profile.name, format_wait(totals.wait_p99)));
    let waits = waits.collect::<Vec<_>>().join(", ");
    let note = if phase.is_warm { "" } else { "  (warming up)" };
    format!("{name:<10} {:>3} s  wait p99: {waits}{note}\n", phase.elapsed.as_secs())
}

/// Returns the response tokens per second of all tenants together.
pub(super) fn tokens_per_second(totals: &[DemoTotals]) -> f64 {
    let tokens: u64 = totals.iter().map(|totals| totals.tokens).sum();
    let measured = totals.iter().map(|totals| totals.measured).max().unwrap_or_default();
    if measured.is_zero() { 0.0 } else { tokens as f64 / measured.as_secs_f64() }
}

/// Formats a wait; `>` marks a request that is still queued.
pub(super) fn format_wait(wait: Wait) -> String {
    let prefix = if wait.is_pending { ">" } else { "" };
    let seconds = wait.duration.as_secs_f64();
    if seconds < 1.0 {
        format!("{prefix}{:.0} ms", 1_000.0 * seconds)
    } else {
        format!("{prefix}{seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary;
    use super::*;

    #[test]
    fn a_frame_with_the_summary_fits_80_columns_and_24_lines() {
        let key = evenkeel_server::api_key::make_key().unwrap();
        let screen = Screen { url: "http://127.0.0.1:65535".to_owned(), key, block: '█' };
        let phases = [busy_phase(KeyScheme::Shared), busy_phase(KeyScheme::PerTenant)];
        let text = screen.render(&phases) + &summary::text(&phases);
        for line in text.lines().chain([line(&phases[0]).trim_end()]) {
            let columns = line.chars().count();
            assert!(columns <= 80, "{columns} columns: {line}");
        }
        // One line is left for the shell's prompt.
        let lines = text.lines().count();
        assert!(lines < 24, "{lines} lines:\n{text}");
    }

    fn busy_phase(scheme: KeyScheme) -> Phase {
        let wait = Wait { duration: Duration::from_millis(99_900), is_pending: true };
        let totals = DemoTotals {
            measured: Duration::from_secs(1),
            served: 999_999,
            tokens: 3_333,
            cost: 1,
            wait_p50: wait,
            wait_p99: wait,
            ..DemoTotals::default()
        };
        let length = Some(Duration::from_secs(43_200));
        let totals = vec![totals; PROFILES.len()];
        Phase { scheme, length, elapsed: Duration::ZERO, is_warm: true, totals }
    }
}
