//! A lock for a few instructions: half as many atomic steps as one that can put its waiters to sleep.
//!
//! Bound: whoever finds it taken spins for a moment, then lets other threads run, then naps, so that a holder
//! that lost its processor gets it back. Nothing that waits or takes another lock belongs inside.

use core::fmt;
use core::time::Duration;

use crate::sync::{AtomicU32, Ordering, UnsafeCell};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Looks before other threads are let run, and then before a nap.
const LOOKS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// A value behind such a lock.
pub(crate) struct BriefLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time, ordered by acquire and release.
unsafe impl<T: Send> Sync for BriefLock<T> {}

impl<T> BriefLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Runs `work` alone with the value.
    #[inline(always)]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        if self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.take_later();
        }
        let _released = Release(&self.word);
        // SAFETY: the lock is ours until `_released` is dropped, also by a panic.
        self.value.with_mut(|value| work(unsafe { &mut *value }))
    }

    #[cold]
    fn take_later(&self) {
        let mut looks = 0;
        loop {
            let free = self.word.load(Ordering::Relaxed) == FREE;
            if free && self.word.swap(TAKEN, Ordering::Acquire) == FREE {
                return;
            }
            looks += 1;
            pause(looks);
        }
    }
}

#[cfg(not(loom))]
fn pause(looks: u32) {
    match looks / LOOKS {
        0 => core::hint::spin_loop(),
        1 => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}

#[cfg(loom)]
fn pause(_looks: u32) {
    loom::thread::yield_now();
}

struct Release<'a>(&'a AtomicU32);

impl Drop for Release<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

impl<T> fmt::Debug for BriefLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BriefLock").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn what_many_threads_count_is_all_counted() {
        let each = if cfg!(miri) { 100 } else { 10_000 };
        let count = Arc::new(BriefLock::new(0_u32));
        let counters: Vec<_> = (0..4)
            .map(|_| {
                let count = count.clone();
                thread::spawn(move || {
                    for _ in 0..each {
                        count.with(|count| *count += 1);
                    }
                })
            })
            .collect();
        counters.into_iter().for_each(|counter| counter.join().unwrap());
        assert_eq!(count.with(|count| *count), 4 * each);
    }

    #[test]
    fn a_panic_inside_leaves_the_lock_free() {
        let lock = BriefLock::new(7);
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock.with(|_| panic!("inside"))));
        assert!(panicked.is_err());
        assert_eq!(lock.with(|value| *value), 7);
    }

    #[test]
    fn whoever_waits_long_gets_it_in_the_end() {
        let lock = Arc::new(BriefLock::new(Vec::new()));
        let other = lock.clone();
        let (inside, is_inside) = std::sync::mpsc::channel();
        let holder = thread::spawn(move || {
            other.with(|order| {
                inside.send(()).unwrap();
                // Longer than anybody spins.
                thread::sleep(4 * NAP);
                order.push("first");
            });
        });
        is_inside.recv().unwrap();
        lock.with(|order| order.push("second"));
        holder.join().unwrap();
        assert_eq!(lock.with(std::mem::take), ["first", "second"]);
    }
}
