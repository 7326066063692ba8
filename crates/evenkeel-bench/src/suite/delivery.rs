//! A message's way out of a queue, with and without a choice between keys.
//!
//! A delivery hands out the next message, reads and counts up its record in the queue's index, copies its body of
//! 1 KB from the store's memory to an outgoing buffer, notes a lease by its expiry, and acknowledges the message
//! delivered 1 000 deliveries before, which removes its lease and lists it for the store's next batch of deletes.
//! Everything but the handing out is the same code. Records and bodies are visited in the same order, without a
//! pattern.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::DrrScheduler;
use evenkeel_policy::id::Key;
use evenkeel_policy::time::{Duration, Instant};

use super::order::AccessOrder;
use super::pick::scheduler;
use super::{Group, KEYS};
use crate::measure::{Contender, Goal, Work};

const BODY: usize = 1_024;
const BACKLOG_MIN: u32 = 1 << 17;
const IN_FLIGHT: u64 = 1_000;
const OUTGOING_MAX: usize = 64 * BODY;
const VISIBILITY: Duration = Duration::from_secs(30);
const BETWEEN_DELIVERIES: Duration = Duration::from_micros(1);

/// Where bodies are copied from; every queue has its own, so that none finds what another has just read.
#[derive(Clone, Copy)]
struct Store {
    name: &'static str,
    bodies: u32,
}

const STORES: [Store; 2] = [
    // 32 MB in each of six queues that take turns: no body is in a cache when it is wanted.
    Store { name: "delivery", bodies: 1 << 15 },
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
    let in_order = AccessOrder::Sequential.indices(keys);
    let shuffled = AccessOrder::Shuffled.indices(keys);
    let backlog = backlog(keys, BACKLOG_MIN);
    let fifo = || Queue::new(Fifo::EMPTY, &in_order, &backlog, store);
    let lanes = |ring| Queue::new(Keyed::new(RoundRobin::new(ring), keys), ring, &backlog, store);
    let drr = |ring| Queue::new(Keyed::new(scheduler(ring), keys), ring, &backlog, store);
    let goal = Some(Goal::RatioBelow(1.05));
    vec![
        Contender::new("fifo", fifo()),
        Contender::new("fifo again", fifo()),
        Contender::new("lanes", lanes(&in_order)),
        Contender::new("drr", drr(&in_order)).with_goal(goal),
        Contender::new("lanes shuffled", lanes(&shuffled)),
        Contender::new("drr shuffled", drr(&shuffled)).with_goal(goal),
    ]
}

/// Lists the handles of the waiting messages: as many for each key, at least two.
fn backlog(keys: u32, len_min: u32) -> Vec<u32> {
    AccessOrder::Shuffled.indices(keys * len_min.div_ceil(keys).max(2))
}

/// What the queue knows of a message besides its body.
#[derive(Clone, Copy)]
struct Record {
    key: Key,
    attempts: u32,
    /// The message after it in its lane.
    next: u32,
    /// Where its body lies.
    body: u32,
}

/// One record per handle.
type Index = [Record];

/// How waiting messages are kept and which is next.
trait WaitingMessages {
    fn take(&mut self, index: &Index) -> Option<u32>;
    fn put(&mut self, index: &mut Index, handle: u32);
}

/// Messages that leave in the order they came: a list through their records.
#[derive(Clone, Copy)]
struct KeyList {
    first: u32,
    last: u32,
}

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

impl KeyList {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    fn is_empty(self) -> bool {
        self.first == NONE
    }

    fn pop(&mut self, index: &Index) -> Option<u32> {
        let handle = self.first;
        self.first = index.get(handle as usize)?.next;
        Some(handle)
    }

    fn push(&mut self, index: &mut Index, handle: u32) {
        index[handle as usize].next = NONE;
        if self.is_empty() {
            self.first = handle;
        } else {
            index[self.last as usize].next = handle;
        }
        self.last = handle;
    }
}

/// One lane for all.
struct Fifo {
    lane: KeyList,
}

impl Fifo {
    const EMPTY: Self = Self { lane: KeyList::EMPTY };
}

impl WaitingMessages for Fifo {
    fn take(&mut self, index: &Index) -> Option<u32> {
        self.lane.pop(index)
    }

    fn put(&mut self, index: &mut Index, handle: u32) {
        self.lane.push(index, handle);
    }
}

/// A lane per key, and whose turn it is.
struct Keyed<T> {
    turns: T,
    lanes: Vec<KeyList>,
}

impl<T> Keyed<T> {
    fn new(turns: T, keys: u32) -> Self {
        Self { turns, lanes: vec![KeyList::EMPTY; keys as usize] }
    }
}

impl<T: Turns> WaitingMessages for Keyed<T> {
    fn take(&mut self, index: &Index) -> Option<u32> {
        let key = self.turns.next()?;
        let lane = &mut self.lanes[key.index()];
        let handle = lane.pop(index)?;
        self.turns.charge(key);
        if lane.is_empty() {
            self.turns.leave(key);
        }
        Some(handle)
    }

    fn put(&mut self, index: &mut Index, handle: u32) {
        self.lanes[index[handle as usize].key.index()].push(index, handle);
    }
}

/// Whose turn it is.
trait Turns {
    fn next(&self) -> Option<Key>;
    fn charge(&mut self, key: Key);
    fn leave(&mut self, key: Key);
}

impl Turns for DrrScheduler {
    fn next(&self) -> Option<Key> {
        self.next_key()
    }

    fn charge(&mut self, key: Key) {
        self.consume_deficit(key, Cost::MESSAGE);
    }

    fn leave(&mut self, key: Key) {
        self.remove_key(key);
    }
}

/// Everybody once, whatever it costs: shows what keeping a lane per key costs by itself.
struct RoundRobin {
    ring: Vec<Key>,
    at: usize,
}

impl RoundRobin {
    fn new(ring: &[u32]) -> Self {
        Self { ring: ring.iter().copied().map(Key).collect(), at: 0 }
    }
}

impl Turns for RoundRobin {
    fn next(&self) -> Option<Key> {
        self.ring.get(self.at).copied()
    }

    fn charge(&mut self, _key: Key) {
        self.at += 1;
        if self.at == self.ring.len() {
            self.at = 0;
        }
    }

    fn leave(&mut self, key: Key) {
        self.ring.retain(|&other| other != key);
    }
}

/// A queue's part in a delivery, whatever its lanes.
struct Queue<L> {
    lanes: L,
    index: Vec<Record>,
    bodies: Vec<u8>,
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

impl<L: WaitingMessages> Queue<L> {
    /// Makes a queue in full swing: consumers hold as many messages as they always do.
    ///
    /// Messages are dealt to the keys in the order of their turns, so that they are handed out as they lie.
    fn new(lanes: L, ring: &[u32], backlog: &[u32], store: Store) -> Self {
        let keys = ring.len() as u64;
        let record = |handle| Record { key: Key(0), attempts: 0, next: NONE, body: handle % store.bodies };
        let mut queue = Self {
            lanes,
            index: (0..backlog.len() as u32).map(record).collect(),
            bodies: vec![0x5A; store.bodies as usize * BODY],
            outgoing: Vec::with_capacity(OUTGOING_MAX),
            now: Instant::default(),
            sequence: 0,
            leases: BTreeMap::new(),
            in_flight: VecDeque::new(),
            acknowledged: Vec::new(),
            // Every key keeps a message, so that nobody leaves the ring.
            ops_max: backlog.len() as u64 - keys - IN_FLIGHT,
        };
        for (&handle, &key) in backlog.iter().zip(ring.iter().cycle()) {
            queue.index[handle as usize].key = Key(key);
            queue.lanes.put(&mut queue.index, handle);
        }
        queue.run(IN_FLIGHT);
        queue
    }

    fn deliver(&mut self) {
        let handle = self.lanes.take(&self.index).expect("every key keeps a message");
        let record = &mut self.index[handle as usize];
        record.attempts += 1;
        let Record { attempts, body, .. } = *record;
        self.send(body);
        self.lease(Lease { handle, attempt: attempts });
        if self.in_flight.len() as u64 > IN_FLIGHT {
            self.acknowledge();
        }
    }

    fn send(&mut self, body: u32) {
        let start = body as usize * BODY;
        self.outgoing.extend_from_slice(&self.bodies[start..start + BODY]);
        if OUTGOING_MAX <= self.outgoing.len() {
            black_box(&self.outgoing);
            self.outgoing.clear();
        }
    }

    fn lease(&mut self, lease: Lease) {
        self.now += BETWEEN_DELIVERIES;
        self.sequence += 1;
        let receipt = Receipt { expires: self.now + VISIBILITY, sequence: self.sequence };
        self.leases.insert(receipt, lease);
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

impl<L: WaitingMessages> Work for Queue<L> {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            self.deliver();
        }
    }

    /// Lets acknowledged messages wait again.
    fn restore(&mut self) {
        for handle in self.acknowledged.drain(..) {
            self.lanes.put(&mut self.index, handle);
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
            for order in [AccessOrder::Sequential, AccessOrder::Shuffled] {
                let ring = order.indices(keys);
                let expected = acknowledged(Fifo::EMPTY, &ring);
                let lanes = Keyed::new(RoundRobin::new(&ring), keys);
                assert!(acknowledged(lanes, &ring) == expected, "{keys} keys, {order:?}, in lanes");
                let drr = Keyed::new(scheduler(&ring), keys);
                assert!(acknowledged(drr, &ring) == expected, "{keys} keys, {order:?}, by DRR");
            }
        }
    }

    fn acknowledged(lanes: impl WaitingMessages, ring: &[u32]) -> Vec<u32> {
        let backlog = backlog(ring.len() as u32, 4_096);
        let mut queue = Queue::new(lanes, ring, &backlog, STORES[1]);
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
