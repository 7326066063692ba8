//! The queues of one mailbox in isolation; the loom models check concurrent use.

use core::num::NonZeroUsize;

use super::*;
use crate::test_rig::WakeCounter;

#[test]
fn messages_taken_by_the_runner_use_capacity_until_they_are_handled() {
    let queues = queues(2, OverflowStrategy::Reject);
    let state = CellState::new();
    let mut private = VecDeque::new();
    assert_eq!(
        (queues.push(1), queues.push(2), queues.push(3)),
        (PushResult::Queued, PushResult::Queued, PushResult::Full(3))
    );
    assert_eq!((queues.take_batch(&mut private, &state), private), (Some(1), VecDeque::from([2])));
    assert_eq!((queues.push(3), queues.push(4)), (PushResult::Queued, PushResult::Full(4)));
    assert_eq!(queues.stats(), MailboxQueueStats { enqueued: 3, depth: 2 });
    queues.set_private_len(0);
    assert_eq!((queues.push(4), queues.push(5)), (PushResult::Queued, PushResult::Full(5)));
}

#[test]
fn taking_the_last_shared_message_clears_the_user_flag() {
    let all = queues(4, OverflowStrategy::Reject);
    let one = queues(4, OverflowStrategy::DropOldest);
    for (queues, remaining) in [(all, 0), (one, USER)] {
        let state = CellState::new();
        let mut private = VecDeque::new();
        (1..=2).for_each(|message| assert_eq!(queues.push(message), PushResult::Queued));
        state.set(USER);
        assert_eq!((queues.take_batch(&mut private, &state), state.flags()), (Some(1), remaining));
    }
}

#[test]
fn drop_oldest_evicts_queued_messages_but_not_those_taken_by_the_runner() {
    let queues = queues(1, OverflowStrategy::DropOldest);
    let state = CellState::new();
    let mut private = VecDeque::new();
    assert_eq!((queues.push(1), queues.push(2)), (PushResult::Queued, PushResult::Displaced(1)));
    assert_eq!((queues.take_batch(&mut private, &state), private), (Some(2), VecDeque::new()));
    assert_eq!((queues.push(3), queues.push(4)), (PushResult::Queued, PushResult::Displaced(3)));
}

#[test]
fn closing_rejects_user_messages_and_wakes_waiting_producers() {
    let queues = queues(1, OverflowStrategy::BlockProducer);
    let state = CellState::new();
    let (wakes, waker) = WakeCounter::new();
    assert_eq!(queues.push(1), PushResult::Queued);
    assert!(queues.wait_for_room(&mut None, &waker, &state));
    assert_eq!((queues.close().len(), queues.push(2), queues.close().len()), (1, PushResult::Closed(2), 0));
    assert!(queues.wait_for_room(&mut None, &waker, &state));
    assert_eq!((wakes.count(), queues.drain()), (1, VecDeque::from([1])));
}

#[test]
#[cfg_attr(miri, ignore = "Miri gives one waker's vtable several addresses, so it looks like several wakers")]
fn a_waker_is_registered_once_and_woken_at_the_low_watermark() {
    let queues = queues(2, OverflowStrategy::BlockProducer);
    let state = CellState::new();
    let (wakes, waker) = WakeCounter::new();
    assert!(!queues.wake_waiters(0), "no producer has waited yet");
    (1..=2).for_each(|message| assert_eq!(queues.push(message), PushResult::Queued));
    let mut place = None;
    (0..2).for_each(|_| assert!(queues.wait_for_room(&mut place, &waker, &state)));
    assert!(queues.wake_waiters(1), "the depth is above the low watermark");
    drop(queues.drain());
    assert!(!queues.wake_waiters(1));
    assert_eq!(wakes.count(), 1);
}

#[test]
fn a_producer_waiting_for_an_idle_cell_with_capacity_is_woken_immediately() {
    let queues = queues(1, OverflowStrategy::BlockProducer);
    let state = CellState::new();
    let (wakes, waker) = WakeCounter::new();
    assert!(queues.wait_for_room(&mut None, &waker, &state));
    assert_eq!((wakes.count(), state.flags()), (1, crate::raw::state::WAITERS));
}

#[test]
#[cfg_attr(miri, ignore = "65 536 wakers take Miri minutes")]
fn a_producer_beyond_the_limit_of_waiting_producers_is_rejected() {
    let queues = queues(1, OverflowStrategy::BlockProducer);
    let state = CellState::new();
    let (_, last) = WakeCounter::new();
    assert_eq!(queues.push(0), PushResult::Queued);
    let mut places = alloc::vec![None; WAITERS_MAX];
    for place in &mut places {
        assert!(queues.wait_for_room(place, &last, &state));
    }
    assert!(!queues.wait_for_room(&mut None, &last, &state));
    queues.leave_waiting(places[7].unwrap());
    assert!(queues.wait_for_room(&mut None, &last, &state), "a place was given up");
}

#[test]
fn a_producer_that_gives_up_leaves_no_waker_behind() {
    let queues = queues(1, OverflowStrategy::BlockProducer);
    let state = CellState::new();
    let waker = WakeCounter::new().1;
    let (wakes, other) = WakeCounter::new();
    let mut place = None;
    assert_eq!(queues.push(0), PushResult::Queued);
    assert!(queues.wait_for_room(&mut place, &waker, &state));
    assert!(queues.wait_for_room(&mut place, &other, &state), "polled by another task");
    assert_eq!(alloc::sync::Arc::strong_count(&wakes), 3);
    queues.leave_waiting(place.unwrap());
    assert_eq!(alloc::sync::Arc::strong_count(&wakes), 2);
    assert!(!queues.wake_waiters(1), "no producer waits");
    queues.leave_waiting(place.unwrap());
}

#[test]
fn the_first_system_message_allocates_the_reserve() {
    let options = MailboxOptions { reserve_for_system: 40, ..MailboxOptions::bounded(NonZeroUsize::MIN) };
    let queues = MailboxQueues::<u32, u32>::new(&options);
    assert_eq!(push_system(&queues, 1), Ok(()));
    assert!(queues.shared.with(|shared| shared.cold().system.capacity()) >= 40);
}

#[test]
fn the_buffer_of_a_burst_is_freed_once_it_is_empty() {
    let mut private: VecDeque<u32> = (0..=KEPT_CAPACITY_MAX as u32).collect();
    let large = private.capacity();
    MailboxQueues::<u32, u32>::shrink(&mut private);
    assert_eq!(private.capacity(), large);
    private.clear();
    MailboxQueues::<u32, u32>::shrink(&mut private);
    assert_eq!(private.capacity(), 0);
}

#[test]
fn the_shared_half_frees_the_buffer_of_a_burst_once_it_is_empty() {
    let state = CellState::new();
    let mut private = VecDeque::new();
    let custom = queues(1 << 16, OverflowStrategy::Reject);
    let evicting = queues(1 << 16, OverflowStrategy::DropOldest);
    let capacities =
        || [&custom, &evicting].map(|queues| queues.shared.with(|shared| shared.queue.capacity()));
    for message in 0..=KEPT_CAPACITY_MAX as u32 {
        assert_eq!((custom.push(message), evicting.push(message)), (PushResult::Queued, PushResult::Queued));
    }
    let large = capacities();
    custom.pop_oldest(&state);
    evicting.take_batch(&mut private, &state);
    assert!(!custom.lower_if_empty(&state));
    assert_eq!(capacities(), large);
    while custom.pop_oldest(&state).is_some() {}
    while evicting.take_batch(&mut private, &state).is_some() {}
    assert!(custom.lower_if_empty(&state));
    assert_eq!(capacities(), [0, 0]);
}

#[test]
fn the_system_queue_accepts_everything_until_it_is_closed() {
    let queues = queues(1, OverflowStrategy::Reject);
    assert_eq!((queues.pop_system(), queues.system_stats()), (None, MailboxQueueStats::default()));
    queues.reserve_system(2);
    drop(queues.close());
    (1..=3).for_each(|message| assert_eq!(push_system(&queues, message), Ok(())));
    assert_eq!(
        (queues.pop_system(), queues.system_stats()),
        (Some(1), MailboxQueueStats { enqueued: 3, depth: 2 })
    );
    assert_eq!((queues.close_system(), push_system(&queues, 4)), (VecDeque::from([2, 3]), Err(4)));
}

fn queues(capacity: usize, overflow: OverflowStrategy) -> MailboxQueues<u32, u32> {
    let capacity = NonZeroUsize::new(capacity).unwrap();
    let options = MailboxOptions { capacity, reserve_for_system: 0, ..MailboxOptions::bounded(capacity) };
    MailboxQueues::new(&options.overflow(overflow))
}

fn push_system(queues: &MailboxQueues<u32, u32>, message: u32) -> Result<(), u32> {
    queues.push_system_by(message, |message, queue, _| queue.push_back(message))
}
