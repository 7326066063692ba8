//! A flood and a quiet tenant in one queue, first in a FIFO queue and then under deficit round robin.
//!
//! Run with `cargo run --package evenkeel-policy --example fair_queue`.

use std::collections::VecDeque;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{DrrConfig, DrrScheduler};
use evenkeel_policy::id::Key;
use evenkeel_policy::weight::Weight;

const FLOOD: Key = Key(0);
const QUIET: Key = Key(1);
/// Messages that the flood has waiting at the start.
const BACKLOG: u64 = 1_000;
/// The quiet tenant sends one message every so many deliveries.
const QUIET_INTERVAL: u64 = 100;

/// A message of a tenant, with the delivery count at which it arrived.
struct Message {
    tenant: Key,
    arrived: u64,
}

trait Queue {
    fn push(&mut self, message: Message);
    fn pop(&mut self) -> Option<Message>;
}

impl Queue for VecDeque<Message> {
    fn push(&mut self, message: Message) {
        self.push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        self.pop_front()
    }
}

/// One list per tenant; the scheduler chooses between them.
struct FairQueue {
    drr: DrrScheduler,
    lists: [VecDeque<Message>; 2],
}

impl FairQueue {
    fn new() -> Self {
        let drr = DrrScheduler::new(DrrConfig::default()).expect("the default settings are valid");
        Self { drr, lists: [VecDeque::new(), VecDeque::new()] }
    }
}

impl Queue for FairQueue {
    fn push(&mut self, message: Message) {
        self.drr.add_key(message.tenant, Weight::ONE).expect("two keys are below the limit");
        self.lists[message.tenant.index()].push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        let tenant = self.drr.next_key()?;
        let list = &mut self.lists[tenant.index()];
        let message = list.pop_front()?;
        self.drr.consume_deficit(tenant, Cost::MESSAGE);
        if list.is_empty() {
            self.drr.remove_key(tenant);
        }
        Some(message)
    }
}

fn main() {
    println!(
        "The flood has {BACKLOG} messages waiting; the quiet tenant sends one every {QUIET_INTERVAL} deliveries."
    );
    println!("Longest wait of a quiet message, in deliveries:");
    println!("  first in, first out: {:>5}", longest_quiet_wait(VecDeque::new()));
    println!("  deficit round robin: {:>5}", longest_quiet_wait(FairQueue::new()));
}

fn longest_quiet_wait(mut queue: impl Queue) -> u64 {
    for _ in 0..BACKLOG {
        queue.push(Message { tenant: FLOOD, arrived: 0 });
    }
    let mut longest = 0;
    for now in 0..BACKLOG {
        if now % QUIET_INTERVAL == 0 {
            queue.push(Message { tenant: QUIET, arrived: now });
        }
        // The flood refills what it is served, so that its backlog never shrinks.
        match queue.pop() {
            Some(message) if message.tenant == FLOOD => queue.push(Message { tenant: FLOOD, arrived: now }),
            Some(message) => longest = longest.max(now - message.arrived),
            None => break,
        }
    }
    // Messages that were never delivered have waited until now.
    while let Some(message) = queue.pop() {
        if message.tenant == QUIET {
            longest = longest.max(BACKLOG - message.arrived);
        }
    }
    longest
}
