//! Ways to track which mailboxes are ready: a set behind a lock, a concurrent set, one flag per mailbox.
//!
//! Ten threads mark random mailboxes as ready; after every 64 marks a thread removes its own marks, like a worker that drains
//! its ready queue. Only the set or flag is measured, not a queue.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use dashmap::DashSet;

use crate::clock::{now_ns, process_cpu};
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;
use crate::workload::{Contender, HeapGauge, Workload};

const THREADS: u64 = 10;
const MAILBOXES: usize = 1024;
const MARKS_PER_THREAD: u64 = 200_000;
const DRAIN_EVERY: usize = 64;

/// The data structures, the baseline first.
pub(crate) const CONTENDERS: &[Contender] = &[
    Contender { name: "mutex-set", about: "Mutex<HashSet<MailboxIndex>>", run: run::<Mutex<HashSet<Index>>> },
    Contender { name: "dash-set", about: "DashSet<MailboxIndex>", run: run::<DashSet<Index>> },
    Contender { name: "flag", about: "one atomic flag per mailbox", run: run::<Flags> },
];

/// The specification's mailbox index: a slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Index {
    slot: u32,
    generation: u32,
}

/// A set of ready mailboxes.
trait Ready: Sync + Sized {
    fn new() -> Self;
    /// Marks a mailbox; returns `true` if it was not marked.
    fn mark(&self, mailbox: Index) -> bool;
    fn unmark(&self, mailbox: Index);
}

impl Ready for Mutex<HashSet<Index>> {
    fn new() -> Self {
        Self::default()
    }

    fn mark(&self, mailbox: Index) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).insert(mailbox)
    }

    fn unmark(&self, mailbox: Index) {
        self.lock().unwrap_or_else(PoisonError::into_inner).remove(&mailbox);
    }
}

impl Ready for DashSet<Index> {
    fn new() -> Self {
        Self::default()
    }

    fn mark(&self, mailbox: Index) -> bool {
        self.insert(mailbox)
    }

    fn unmark(&self, mailbox: Index) {
        self.remove(&mailbox);
    }
}

/// A flag on its own cache line, as in a mailbox header.
#[repr(align(64))]
#[derive(Default)]
struct Header(AtomicBool);

struct Flags(Vec<Header>);

impl Ready for Flags {
    fn new() -> Self {
        Self(std::iter::repeat_with(Header::default).take(MAILBOXES).collect())
    }

    fn mark(&self, mailbox: Index) -> bool {
        !self.0[mailbox.slot as usize].0.swap(true, Ordering::AcqRel)
    }

    fn unmark(&self, mailbox: Index) {
        self.0[mailbox.slot as usize].0.store(false, Ordering::Release);
    }
}

fn run<R: Ready>(_: Workload, settings: &Settings, _: Option<HeapGauge>) -> Result<Sample, SampleError> {
    let marks = settings.scaled(MARKS_PER_THREAD);
    let ready = R::new();
    let barrier = Barrier::new(THREADS as usize);
    let cpu = process_cpu();
    let spans: Vec<(u64, u64)> = thread::scope(|scope| {
        let ready = &ready;
        let barrier = &barrier;
        let span = move |thread| {
            barrier.wait();
            let started = now_ns();
            mark_and_drain(ready, thread, marks);
            (started, now_ns())
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || span(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let cpu = process_cpu().saturating_sub(cpu);
    let (first, last) = spans
        .iter()
        .fold((u64::MAX, 0), |(first, last), (started, ended)| (first.min(*started), last.max(*ended)));
    let wall = Duration::from_nanos(last.saturating_sub(first));
    let ops = THREADS * marks;
    Ok(Sample::new(ops, wall, cpu).with("ns_per_op", wall.as_secs_f64() * 1e9 / ops as f64))
}

fn mark_and_drain(ready: &impl Ready, thread: u64, marks: u64) {
    let mut random = thread + 1;
    let mut marked = Vec::with_capacity(DRAIN_EVERY);
    for mark in 1..=marks {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (random >> 32) as u32 % MAILBOXES as u32;
        let mailbox = Index { slot, generation: 0 };
        if ready.mark(mailbox) {
            marked.push(mailbox);
        }
        if mark.is_multiple_of(DRAIN_EVERY as u64) {
            marked.drain(..).for_each(|mailbox| ready.unmark(mailbox));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_is_marked_once_until_it_is_unmarked() {
        marks_once::<Mutex<HashSet<Index>>>();
        marks_once::<DashSet<Index>>();
        marks_once::<Flags>();
    }

    fn marks_once<R: Ready>() {
        let ready = R::new();
        let one = Index { slot: 1, generation: 0 };
        let other = Index { slot: 2, generation: 0 };
        assert!(ready.mark(one));
        assert!(!ready.mark(one));
        assert!(ready.mark(other));
        ready.unmark(one);
        assert!(ready.mark(one));
    }
}
