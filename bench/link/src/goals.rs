//! The goals of each case, compared with the results.
//!
//! A *must* is a promise of the design, an *aim* is a wish. A goal whose contenders were not measured is left out.

use crate::case::CaseKind;
use crate::contender::{CongestionControl, LinkContender};
use crate::rounds::LinkScore;
use crate::turn::{COMPETITOR_SHARE, GAPS, STALL};

const CUBIC: LinkContender = LinkContender::Tcp { path: 1, congestion_control: CongestionControl::Cubic };
const BBR: LinkContender = LinkContender::Tcp { path: 1, congestion_control: CongestionControl::Bbr };

/// Lists the goals of all cases, each met or missed.
pub(crate) fn list(scores: &[LinkScore]) -> String {
    let lines: String = scores
        .iter()
        .flat_map(|score| {
            goals(score).into_iter().map(|goal| format!("- {}: {}\n", score.case.name, goal.line()))
        })
        .collect();
    format!("\n## Goals\n\n{lines}")
}

/// A bound for a figure of the link.
struct LinkGoal {
    kind: &'static str,
    text: String,
    measured: f64,
    bound: Bound,
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl LinkGoal {
    fn line(&self) -> String {
        let Self { kind, text, measured, bound } = self;
        let (is_met, sign, limit) = match bound {
            Bound::AtLeast(limit) => (limit <= measured, "≥", limit),
            Bound::AtMost(limit) => (measured <= limit, "≤", limit),
        };
        let verdict = if is_met { "met" } else { "missed" };
        format!("{kind}: {text} {sign} {limit}: {measured:.3}, {verdict}")
    }
}

fn goals(score: &LinkScore) -> Vec<LinkGoal> {
    let ratio = |kind, text: &str, other: Option<f64>, limit| {
        let measured = score.mbit(LinkContender::Evenkeel)? / other?;
        Some(LinkGoal { kind, text: text.to_owned(), measured, bound: Bound::AtLeast(limit) })
    };
    let goals = match score.case.kind {
        CaseKind::Multipath | CaseKind::FailOver => {
            let is_sum_promised = matches!(score.case.name, "A" | "B");
            let mut goals = vec![
                ratio("must", "goodput / better MPTCP", score.best_mptcp(), 0.95),
                ratio("aim", "goodput / better MPTCP", score.best_mptcp(), 1.0),
                ratio("must", "goodput / best path", score.best_path(), 0.97),
                ratio("must", "goodput / sum", is_sum_promised.then(|| score.case.sum_mbit()), 0.85),
            ];
            goals.extend(GAPS.iter().map(|gap| seconds(score, gap, "gap")));
            goals
        }
        CaseKind::SinglePath => vec![
            ratio("must", "goodput / kernel Cubic", score.mbit(CUBIC), 0.97),
            ratio("aim", "goodput / kernel BBR", score.mbit(BBR), 1.0),
        ],
        CaseKind::Shared => vec![competitor_share(score)],
        CaseKind::Flapping => vec![
            seconds(score, STALL, "longest stall"),
            ratio("aim", "goodput / better MPTCP", score.best_mptcp(), 1.0),
        ],
    };
    goals.into_iter().flatten().collect()
}

/// Returns the goal of progress within a second.
fn seconds(score: &LinkScore, metric: &'static str, what: &str) -> Option<LinkGoal> {
    let measured = score.row(LinkContender::Evenkeel)?.samples.max(metric)? / 1e3;
    let path = metric.strip_prefix("gap ").and_then(|rest| rest.strip_suffix(" ms"));
    let text = path.map_or_else(|| format!("{what} in s"), |path| format!("{what} after {path} fails in s"));
    Some(LinkGoal { kind: "must", text, measured, bound: Bound::AtMost(1.0) })
}

/// Returns the goal for the kernel Cubic flow's share beside the link, relative to its share beside another of its kind.
fn competitor_share(score: &LinkScore) -> Option<LinkGoal> {
    let share = |contender| Some(score.row(contender)?.samples.quartiles(COMPETITOR_SHARE)?.median);
    let measured = share(LinkContender::Evenkeel)? / share(CUBIC)?;
    let text = "share of a kernel Cubic flow beside the link / beside kernel Cubic".to_owned();
    Some(LinkGoal { kind: "must", text, measured, bound: Bound::AtLeast(0.7) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::LinkCase;
    use crate::rounds::LinkRow;
    use bench_support::{RowSamples, TurnSample};

    #[test]
    fn every_goal_of_a_case_is_met_or_missed() {
        let text = list(&[score(
            "B",
            &[
                ("tcp p1", vec![("mbit", 47.0)]),
                ("mptcp-cubic", vec![("mbit", 66.0)]),
                ("evenkeel", vec![("mbit", 65.0), (GAPS[0], 130.0), (GAPS[1], 1_200.0)]),
            ],
        )]);
        assert_eq!(
            text,
            "
## Goals

- B: must: goodput / better MPTCP ≥ 0.95: 0.985, met
- B: aim: goodput / better MPTCP ≥ 1: 0.985, missed
- B: must: goodput / best path ≥ 0.97: 1.383, met
- B: must: goodput / sum ≥ 0.85: 0.929, met
- B: must: gap after p1 fails in s ≤ 1: 0.130, met
- B: must: gap after p2 fails in s ≤ 1: 1.200, missed
"
        );
    }

    #[test]
    fn the_kernel_flow_may_lose_30_percent_of_its_share() {
        let shares = |cubic, link| {
            list(&[score(
                "shared-5ms",
                &[("tcp p1", vec![(COMPETITOR_SHARE, cubic)]), ("evenkeel", vec![(COMPETITOR_SHARE, link)])],
            )])
        };
        assert!(shares(50.0, 36.0).ends_with(": 0.720, met\n"));
        assert!(shares(50.0, 34.0).ends_with(": 0.680, missed\n"));
    }

    #[test]
    fn goals_without_measurements_are_left_out() {
        let text = list(&[score("flapping", &[("evenkeel", vec![("mbit", 60.0), (STALL, 400.0)])])]);
        assert_eq!(text, "\n## Goals\n\n- flapping: must: longest stall in s ≤ 1: 0.400, met\n");
        assert_eq!(list(&[score("loss", &[])]), "\n## Goals\n\n");
    }

    fn score(case: &str, samples: &[(&str, TurnSample)]) -> LinkScore {
        let case = LinkCase::parse(case).unwrap();
        let rows = LinkContender::in_case(&case).into_iter().map(|contender| {
            let mut row = LinkRow { contender, samples: RowSamples::new(&contender.label()) };
            let own = samples.iter().filter(|(label, _)| *label == contender.label());
            own.for_each(|(_, sample)| row.samples.record(Ok(sample.clone())));
            row
        });
        LinkScore { case, rows: rows.collect() }
    }
}
