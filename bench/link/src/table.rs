//! Results as Markdown tables.
//!
//! A contender's goodput is that of its better round, its gap that of its worse round.

use bench_support::{draw, short};

use crate::args::LinkBenchOptions;
use crate::case::CaseKind;
use crate::contender::LinkContender;
use crate::reorder::REORDER;
use crate::rounds::{LinkOutcome, LinkRow, LinkScore};
use crate::turn::{COMPETITOR_MBIT, COMPETITOR_SHARE, GAP_WITHOUT_END, GAPS, SHARES, STALL};

/// Draws a summary and one table per case, after a line with the parameters of the run and the state of the machine.
pub(crate) fn all(outcome: &LinkOutcome, options: &LinkBenchOptions) -> String {
    let mut text = format!(
        "rounds: {}, seconds per turn: {}, seed: {}, Linux {}; load average before each round: {}\n\n",
        options.rounds,
        options.seconds,
        options.seed,
        outcome.kernel,
        outcome.loads.join(", "),
    );
    let is_multipath =
        |score: &&LinkScore| matches!(score.case.kind, CaseKind::Multipath | CaseKind::FailOver);
    text += &summary(&outcome.scores.iter().filter(is_multipath).collect::<Vec<_>>());
    for score in &outcome.scores {
        let case = &score.case;
        text += &format!("\n## {}: {} Mbit/s / ms\n\n{}", case.name, case.about(), one(score));
    }
    for (name, reason) in &outcome.missing {
        text += &format!("\n{name} was skipped: {reason}\n");
    }
    text
}

/// Draws the goodput of several cases.
fn summary(scores: &[&LinkScore]) -> String {
    let column = |heading: &str, cell: &dyn Fn(&LinkScore) -> Option<String>| {
        let cells = scores.iter().map(|score| cell(score).unwrap_or_default());
        std::iter::once(heading.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let mut columns = vec![
        column("paths (Mbit/s / ms)", &|score| Some(format!("{} {}", score.case.name, score.case.about()))),
        column("sum", &|score| Some(short(score.case.sum_mbit()))),
        column("best path", &|score| Some(short(score.best_path()?))),
    ];
    for contender in LinkContender::ALL.iter().filter(|contender| contender.is_multipath()) {
        columns.push(column(contender.name(), &|score| Some(short(score.mbit(*contender)?))));
    }
    let own = |score: &LinkScore| score.mbit(LinkContender::Evenkeel);
    columns.push(column("× MPTCP", &|score| Some(format!("{:.3}", own(score)? / score.best_mptcp()?))));
    columns.push(column("× best path", &|score| Some(format!("{:.3}", own(score)? / score.best_path()?))));
    columns.push(column("% of sum", &|score| Some(short(own(score)? / score.case.sum_mbit() * 100.0))));
    draw(&columns)
}

/// Draws the table of one case, without columns that would be empty.
fn one(score: &LinkScore) -> String {
    let column = |heading: &str, cell: &dyn Fn(&LinkRow) -> Option<String>| {
        let cells = score.rows.iter().map(|row| cell(row).unwrap_or_default());
        std::iter::once(heading.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let median = |row: &LinkRow, metric: &str| Some(short(row.samples.quartiles(metric)?.median));
    let ratio = |row: &LinkRow, other: Option<f64>| Some(format!("{:.3}", row.samples.max("mbit")? / other?));
    let mut columns = vec![
        column("contender", &|row| Some(row.samples.label.clone())),
        column("Mbit/s", &|row| Some(short(row.samples.max("mbit")?))),
        column("median", &|row| median(row, "mbit")),
        column("× MPTCP", &|row| ratio(row, score.best_mptcp())),
        column("× best path", &|row| ratio(row, score.best_path())),
        column(COMPETITOR_MBIT, &|row| median(row, COMPETITOR_MBIT)),
        column(COMPETITOR_SHARE, &|row| median(row, COMPETITOR_SHARE)),
        column(STALL, &|row| Some(format!("{:.0}", row.samples.max(STALL)?))),
        column("sender CPU s/GB", &|row| median(row, "sender_cpu")),
        column("receiver CPU s/GB", &|row| median(row, "receiver_cpu")),
        column("all CPU s/GB", &|row| median(row, "all_cpu")),
    ];
    let paths = score.case.paths.len();
    columns.extend(SHARES[..paths].iter().map(|name| column(name, &|row| median(row, name))));
    columns.extend(REORDER.iter().map(|(name, _)| {
        column(name, &|row| Some(format!("≤ {}", short(row.samples.quartiles(name)?.median))))
    }));
    columns.extend(GAPS[..paths].iter().map(|name| {
        column(name, &|row| {
            let ms = row.samples.max(name)?;
            let at_least = if GAP_WITHOUT_END.as_secs_f64() * 1e3 <= ms { "≥ " } else { "" };
            Some(format!("{at_least}{ms:.0}"))
        })
    }));
    if score.rows.iter().any(|row| row.samples.last_error.is_some()) {
        columns.push(column("note", &|row| row.samples.last_error.as_ref().map(ToString::to_string)));
    }
    columns.retain(|column| column[1..].iter().any(|cell| !cell.is_empty()));
    draw(&columns)
}

impl LinkScore {
    pub(crate) fn row(&self, contender: LinkContender) -> Option<&LinkRow> {
        self.rows.iter().find(|row| row.contender == contender)
    }

    /// Returns the goodput of a contender.
    pub(crate) fn mbit(&self, contender: LinkContender) -> Option<f64> {
        self.best(|row| row.contender == contender)
    }

    /// Returns the goodput of the best path alone; `None` if paths are not measured alone.
    pub(crate) fn best_path(&self) -> Option<f64> {
        if matches!(self.case.kind, CaseKind::Shared | CaseKind::Flapping) {
            return None;
        }
        self.best(|row| matches!(row.contender, LinkContender::Tcp { .. }))
    }

    pub(crate) fn best_mptcp(&self) -> Option<f64> {
        self.best(|row| matches!(row.contender, LinkContender::Mptcp(_)))
    }

    /// Returns the highest goodput of the selected rows.
    fn best(&self, is_selected: impl Fn(&LinkRow) -> bool) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| is_selected(row));
        rows.filter_map(|row| row.samples.max("mbit")).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::LinkCase;
    use bench_support::RowSamples;

    #[test]
    fn goodput_is_compared_with_the_better_mptcp_and_the_best_path() {
        let score = score(&[&[45.0, 47.0], &[18.0, 19.0], &[60.0, 66.0], &[64.0, 50.0], &[67.0, 66.5]]);
        assert_eq!(
            summary(&[&score]),
            "\
| paths (Mbit/s / ms) |  sum | best path | mptcp-cubic | mptcp-bbr | evenkeel | × MPTCP | × best path | % of sum |
| ------------------- | ---: | --------: | ----------: | --------: | -------: | ------: | ----------: | -------: |
| B 50/10 + 20/30     | 70.0 |      47.0 |        66.0 |      64.0 |     67.0 |   1.015 |       1.426 |     95.7 |
"
        );
    }

    #[test]
    fn the_worst_gap_counts_and_one_without_end_is_marked() {
        let mut score = score(&[&[45.0], &[18.0], &[60.0], &[64.0], &[67.0]]);
        let row = score.rows.last_mut().unwrap();
        row.samples.record(Ok(vec![("mbit", 66.0), (GAPS[0], 130.0), (GAPS[1], 11_968.0)]));
        row.samples.record(Ok(vec![("mbit", 66.0), (GAPS[0], 590.0)]));
        let text = one(&score);
        assert!(text.lines().last().unwrap().ends_with("|       590 |   ≥ 11968 |"), "{text}");
    }

    fn score(goodputs: &[&[f64]]) -> LinkScore {
        let case = LinkCase::parse("B").unwrap();
        let rows = LinkContender::in_case(&case).into_iter().zip(goodputs).map(|(contender, goodputs)| {
            let mut samples = RowSamples::new(&contender.label());
            goodputs.iter().for_each(|mbit| samples.record(Ok(vec![("mbit", *mbit)])));
            LinkRow { contender, samples }
        });
        LinkScore { case, rows: rows.collect() }
    }
}
