//! Hierarchical timing wheel.
//!
//! Limits: inserting and cancelling are O(1); over its life a timer moves at most once per level, of which
//! there are at most 64 / log2(`buckets`), rounded up; idle time costs nothing, however long. At most
//! `len_max` timers are pending. Guarantees: a timer never fires before it is due, and less than a `tick`
//! after it if the wheel is advanced at [`next_due`](TimingWheel::next_due).
//!
//! Level 0 has a bucket for each of the next ticks, level 1 one for each of the next rotations of level 0,
//! and so on. A timer is stored at the level of the highest digit, in base `buckets`, in which its tick
//! differs from the current one. Hence a lower level is due before a higher one, a level is due from its
//! first occupied bucket up, and no bucket is passed without being emptied.

mod level;
mod timers;

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use evenkeel_policy::time::Instant;

use level::{Bucket, Level};
use timers::{TimerSlab, TimerSlot};

/// Size and resolution of a timing wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WheelOptions {
    /// Resolution: a timer fires less than one tick late.
    pub tick: Duration,
    /// Buckets per level: 2, 4, 8, 16, 32 or 64, at 16 bytes each.
    ///
    /// A level is allocated with the first timer that needs it. With 64 buckets and ticks of 1 ms, three
    /// levels reach 4 minutes ahead and four reach 4 hours.
    pub buckets: u32,
    /// Maximum number of pending timers.
    pub len_max: u32,
}

/// Defaults: ticks of 1 ms, 64 buckets, a million timers.
impl Default for WheelOptions {
    fn default() -> Self {
        Self { tick: Duration::from_millis(1), buckets: 64, len_max: 1_000_000 }
    }
}

/// Key of a timer in a wheel.
///
/// The key of a timer that fired or was cancelled is invalid until its slot has been reused 2³² times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    slot: TimerSlot,
    generation: u32,
}

/// A timing wheel with values of type `T`.
#[derive(Debug)]
pub struct TimingWheel<T> {
    tick_nanos: u64,
    /// log2 of the buckets of a level.
    bits: u32,
    len_max: u32,
    /// The last tick that was processed; no pending timer has an earlier one.
    current: u64,
    levels: Vec<Level>,
    timers: TimerSlab<T>,
}

impl<T> TimingWheel<T> {
    /// Creates an empty wheel at the origin of time.
    pub fn new(options: WheelOptions) -> Result<Self, InvalidWheel> {
        let WheelOptions { tick, buckets, len_max } = options;
        if tick.is_zero() {
            return Err(InvalidWheel::TickZero);
        }
        if !(buckets.is_power_of_two() && (2..=64).contains(&buckets)) {
            return Err(InvalidWheel::Buckets { buckets });
        }
        Ok(Self {
            tick_nanos: (Instant::ORIGIN + tick).as_nanos(),
            bits: buckets.ilog2(),
            len_max,
            current: 0,
            levels: Vec::new(),
            timers: TimerSlab::new(),
        })
    }

    /// Stores `value` until `due`; a value that is already due fires at the next [`advance`](Self::advance).
    pub fn insert(&mut self, due: Instant, value: T) -> Result<TimerKey, WheelFull<T>> {
        if self.timers.len() >= self.len_max {
            return Err(WheelFull(value));
        }
        let key = self.timers.insert(due, value);
        self.store(key.slot);
        Ok(key)
    }

    /// Cancels a pending timer and returns its value.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        if !self.timers.is_pending(key) {
            return None;
        }
        let (level, digit) = self.address(self.due_tick(self.timers.due(key.slot)));
        let level = &mut self.levels[level];
        self.timers.unlink(&mut level.buckets[digit], key.slot);
        level.record_removed(digit);
        self.timers.remove(key.slot).map(|(_, value)| value)
    }

    /// Moves every timer that is due by `now` to `out`, with its due time.
    ///
    /// Earlier ticks come first; within a tick, timers inserted first. A timer that was overdue when it was
    /// inserted belongs to the tick of the last advance. If the clock steps back, nothing fires until it has
    /// caught up.
    pub fn advance(&mut self, now: Instant, out: &mut Vec<(Instant, T)>) {
        let target = self.reached_tick(now);
        if target < self.current {
            return;
        }
        while let Some((level, digit)) = self.next_bucket() {
            if target < self.first_tick(level, digit) {
                break;
            }
            let bucket = self.levels[level].take(digit);
            self.current = bucket.earliest.min(target);
            if level == 0 {
                self.fire(bucket, out);
            } else {
                self.cascade(bucket);
            }
        }
        self.current = target;
    }

    /// Returns when to call [`advance`](Self::advance) next; `None` if no timer is pending.
    ///
    /// The result is never late. It is early only if the earliest timer was cancelled; repeated advancing then
    /// reaches the next timer in at most as many steps as there are levels.
    pub fn next_due(&self) -> Option<Instant> {
        let (level, digit) = self.next_bucket()?;
        let tick = self.levels[level].buckets[digit].earliest;
        Some(Instant::from_nanos(tick.saturating_mul(self.tick_nanos)))
    }

    /// Counts the pending timers.
    pub fn len(&self) -> usize {
        self.timers.len() as usize
    }

    /// Reports whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.timers.len() == 0
    }

    /// Returns the tick at which `due` has passed, but no tick before the current one.
    fn due_tick(&self, due: Instant) -> u64 {
        due.as_nanos().div_ceil(self.tick_nanos).max(self.current)
    }

    /// Returns the last tick that has begun by `now`.
    ///
    /// The end of time need not fall on a tick boundary; it completes the tick it falls into, so that every
    /// timer has fired by then.
    fn reached_tick(&self, now: Instant) -> u64 {
        if now == Instant::FAR_FUTURE {
            return now.as_nanos().div_ceil(self.tick_nanos);
        }
        now.as_nanos() / self.tick_nanos
    }

    /// Returns the level and the bucket of a tick that has not been processed.
    fn address(&self, tick: u64) -> (usize, usize) {
        let level = (tick ^ self.current).checked_ilog2().map_or(0, |bit| bit / self.bits);
        let digit = (tick >> (level * self.bits)) & self.digit_max();
        (level as usize, digit as usize)
    }

    fn digit_max(&self) -> u64 {
        (1 << self.bits) - 1
    }

    fn next_bucket(&self) -> Option<(usize, usize)> {
        let occupied = |(index, level): (usize, &Level)| Some((index, level.first_occupied()?));
        self.levels.iter().enumerate().find_map(occupied)
    }

    /// Returns the first tick that falls into a bucket.
    fn first_tick(&self, level: usize, digit: usize) -> u64 {
        let shift = level as u32 * self.bits;
        // In two steps, because for the topmost digit a single shift would be 64 bits.
        let above = self.current >> shift >> self.bits << self.bits;
        (above + digit as u64) << shift
    }

    fn store(&mut self, slot: TimerSlot) {
        let tick = self.due_tick(self.timers.due(slot));
        let (level, digit) = self.address(tick);
        while self.levels.len() <= level {
            self.levels.push(Level::new(1 << self.bits));
        }
        let bucket = self.levels[level].occupy(digit, tick);
        self.timers.append(bucket, slot);
    }

    /// Moves the timers of a bucket that the wheel has reached to lower levels.
    fn cascade(&mut self, bucket: Bucket) {
        let mut next = bucket.first;
        while let Some(slot) = next {
            next = self.timers.next(slot);
            self.store(slot);
        }
    }

    fn fire(&mut self, bucket: Bucket, out: &mut Vec<(Instant, T)>) {
        let mut next = bucket.first;
        while let Some(slot) = next {
            next = self.timers.next(slot);
            out.extend(self.timers.remove(slot));
        }
    }
}

/// The wheel is full; contains the value that was not inserted.
#[derive(thiserror::Error)]
#[error("all timers are in use")]
pub struct WheelFull<T>(pub T);

impl<T> fmt::Debug for WheelFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WheelFull(..)")
    }
}

/// Error for invalid wheel options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWheel {
    /// The tick is zero.
    #[error("tick is 0")]
    TickZero,
    /// The number of buckets is not a power of two from 2 to 64.
    #[error("buckets is {buckets}, not a power of two from 2 to 64")]
    Buckets {
        /// The number of buckets given.
        buckets: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_timer_never_fires_early_and_fires_within_a_tick() {
        let mut wheel = wheel(10 * MS, 64);
        insert(&mut wheel, 25, "late");
        insert(&mut wheel, 30, "exact");
        assert!(!wheel.is_empty());
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(30)));
        assert_eq!(advance(&mut wheel, 25), [] as [&str; 0], "its tick ends at 30 ms");
        assert_eq!(advance(&mut wheel, 29), [] as [&str; 0]);
        assert_eq!(advance(&mut wheel, 30), ["late", "exact"]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn timers_fire_by_tick_and_then_in_order_of_insertion() {
        let mut wheel = wheel(MS, 4);
        for (due, name) in [(70, "d"), (5, "a"), (70, "e"), (6, "b"), (6, "c")] {
            insert(&mut wheel, due, name);
        }
        assert_eq!(advance(&mut wheel, 6), ["a", "b", "c"]);
        insert(&mut wheel, 70, "f");
        assert_eq!(advance(&mut wheel, 69), [] as [&str; 0]);
        insert(&mut wheel, 70, "g");
        assert_eq!(advance(&mut wheel, 100), ["d", "e", "f", "g"]);
    }

    #[test]
    fn the_due_time_is_returned_unchanged() {
        let mut wheel = wheel(10 * MS, 64);
        insert(&mut wheel, 1, "one");
        let mut out = vec![];
        wheel.advance(Instant::from_millis(10), &mut out);
        assert_eq!(out, [(Instant::from_millis(1), "one")]);
    }

    #[test]
    fn an_overdue_timer_fires_at_the_next_advance() {
        let mut wheel = wheel(MS, 64);
        advance(&mut wheel, 500);
        insert(&mut wheel, 500, "now");
        insert(&mut wheel, 3, "long ago");
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(500)));
        assert_eq!(advance(&mut wheel, 500), ["now", "long ago"]);
    }

    #[test]
    fn a_clock_that_steps_back_fires_nothing() {
        let mut wheel = wheel(MS, 64);
        advance(&mut wheel, 500);
        insert(&mut wheel, 500, "later");
        assert_eq!(advance(&mut wheel, 499), [] as [&str; 0]);
        assert_eq!(advance(&mut wheel, 500), ["later"]);
    }

    #[test]
    fn cancelling_a_timer_returns_its_value_once() {
        let mut wheel = wheel(MS, 64);
        let first = insert(&mut wheel, 5, "first");
        let last = insert(&mut wheel, 5, "last");
        let middle = insert(&mut wheel, 5, "middle");
        insert(&mut wheel, 5, "kept");
        assert_eq!(wheel.cancel(first), Some("first"));
        assert_eq!(wheel.cancel(first), None);
        assert_eq!(wheel.cancel(middle), Some("middle"));
        assert_eq!(wheel.cancel(last), Some("last"));
        assert_eq!(wheel.len(), 1);
        assert_eq!(advance(&mut wheel, 5), ["kept"]);
    }

    #[test]
    fn the_key_of_a_fired_timer_is_invalid_even_when_its_slot_is_reused() {
        let mut wheel = wheel(MS, 64);
        let old = insert(&mut wheel, 1, "old");
        advance(&mut wheel, 1);
        let new = insert(&mut wheel, 2, "new");
        assert_eq!(old.slot, new.slot);
        assert_eq!(wheel.cancel(old), None);
        assert_eq!(wheel.cancel(new), Some("new"));
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn a_full_wheel_returns_the_value_until_a_timer_is_cancelled() {
        let mut wheel = TimingWheel::new(WheelOptions { len_max: 2, ..WheelOptions::default() }).unwrap();
        let key = insert(&mut wheel, 1, "a");
        insert(&mut wheel, 2, "b");
        let error = wheel.insert(Instant::ORIGIN, "c").unwrap_err();
        assert_eq!(error.to_string(), "all timers are in use");
        assert_eq!((alloc::format!("{error:?}").as_str(), error.0), ("WheelFull(..)", "c"));
        wheel.cancel(key);
        insert(&mut wheel, 3, "d");
        assert_eq!(advance(&mut wheel, 10), ["b", "d"]);
    }

    #[test]
    fn a_year_of_nanosecond_ticks_is_skipped_at_once() {
        let year = Duration::from_secs(365 * 24 * 3_600);
        let mut wheel = wheel(Duration::from_nanos(1), 2);
        let due = Instant::ORIGIN + year;
        wheel.insert(due, "a year later").unwrap();
        assert_eq!(wheel.next_due(), Some(due));
        let mut out = vec![];
        wheel.advance(Instant::from_nanos(due.as_nanos() - 1), &mut out);
        assert_eq!(out, []);
        wheel.advance(due, &mut out);
        assert_eq!(out, [(due, "a year later")]);
    }

    #[test]
    fn the_end_of_time_is_a_valid_due_time() {
        for (tick, buckets) in [(1, 2), (1, 64), (1_000_000, 64), (u64::MAX, 2)] {
            let mut wheel = wheel(Duration::from_nanos(tick), buckets);
            wheel.insert(Instant::FAR_FUTURE, "the end").unwrap();
            assert_eq!(wheel.next_due(), Some(Instant::FAR_FUTURE), "{tick}");
            let mut out = vec![];
            wheel.advance(Instant::from_nanos(u64::MAX - 1), &mut out);
            assert_eq!(out, [], "{tick}");
            wheel.advance(Instant::FAR_FUTURE, &mut out);
            assert_eq!(out, [(Instant::FAR_FUTURE, "the end")], "{tick}");
        }
    }

    #[test]
    fn next_due_is_never_late_after_the_earliest_timer_is_cancelled() {
        let mut wheel = wheel(MS, 4);
        let earliest = insert(&mut wheel, 65, "cancelled");
        insert(&mut wheel, 70, "kept");
        wheel.cancel(earliest);
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(65)), "early, because the bucket is far away");
        assert_eq!(advance(&mut wheel, 65), [] as [&str; 0]);
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(70)), "exact, because the bucket is near");
    }

    #[test]
    fn slots_are_reused_before_new_ones_are_allocated() {
        let mut wheel = wheel(MS, 64);
        for round in 0..100 {
            insert(&mut wheel, round, "a");
            let cancelled = insert(&mut wheel, round + 10_000, "b");
            wheel.cancel(cancelled);
            advance(&mut wheel, round);
        }
        assert_eq!(wheel.timers.slots(), 2);
        assert_eq!(size_of::<Option<TimerKey>>(), 8);
    }

    #[test]
    fn invalid_options_are_rejected() {
        let result = |tick, buckets| {
            let options = WheelOptions { tick, buckets, len_max: 1 };
            TimingWheel::<()>::new(options).map(|_| ()).map_err(|invalid| invalid.to_string())
        };
        assert_eq!(result(Duration::ZERO, 64), Err("tick is 0".to_string()));
        for buckets in [0, 1, 3, 128] {
            let message = alloc::format!("buckets is {buckets}, not a power of two from 2 to 64");
            assert_eq!(result(MS, buckets), Err(message));
        }
        assert_eq!(result(MS, 2), Ok(()));
    }

    fn wheel(tick: Duration, buckets: u32) -> TimingWheel<&'static str> {
        TimingWheel::new(WheelOptions { tick, buckets, len_max: 100 }).unwrap()
    }

    fn insert(wheel: &mut TimingWheel<&'static str>, due_ms: u64, name: &'static str) -> TimerKey {
        wheel.insert(Instant::from_millis(due_ms), name).unwrap()
    }

    fn advance(wheel: &mut TimingWheel<&'static str>, now_ms: u64) -> Vec<&'static str> {
        let mut out = vec![];
        wheel.advance(Instant::from_millis(now_ms), &mut out);
        out.into_iter().map(|(_, name)| name).collect()
    }
}
