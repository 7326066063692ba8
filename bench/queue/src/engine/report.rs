//! Results of the engine cases as Markdown tables.

use bench_support::{Quartiles, RowSamples, draw, format_ratio, short};

use super::Outcome;
use crate::args::Options;

/// Draws all tables, after a line with the parameters of the run and the state of the machine.
pub(super) fn all(outcome: &Outcome, options: &Options) -> String {
    let mut text = format!(
        "rounds: {}, scale: {}, on {}, load average before the run: {}\n",
        options.rounds, options.scale, outcome.filesystem, outcome.load
    );
    text += "\n## keys: durable messages, sent in batches of 100, delivered and acknowledged in batches of 10\n\n";
    let metrics =
        [("send_cpu_us", "CPU µs/send"), ("take_cpu_us", "CPU µs/delivery"), ("take_rate", "delivered/s")];
    text += &compared(&outcome.keys, &metrics);
    text += "\n## state: the queue state alone, in memory, without store, actors and receipts\n\n";
    text += &compared(&outcome.state, &[("state_ns", "CPU ns/message")]);
    text += "\n## producers: one queue, 16 producers, one message at a time\n\n";
    text += &producers(&outcome.producers);
    text += "\n## backlog\n\n";
    text += &plain(
        &outcome.backlog,
        &[
            ("open_ms", "open ms"),
            ("rss_mib", "MiB after opening"),
            ("first_us", "first receive µs"),
            ("none_us", "empty receive µs"),
            ("one_us", "receive µs"),
            ("send_rate", "sent/s"),
            ("take_rate", "delivered/s"),
        ],
    );
    text
}

fn compared(rows: &[RowSamples], metrics: &[(&str, &str)]) -> String {
    let mut columns = vec![labels(rows)];
    for (name, heading) in metrics {
        columns.push(column(heading, rows, |row| median(row, name)));
        columns.push(column("× 1 key", rows, |row| Some(format_ratio(row.ratio(rows.first()?, name)?))));
    }
    draw(&columns)
}

fn producers(row: &RowSamples) -> String {
    let (Some(rate), Some(sync)) = (row.quartiles("send_rate"), row.quartiles("sync_us")) else {
        return "no results\n".to_owned();
    };
    let ungrouped = 1e6 / sync.median;
    format!(
        "{} messages/s; an fsync takes {} µs (p50), so one fsync per message would allow {} messages/s: group commit is {:.1} times as fast\n",
        short(rate.median),
        short(sync.median),
        short(ungrouped),
        rate.median / ungrouped
    )
}

fn plain(rows: &[RowSamples], metrics: &[(&str, &str)]) -> String {
    let mut columns = vec![labels(rows)];
    columns.extend(metrics.iter().map(|(name, heading)| column(heading, rows, |row| median(row, name))));
    draw(&columns)
}

fn labels(rows: &[RowSamples]) -> Vec<String> {
    column("", rows, |row| Some(row.label.clone()))
}

fn median(row: &RowSamples, metric: &str) -> Option<String> {
    row.quartiles(metric).map(|Quartiles { median, .. }| short(median))
}

/// Builds a column with its heading first.
fn column(heading: &str, rows: &[RowSamples], cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = rows.iter().map(|row| cell(row).unwrap_or_default());
    std::iter::once(heading.to_owned()).chain(cells).collect()
}
