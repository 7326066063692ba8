//! What the parts gave, as tables that are also Markdown.

use bench_support::{Quartiles, RowSamples, draw, short, times};

use super::Outcome;
use crate::args::Options;

/// Draws everything, under a line that says how to repeat it and where it comes from.
pub(super) fn all(outcome: &Outcome, options: &Options) -> String {
    let mut text = format!(
        "rounds: {}, scale: {}, on {}, load average before: {}\n",
        options.rounds, options.scale, outcome.filesystem, outcome.load
    );
    text += "\n## keys: a message on disk, sent in hundreds, delivered and acknowledged in tens\n\n";
    let figures =
        [("send_cpu_us", "CPU µs sent"), ("take_cpu_us", "CPU µs delivered"), ("take_rate", "delivered/s")];
    text += &compared(&outcome.keys, &figures);
    text += "\n## book: the same in memory, without store, actors and receipts\n\n";
    text += &compared(&outcome.book, &[("book_ns", "CPU ns/message")]);
    text += "\n## producers: one queue, 16 producers, one message at a time\n\n";
    text += &producers(&outcome.producers);
    text += "\n## backlog\n\n";
    text += &plain(
        &outcome.backlog,
        &[
            ("open_ms", "opened in ms"),
            ("rss_mib", "MiB then"),
            ("first_us", "first receive µs"),
            ("none_us", "receive of nothing µs"),
            ("one_us", "receive of one µs"),
            ("send_rate", "sent/s"),
            ("take_rate", "delivered/s"),
        ],
    );
    text
}

fn compared(lines: &[RowSamples], figures: &[(&str, &str)]) -> String {
    let mut columns = vec![labels(lines)];
    for (name, head) in figures {
        columns.push(column(head, lines, |line| median(line, name)));
        columns.push(column("× 1 key", lines, |line| Some(times(line.ratio(lines.first()?, name)?))));
    }
    draw(&columns)
}

fn producers(line: &RowSamples) -> String {
    let (Some(rate), Some(sync)) = (line.quartiles("send_rate"), line.quartiles("sync_us")) else {
        return "no figures\n".to_owned();
    };
    let alone = 1e6 / sync.median;
    format!(
        "{} messages/s; a flush takes {} µs (p50), so one flush for each would be {} messages/s: {:.1} times as many\n",
        short(rate.median),
        short(sync.median),
        short(alone),
        rate.median / alone
    )
}

fn plain(lines: &[RowSamples], figures: &[(&str, &str)]) -> String {
    let mut columns = vec![labels(lines)];
    columns.extend(figures.iter().map(|(name, head)| column(head, lines, |line| median(line, name))));
    draw(&columns)
}

fn labels(lines: &[RowSamples]) -> Vec<String> {
    column("", lines, |line| Some(line.label.clone()))
}

fn median(line: &RowSamples, figure: &str) -> Option<String> {
    line.quartiles(figure).map(|Quartiles { median, .. }| short(median))
}

/// A column, its head first.
fn column(head: &str, lines: &[RowSamples], cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = lines.iter().map(|line| cell(line).unwrap_or_default());
    std::iter::once(head.to_owned()).chain(cells).collect()
}
