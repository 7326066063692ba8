//! Selection of the next key: a DRR pick, compared with taking the next key of a plain list.
//!
//! The pointer chase isolates the cost of memory access: it visits the same number of slots, each as large as a DRR
//! account, in the same order, and writes a word in each, as charging does.

use std::collections::VecDeque;
use std::hint::black_box;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{DrrConfig, DrrScheduler};
use evenkeel_policy::id::Key;
use evenkeel_policy::weight::Weight;

use super::order::AccessOrder;
use super::{Group, HOT_KEYS_MAX, KEYS};
use crate::measure::{Contender, Goal, Work};

pub(super) fn groups() -> impl Iterator<Item = Group> {
    KEYS.into_iter().map(|keys| Group::new(format!("drr-pick/{keys}-keys"), move || contenders(keys)))
}

fn contenders(keys: u32) -> Vec<Contender> {
    let goal = (keys <= HOT_KEYS_MAX).then_some(Goal::NsMax(20.0));
    vec![
        Contender::new("fifo", Fifo::new(keys)),
        Contender::new("fifo again", Fifo::new(keys)),
        Contender::new("chase", Chase::new(keys, AccessOrder::Sequential)),
        Contender::new("drr", Drr::new(keys, AccessOrder::Sequential)).with_goal(goal),
        Contender::new("chase shuffled", Chase::new(keys, AccessOrder::Shuffled)),
        Contender::new("drr shuffled", Drr::new(keys, AccessOrder::Shuffled)).with_goal(goal),
    ]
}

/// Takes the first key and appends it again.
struct Fifo {
    keys: VecDeque<Key>,
}

impl Fifo {
    fn new(keys: u32) -> Self {
        Self { keys: (0..keys).map(Key).collect() }
    }
}

impl Work for Fifo {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            let key = self.keys.pop_front().expect("every key is pushed back");
            self.keys.push_back(black_box(key));
        }
    }
}

/// Picks the next key and charges it; every key has work.
struct Drr {
    drr: DrrScheduler,
}

impl Drr {
    fn new(keys: u32, order: AccessOrder) -> Self {
        Self { drr: scheduler(&order.indices(keys)) }
    }
}

impl Work for Drr {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            pick(&mut self.drr);
        }
    }
}

fn pick(drr: &mut DrrScheduler) {
    let key = drr.next_key().expect("every key has work");
    drr.consume_deficit(black_box(key), Cost::MESSAGE);
}

/// Creates a scheduler whose ring visits the keys in this order; all keys have work and have been served once.
pub(super) fn scheduler(ring: &[u32]) -> DrrScheduler {
    let mut drr = DrrScheduler::new(DrrConfig::default()).expect("the default quantum is in range");
    for &key in ring {
        drr.add_key(Key(key), Weight::ONE).expect("there are fewer keys than the default limit");
    }
    for _ in ring {
        pick(&mut drr);
    }
    drr
}

/// Follows links through slots and writes a word in each.
struct Chase {
    slots: Vec<Slot>,
    index: u32,
}

/// Slot of the size of a DRR account.
struct Slot {
    words: [u64; 4],
    next: u32,
    _padding: u32,
}

const _: () = assert!(size_of::<Slot>() == 40);

impl Chase {
    fn new(slots: u32, order: AccessOrder) -> Self {
        let ring = order.indices(slots);
        let mut nexts = vec![0; ring.len()];
        for (&slot, &next) in ring.iter().zip(ring.iter().cycle().skip(1)) {
            nexts[slot as usize] = next;
        }
        let slots = nexts.into_iter().map(|next| Slot { words: [0; 4], next, _padding: 0 }).collect();
        Self { slots, index: 0 }
    }
}

impl Work for Chase {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            let slot = &mut self.slots[self.index as usize];
            slot.words[0] += 1;
            self.index = black_box(slot.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_ring_is_visited_in_its_order() {
        let mut drr = scheduler(&[2, 0, 1]);
        let mut visited = Vec::new();
        for _ in 0..6 {
            visited.extend(drr.next_key().map(|key| key.0));
            pick(&mut drr);
        }
        assert_eq!(visited, [2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_chase_visits_every_slot_once_a_round() {
        let mut chase = Chase::new(100, AccessOrder::Shuffled);
        chase.run(300);
        assert!(chase.slots.iter().all(|slot| slot.words[0] == 3));
    }
}
