//! Selection of a path: smooth weighted round robin, compared with plain round robin.

use std::hint::black_box;

use evenkeel_policy::id::PathId;
use evenkeel_policy::swrr::{SwrrRules, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};

use super::Group;
use crate::measure::{Contender, Goal, Work};

const PATHS: [u32; 4] = [3, 8, 64, 128];

/// Number of paths for which there is a goal.
const GOAL_PATHS: u32 = 8;

pub(super) fn groups() -> impl Iterator<Item = Group> {
    PATHS.into_iter().map(|paths| Group::new(format!("swrr/{paths}-paths"), move || contenders(paths)))
}

fn contenders(paths: u32) -> Vec<Contender> {
    let goal = (paths == GOAL_PATHS).then_some(Goal::NsMax(10.0));
    vec![
        Contender::new("round robin", RoundRobin::new(paths)),
        Contender::new("round robin again", RoundRobin::new(paths)),
        Contender::new("swrr", Swrr { swrr: scheduler(paths) }).with_goal(goal),
        Contender::new("swrr where", SwrrWhere::new(paths)),
    ]
}

struct RoundRobin {
    paths: Vec<PathId>,
    index: usize,
}

impl RoundRobin {
    fn new(paths: u32) -> Self {
        Self { paths: (0..paths).map(PathId).collect(), index: 0 }
    }
}

impl Work for RoundRobin {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(self.paths[self.index]);
            self.index += 1;
            if self.index == self.paths.len() {
                self.index = 0;
            }
        }
    }
}

/// Picks among all paths.
struct Swrr {
    swrr: SwrrScheduler,
}

impl Work for Swrr {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            black_box(self.swrr.pick());
        }
    }
}

/// Picks with a filter; all paths but the last are eligible.
struct SwrrWhere {
    swrr: SwrrScheduler,
    eligible: Vec<bool>,
}

impl SwrrWhere {
    fn new(paths: u32) -> Self {
        Self { swrr: scheduler(paths), eligible: (1..=paths).map(|path| path < paths).collect() }
    }
}

impl Work for SwrrWhere {
    fn run(&mut self, ops: u64) {
        let eligible = black_box(self.eligible.as_slice());
        for _ in 0..ops {
            black_box(self.swrr.pick_where(|path| eligible[path.index()]));
        }
    }
}

/// Creates a scheduler whose paths all have different weights, each at the end of its ramp.
fn scheduler(paths: u32) -> SwrrScheduler {
    let mut swrr = SwrrScheduler::new(SwrrRules::default());
    let start = Instant::default();
    for path in 0..paths {
        let rtt_ms = 10.0 + f64::from(path);
        swrr.add_path(PathId(path)).expect("ids differ and are at most 128");
        swrr.activate(PathId(path), start).expect("the path was added");
        swrr.update_path_rtt(PathId(path), start, rtt_ms).expect("the path was added");
    }
    for second in 1..=60 {
        swrr.refresh(start + Duration::from_secs(second));
    }
    swrr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_weighted_by_their_rtt() {
        for paths in PATHS {
            let swrr = scheduler(paths);
            assert_eq!(swrr.active().len(), paths as usize);
            let shares: Vec<_> = (0..paths).filter_map(|path| swrr.share(PathId(path))).collect();
            assert!(shares.windows(2).all(|pair| pair[0] > pair[1]), "{shares:?}");
            let last = 10.0 / f64::from(10 + paths - 1);
            let ratio = shares[shares.len() - 1] / shares[0];
            assert!((ratio / last - 1.0).abs() < 0.05, "{ratio} is not {last}");
        }
    }
}
