//! Reason for choosing a node: the deciding metrics and their text for dashboards.
//!
//! Limits: storing and formatting a reason allocates nothing.

use core::fmt;

use super::sub_scores::{RequestKind, SubScores};

/// Reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChoiceReason {
    /// The node was drawn from those with the best scores.
    Score(ScoreBreakdown),
    /// The node is comparable with the best, and it was its turn by weight.
    Weight {
        /// Its estimated time to the first token, once measured.
        latency_estimate_ms: Option<f64>,
        /// Number of comparable nodes.
        nodes: usize,
    },
    /// The node is comparable with the best, and rendezvous hashing prefers it for the affinity key.
    Affinity {
        /// Number of comparable nodes.
        nodes: usize,
    },
    /// The node's estimate is old, and this request measures it again.
    Measure,
}

/// Score of a node and its result in the draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreBreakdown {
    /// Kind of the request.
    pub request: RequestKind,
    /// The node's score.
    pub score: f64,
    /// Sub-scores that make up the score.
    pub sub_scores: SubScores,
    /// Basis of the latency sub-score.
    pub latency: LatencyBasis,
    /// Position in the ranking by score × weight, from 1.
    pub position: usize,
    /// Number of nodes or peers that could be chosen.
    pub open: usize,
    /// Number of nodes that took part in the draw.
    pub drawn_from: usize,
    /// Probability with which it was drawn, 0..=1.
    pub chance: f64,
}

/// Latency that the nodes' latencies are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyBasis {
    /// The limit `lat_bad_ms`.
    Absolute,
    /// The median of the open nodes.
    Relative {
        /// The median, in milliseconds.
        median_ms: f64,
    },
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Score(breakdown) => breakdown.fmt(f),
            Self::Weight { latency_estimate_ms, nodes } => {
                write!(f, "turn by weight among {}", Nodes(*nodes))?;
                match latency_estimate_ms {
                    Some(estimate) => write!(f, ", latency estimate {estimate:.0} ms"),
                    None => f.write_str(", latency not measured yet"),
                }
            }
            Self::Affinity { nodes } => write!(f, "preferred by affinity hash among {}", Nodes(*nodes)),
            Self::Measure => f.write_str("measures a node whose latency estimate is old"),
        }
    }
}

impl fmt::Display for ScoreBreakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            1 => f.write_str("best")?,
            position => write!(f, "number {position}")?,
        }
        write!(f, " of {} by score {:.2}", self.open, self.score)?;
        if self.drawn_from > 1 {
            write!(f, ", drawn from {} with a chance of {:.0} %", self.drawn_from, self.chance * 100.0)?;
        }
        let weighted = self.sub_scores.named().into_iter().zip(self.request.weights().named());
        let mut separator = ": ";
        for ((name, sub_score), (_, weight)) in weighted {
            if weight > 0.0 {
                write!(f, "{separator}{name} {sub_score:.2}")?;
                separator = ", ";
            }
        }
        match self.latency {
            LatencyBasis::Absolute => Ok(()),
            LatencyBasis::Relative { median_ms } => write!(f, "; median latency {median_ms:.0} ms"),
        }
    }
}

/// Number of comparable nodes, displayed with the noun in the singular or plural.
struct Nodes(usize);

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.0 == 1 { "node" } else { "nodes" };
        write!(f, "{} comparable {nodes}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_drawn_node_shows_its_position_its_chance_and_its_sub_scores() {
        let text = ChoiceReason::Score(ScoreBreakdown { position: 2, ..breakdown() }).to_string();
        assert_eq!(
            text,
            "number 2 of 7 by score 0.82, drawn from 3 with a chance of 31 %: db free 0.80, http free 0.75, \
             tx free 0.90, latency 1.00, errors 0.80, timeouts 0.75, waiting 0.90, idle 0.10, uptime 0.50; \
             median latency 41 ms"
        );
    }

    #[test]
    fn only_sub_scores_with_a_weight_are_shown() {
        let only = ScoreBreakdown {
            request: RequestKind::Infer,
            latency: LatencyBasis::Absolute,
            drawn_from: 1,
            open: 1,
            ..breakdown()
        };
        assert_eq!(
            ChoiceReason::Score(only).to_string(),
            "best of 1 by score 0.82: http free 0.75, latency 1.00, errors 0.80, timeouts 0.75, uptime 0.50"
        );
    }

    #[test]
    fn the_reason_displays_the_number_of_comparable_nodes() {
        let weight = ChoiceReason::Weight { latency_estimate_ms: Some(41.2), nodes: 5 };
        assert_eq!(weight.to_string(), "turn by weight among 5 comparable nodes, latency estimate 41 ms");
        let weight = ChoiceReason::Weight { latency_estimate_ms: None, nodes: 1 };
        assert_eq!(weight.to_string(), "turn by weight among 1 comparable node, latency not measured yet");
        let affinity = ChoiceReason::Affinity { nodes: 2 };
        assert_eq!(affinity.to_string(), "preferred by affinity hash among 2 comparable nodes");
        assert_eq!(ChoiceReason::Measure.to_string(), "measures a node whose latency estimate is old");
    }

    fn breakdown() -> ScoreBreakdown {
        ScoreBreakdown {
            request: RequestKind::Query,
            score: 0.82,
            sub_scores: SubScores {
                db_free: 0.8,
                http_free: 0.75,
                tx_free: 0.9,
                lat: 1.0,
                err: 0.8,
                to: 0.75,
                wait: 0.9,
                idle: 0.1,
                uptime: 0.5,
            },
            latency: LatencyBasis::Relative { median_ms: 41.0 },
            position: 1,
            open: 7,
            drawn_from: 3,
            chance: 0.31,
        }
    }
}
