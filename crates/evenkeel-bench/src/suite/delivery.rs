//! Delivery of a message from a queue, with and without scheduling between keys.
//!
//! A delivery selects the next message, increments the attempts in its index record, copies its body of 1 KB from the
//! store's memory to an outgoing buffer, records a lease by its expiry, and acknowledges the message delivered 1 000
//! deliveries before, which removes its lease and adds it to the store's next batch of deletes. Only the selection
//! differs between the contenders. All visit records and bodies in the same shuffled order.

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

/// Store from which bodies are copied; every queue has its own, so that none benefits from the caches of another.
#[derive(Clone, Copy)]
struct Store {
    name: &'static str,
    bodies: u32,
}

const STORES: [Store; 2] = [
    // Six alternating queues with 32 MB each: no body is in a cache when it is read.
    Store { name: "delivery", bodies: 1 << 15 },
    // Bodies stay in the cache: this is the fastest delivery, so selection has its largest relative cost.
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
    let key_lists = |ring| Queue::new(Keyed::new(RoundRobin::new(ring), keys), ring, &backlog, store);
    let drr = |ring| Queue::new(Keyed::new(scheduler(ring), keys), ring, &backlog, store);
    let goal = Some(Goal::RatioBelow(1.05));
    vec![
        Contender::new("fifo", fifo()),
        Contender::new("fifo again", fifo()),
        Contender::new("lanes", key_lists(&in_order)),
        Contender::new("drr", drr(&in_order)).with_goal(goal),
        Contender::new("lanes shuffled", key_lists(&shuffled)),
        Contender::new("drr shuffled", drr(&shuffled)).with_goal(goal),
    ]
}

/// Returns the handles of the waiting messages: equally many for each key, at least two.
fn backlog(keys: u32, len_min: u32) -> Vec<u32> {
    AccessOrder::Shuffled.indices(keys * len_min.div_ceil(keys).max(2))
}

/// Index record of a message.
#[derive(Clone, Copy)]
struct Record {
    key: Key,
    attempts: u32,
    /// Next message of its key.
    next: u32,
    /// Number of its body in the store.
    body: u32,
}

/// One record per handle.
type Index = [Record];

/// Waiting messages, which also selects the next one.
trait WaitingMessages {
    fn pop(&mut self, index: &Index) -> Option<u32>;
    fn push(&mut self, index: &mut Index, handle: u32);
}

/// First-in, first-out list of messages, linked through their records.
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

/// One list for all keys.
struct Fifo {
    list: KeyList,
}

impl Fifo {
    const EMPTY: Self = Self { list: KeyList::EMPTY };
}

impl WaitingMessages for Fifo {
    fn pop(&mut self, index: &Index) -> Option<u32> {
        self.list.pop(index)
    }

    fn push(&mut self, index: &mut Index, handle: u32) {
        self.list.push(index, handle);
    }
}

/// One list per key, with a scheduler over the keys.
struct Keyed<S> {
    scheduler: S,
    lists: Vec<KeyList>,
}

impl<S> Keyed<S> {
    fn new(scheduler: S, keys: u32) -> Self {
        Self { scheduler, lists: vec![KeyList::EMPTY; keys as usize] }
    }
}

impl<S: KeyScheduler> WaitingMessages for Keyed<S> {
    fn pop(&mut self, index: &Index) -> Option<u32> {
        let key = self.scheduler.next()?;
        let list = &mut self.lists[key.index()];
        let handle = list.pop(index)?;
        self.scheduler.charge(key);
        if list.is_empty() {
            self.scheduler.leave(key);
        }
        Some(handle)
    }

    fn push(&mut self, index: &mut Index, handle: u32) {
        self.lists[index[handle as usize].key.index()].push(index, handle);
    }
}

/// Scheduler over the keys.
trait KeyScheduler {
    fn next(&self) -> Option<Key>;
    fn charge(&mut self, key: Key);
    fn leave(&mut self, key: Key);
}

impl KeyScheduler for DrrScheduler {
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

/// Rotates through the keys and ignores message costs, to isolate the cost of one list per key.
struct RoundRobin {
    ring: Vec<Key>,
    index: usize,
}

impl RoundRobin {
    fn new(ring: &[u32]) -> Self {
        Self { ring: ring.iter().copied().map(Key).collect(), index: 0 }
    }
}

impl KeyScheduler for RoundRobin {
    fn next(&self) -> Option<Key> {
        self.ring.get(self.index).copied()
    }

    fn charge(&mut self, _key: Key) {
        self.index += 1;
        if self.index == self.ring.len() {
            self.index = 0;
        }
    }

    fn leave(&mut self, key: Key) {
        self.ring.retain(|&other| other != key);
    }
}

/// A queue that delivers messages in the order that `W` selects.
struct Queue<W> {
    waiting: W,
    index: Vec<Record>,
    bodies: Vec<u8>,
    outgoing: Vec<u8>,
    now: Instant,
    sequence: u64,
    leases: BTreeMap<Receipt, Lease>,
    /// Receipts in the order in which consumers acknowledge them.
    in_flight: VecDeque<Receipt>,
    acknowledged: Vec<u32>,
    ops_max: u64,
}

/// Key of a lease, in the order of expiry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Receipt {
    expires: Instant,
    sequence: u64,
}

struct Lease {
    handle: u32,
    attempt: u32,
}

impl<W: WaitingMessages> Queue<W> {
    /// Creates a queue in its steady state, with [`IN_FLIGHT`] messages in flight.
    ///
    /// Messages are assigned to the keys in the order of the ring, so that every contender delivers them in the same
    /// order.
    fn new(waiting: W, ring: &[u32], backlog: &[u32], store: Store) -> Self {
        let keys = ring.len() as u64;
        let record = |handle| Record { key: Key(0), attempts: 0, next: NONE, body: handle % store.bodies };
        let mut queue = Self {
            waiting,
            index: (0..backlog.len() as u32).map(record).collect(),
            bodies: vec![0x5A; store.bodies as usize * BODY],
            outgoing: Vec::with_capacity(OUTGOING_MAX),
            now: Instant::default(),
            sequence: 0,
            leases: BTreeMap::new(),
            in_flight: VecDeque::new(),
            acknowledged: Vec::new(),
            // Every key keeps a message, so that none leaves the ring.
            ops_max: backlog.len() as u64 - keys - IN_FLIGHT,
        };
        for (&handle, &key) in backlog.iter().zip(ring.iter().cycle()) {
            queue.index[handle as usize].key = Key(key);
            queue.waiting.push(&mut queue.index, handle);
        }
        queue.run(IN_FLIGHT);
        queue
    }

    fn deliver(&mut self) {
        let handle = self.waiting.pop(&self.index).expect("every key keeps a message");
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
        if self.outgoing.len() >= OUTGOING_MAX {
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

impl<W: WaitingMessages> Work for Queue<W> {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            self.deliver();
        }
    }

    /// Enqueues the acknowledged messages again.
    fn restore(&mut self) {
        for handle in self.acknowledged.drain(..) {
            self.waiting.push(&mut self.index, handle);
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
    fn all_contenders_deliver_the_same_messages_in_the_same_order() {
        for keys in [1, 7, 1_000] {
            for order in [AccessOrder::Sequential, AccessOrder::Shuffled] {
                let ring = order.indices(keys);
                let expected = acknowledged(Fifo::EMPTY, &ring);
                let key_lists = Keyed::new(RoundRobin::new(&ring), keys);
                assert!(acknowledged(key_lists, &ring) == expected, "{keys} keys, {order:?}, in rotation");
                let drr = Keyed::new(scheduler(&ring), keys);
                assert!(acknowledged(drr, &ring) == expected, "{keys} keys, {order:?}, by DRR");
            }
        }
    }

    fn acknowledged(waiting: impl WaitingMessages, ring: &[u32]) -> Vec<u32> {
        let backlog = backlog(ring.len() as u32, 4_096);
        let mut queue = Queue::new(waiting, ring, &backlog, STORES[1]);
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
