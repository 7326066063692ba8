//! A message's way out of a queue, with and without a choice between keys.
//!
//! A delivery hands out the next message's handle, copies its body of 1 KB from the store's memory to an
//! outgoing buffer, notes a lease by its expiry, and acknowledges the message delivered 1 000 deliveries before,
//! which removes its lease and lists the message for the store's next batch of deletes. Everything but the handing
//! out is the same code, and bodies are copied in the same order, without a pattern.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::rc::Rc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::DrrScheduler;
use evenkeel_policy::id::Key;
use evenkeel_policy::time::{Duration, Instant};

use super::order::Order;
use super::pick::scheduler;
use super::{Group, KEYS};
use crate::measure::{Contender, Goal, Work};

const BODY: usize = 1_024;
const BACKLOG_MIN: u32 = 1 << 17;
const IN_FLIGHT: u64 = 1_000;
const OUTGOING_MAX: usize = 64 * BODY;
const VISIBILITY: Duration = Duration::from_secs(30);
const BETWEEN_DELIVERIES: Duration = Duration::from_micros(1);

/// Where bodies are copied from.
#[derive(Clone, Copy)]
struct Store {
    name: &'static str,
    bodies: usize,
}

const STORES: [Store; 2] = [
    // More than caches hold.
    Store { name: "delivery", bodies: 1 << 16 },
    // As if each had just been read: the least a delivery can take, so the most a choice can add in relation.
    Store { name: "delivery-hot", bodies: 1 << 8 },
];

pub(super) fn groups() -> impl Iterator<Item = Group> {
    STORES.into_iter().flat_map(|store| {
        KEYS.into_iter().map(move |keys| {
            Group::new(format!("{}/{keys}-keys", store.name), move || contenders(keys, store))
        })
    })
}

fn contenders(keys: u32, store: Store) -> Vec<Contender> {
    let bodies: Rc<[u8]> = (0..store.bodies * BODY).map(|at| at as u8).collect();
    let backlog = backlog(keys);
    let fifo = || Queue::new(Fifo { handles: backlog.iter().copied().collect() }, keys, bodies.clone());
    let fair = |order: Order| Queue::new(Fair::new(&order.indices(keys), &backlog), keys, bodies.clone());
    let goal = Some(Goal::RatioBelow(1.05));
    vec![
        Contender::new("fifo", fifo()),
        Contender::new("fifo again", fifo()),
        Contender::new("drr", fair(Order::Sequential)).with_goal(goal),
        Contender::new("drr shuffled", fair(Order::Shuffled)).with_goal(goal),
    ]
}

/// Lists the handles of the waiting messages: as many for each key, at least two.
fn backlog(keys: u32) -> Vec<u32> {
    Order::Shuffled.indices(keys * BACKLOG_MIN.div_ceil(keys).max(2))
}

/// How waiting messages are kept and which is next.
trait Lanes {
    fn take(&mut self) -> Option<u32>;
    fn put(&mut self, handle: u32);
    fn waiting(&self) -> usize;
}

/// One lane for all.
struct Fifo {
    handles: VecDeque<u32>,
}

impl Lanes for Fifo {
    fn take(&mut self) -> Option<u32> {
        self.handles.pop_front()
    }

    fn put(&mut self, handle: u32) {
        self.handles.push_back(handle);
    }

    fn waiting(&self) -> usize {
        self.handles.len()
    }
}

/// A lane per key, and whose turn it is.
struct Fair {
    drr: DrrScheduler,
    lanes: Vec<VecDeque<u32>>,
    /// The key of each message.
    keys: Vec<Key>,
}

impl Fair {
    /// Deals the backlog to the keys in the order of their turns, so that it is handed out as it lies.
    fn new(ring: &[u32], backlog: &[u32]) -> Self {
        let per_key = backlog.len().div_ceil(ring.len());
        let mut lanes: Vec<_> = ring.iter().map(|_| VecDeque::with_capacity(per_key)).collect();
        let mut keys = vec![Key(0); backlog.len()];
        for (&handle, &key) in backlog.iter().zip(ring.iter().cycle()) {
            lanes[key as usize].push_back(handle);
            keys[handle as usize] = Key(key);
        }
        Self { drr: scheduler(ring), lanes, keys }
    }
}

impl Lanes for Fair {
    fn take(&mut self) -> Option<u32> {
        let key = self.drr.next_key()?;
        let lane = &mut self.lanes[key.index()];
        let handle = lane.pop_front()?;
        self.drr.consume_deficit(key, Cost::MESSAGE);
        if lane.is_empty() {
            self.drr.remove_key(key);
        }
        Some(handle)
    }

    fn put(&mut self, handle: u32) {
        self.lanes[self.keys[handle as usize].index()].push_back(handle);
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }
}

/// A queue's part in a delivery, whatever its lanes.
struct Queue<L> {
    lanes: L,
    bodies: Rc<[u8]>,
    outgoing: Vec<u8>,
    now: Instant,
    sequence: u64,
    leases: BTreeMap<Receipt, Lease>,
    /// What consumers will acknowledge, in this order.
    in_flight: VecDeque<Receipt>,
    acknowledged: Vec<u32>,
    ops_max: u64,
}

/// Leases are found by it, and expire in its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Receipt {
    expires: Instant,
    sequence: u64,
}

struct Lease {
    handle: u32,
    attempt: u32,
}

impl<L: Lanes> Queue<L> {
    /// Makes a queue in full swing: nobody is new, consumers hold as many messages as they always do.
    fn new(lanes: L, keys: u32, bodies: Rc<[u8]>) -> Self {
        // Every key keeps a message, so that nobody leaves the ring.
        let ops_max = lanes.waiting() as u64 - u64::from(keys) - IN_FLIGHT;
        let mut queue = Self {
            lanes,
            bodies,
            outgoing: Vec::with_capacity(OUTGOING_MAX),
            now: Instant::default(),
            sequence: 0,
            leases: BTreeMap::new(),
            in_flight: VecDeque::new(),
            acknowledged: Vec::new(),
            ops_max,
        };
        while queue.sequence < u64::from(keys).max(IN_FLIGHT) {
            queue.deliver();
            queue.restore();
        }
        queue
    }

    fn deliver(&mut self) {
        let Some(handle) = self.lanes.take() else { return };
        self.send(handle);
        self.lease(handle);
        if self.in_flight.len() as u64 > IN_FLIGHT {
            self.acknowledge();
        }
    }

    fn send(&mut self, handle: u32) {
        let start = (handle as usize * BODY) & (self.bodies.len() - 1);
        self.outgoing.extend_from_slice(&self.bodies[start..start + BODY]);
        if OUTGOING_MAX <= self.outgoing.len() {
            black_box(&self.outgoing);
            self.outgoing.clear();
        }
    }

    fn lease(&mut self, handle: u32) {
        self.now += BETWEEN_DELIVERIES;
        self.sequence += 1;
        let receipt = Receipt { expires: self.now + VISIBILITY, sequence: self.sequence };
        self.leases.insert(receipt, Lease { handle, attempt: 1 });
        self.in_flight.push_back(receipt);
    }

    fn acknowledge(&mut self) {
        let receipt = self.in_flight.pop_front();
        if let Some(lease) = receipt.and_then(|receipt| self.leases.remove(&receipt)) {
            black_box(lease.attempt);
            self.acknowledged.push(lease.handle);
        }
    }
}

impl<L: Lanes> Work for Queue<L> {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            self.deliver();
        }
    }

    /// Lets acknowledged messages wait again.
    fn restore(&mut self) {
        for handle in self.acknowledged.drain(..) {
            self.lanes.put(handle);
        }
    }

    fn ops_max(&self) -> u64 {
        self.ops_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_a_choice_the_same_messages_go_out_in_the_same_order() {
        for keys in [1, 7, 1_000] {
            let backlog = backlog(keys);
            let expected = acknowledged(Fifo { handles: backlog.iter().copied().collect() }, keys);
            for order in [Order::Sequential, Order::Shuffled] {
                let fair = Fair::new(&order.indices(keys), &backlog);
                assert!(acknowledged(fair, keys) == expected, "{keys} keys, {order:?}");
            }
        }
    }

    fn acknowledged(lanes: impl Lanes, keys: u32) -> Vec<u32> {
        let mut queue = Queue::new(lanes, keys, vec![0; 4 * BODY].into());
        let mut handles = Vec::new();
        for _ in 0..3 {
            queue.run(queue.ops_max());
            assert_eq!(queue.leases.len() as u64, IN_FLIGHT);
            handles.extend(&queue.acknowledged);
            queue.restore();
        }
        handles
    }
}
