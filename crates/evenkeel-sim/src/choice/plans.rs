//! Plans of node choice, and the table of what they show.

use std::fmt;

use evenkeel_policy::id::NodeId;
use evenkeel_policy::score::{HotColdConfig, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

use super::{AffinityKeys, ChoiceMode, ChoiceNode, ChoicePlan, run_choice};
use crate::record::Share;
use crate::simulation::SimError;

const FAST: Duration = Duration::from_millis(25);
const SLOW: Duration = Duration::from_millis(822);

/// Time at which the node of [`recovery`] becomes slow, and at which it recovers.
const SLOW_FROM: Duration = Duration::from_secs(10);
pub const SLOW_UNTIL: Duration = Duration::from_secs(60);

/// Creates a node of 25 ms and one of 822 ms to the first token, for a minute.
pub fn fast_and_slow(seed: u64, clients: u32, keys: AffinityKeys, mode: ChoiceMode) -> ChoicePlan {
    let nodes = vec![ChoiceNode::steady(16, FAST), ChoiceNode::steady(16, SLOW)];
    ChoicePlan { clients, keys, mode, nodes, ..plan(seed) }
}

/// Creates nodes of weight 9 and 1 with a jitter of 30 %, for about 4000 requests.
pub fn nine_to_one(seed: u64, clients: u32, keys: AffinityKeys, mode: ChoiceMode) -> ChoicePlan {
    let generation = Duration::from_millis(200);
    let node = |weight| ChoiceNode {
        weight: Weight::whole(weight).unwrap_or(Weight::ONE),
        jitter: 0.3,
        generation,
        ..ChoiceNode::steady(16, FAST)
    };
    let nodes = vec![node(9), node(1)];
    let duration = (FAST + generation) * 4_000 / clients;
    ChoicePlan { clients, keys, mode, nodes, duration, ..plan(seed) }
}

/// Creates two equal nodes, of which the second is slow from 10 to 60 s.
pub fn recovery(seed: u64, clients: u32, keys: AffinityKeys, mode: ChoiceMode) -> ChoicePlan {
    let mut recovering = ChoiceNode::steady(16, FAST);
    recovering.first_token.extend([(SLOW_FROM, SLOW), (SLOW_UNTIL, FAST)]);
    let nodes = vec![ChoiceNode::steady(16, FAST), recovering];
    ChoicePlan { clients, keys, mode, nodes, duration: SLOW_UNTIL + Duration::from_secs(80), ..plan(seed) }
}

/// Creates twenty conversations with pauses of up to ten seconds on four equal nodes with a jitter of 30 %, for ten
/// minutes.
pub fn conversations(seed: u64, mode: ChoiceMode) -> ChoicePlan {
    let node = ChoiceNode {
        jitter: 0.3,
        prefill: Duration::from_millis(400),
        generation: Duration::from_secs(1),
        ..ChoiceNode::steady(32, Duration::from_millis(100))
    };
    ChoicePlan {
        clients: 20,
        think_max: Duration::from_secs(10),
        keys: AffinityKeys::PerClient,
        mode,
        nodes: vec![node; 4],
        duration: Duration::from_secs(600),
        ..plan(seed)
    }
}

fn plan(seed: u64) -> ChoicePlan {
    ChoicePlan {
        seed,
        duration: Duration::from_secs(60),
        clients: 1,
        think_max: Duration::ZERO,
        keys: AffinityKeys::None,
        mode: ChoiceMode::Stream,
        selection: SelectionPolicy::HotCold(HotColdConfig::default()),
        nodes: vec![],
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct ChoiceRow {
    pub clients: u32,
    pub keys: AffinityKeys,
    pub mode: ChoiceMode,
    /// Share of the fast node beside a slow one.
    pub fast: Share,
    /// Share of the heavy node at weights of 9 to 1.
    pub heavy: Share,
    /// Share of one of two equal nodes, a minute after it recovered from being slow.
    pub recovered: Share,
}

/// Runs the plans at 1, 4 and 16 clients.
pub fn choice_rows(seed: u64) -> Result<Vec<ChoiceRow>, SimError> {
    let mut rows = vec![];
    for clients in [1, 4, 16] {
        for keys in [AffinityKeys::None, AffinityKeys::Distinct] {
            for mode in [ChoiceMode::Stream, ChoiceMode::Whole] {
                let share = |plan: ChoicePlan, node, from| {
                    run_choice(&plan).map(|run| Share(run.share(NodeId(node), from, plan.duration)))
                };
                let minute_later = SLOW_UNTIL + Duration::from_secs(60);
                rows.push(ChoiceRow {
                    clients,
                    keys,
                    mode,
                    fast: share(fast_and_slow(seed, clients, keys, mode), 0, Duration::ZERO)?,
                    heavy: share(nine_to_one(seed, clients, keys, mode), 0, Duration::ZERO)?,
                    recovered: share(recovery(seed, clients, keys, mode), 1, minute_later)?,
                });
            }
        }
    }
    Ok(rows)
}

impl fmt::Display for AffinityKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Distinct => "distinct",
            Self::PerClient => "per client",
        })
    }
}

impl fmt::Display for ChoiceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "stream",
            Self::Whole => "whole",
        })
    }
}
