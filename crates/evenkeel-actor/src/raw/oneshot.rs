//! Oneshot channel for the reply to an ask; a deadline can also end the wait.
//!
//! A reply, a dropped sender or a deadline may end the wait; only the first of them wakes the receiver.
//! Cost: one allocation per ask and, on the fast path, one atomic read-modify-write per reply, which publishes
//! the reply, claims the waker and releases the sender's reference.

use alloc::boxed::Box;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::task::{Poll, RawWakerVTable, Waker};

#[cfg(all(feature = "std", not(loom)))]
use super::free_list;
use crate::dead_letter_scope;
use crate::ignore_panic::{ignore_panic, wake_and_request_yield};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};

/// A waker is stored; the thread that ends the wait owns it.
const WAKER: u32 = 1 << 0;
const VALUE: u32 = 1 << 1;
const SENDER_DROPPED: u32 = 1 << 2;
const TIMED_OUT: u32 = 1 << 3;
const RECEIVER_DROPPED: u32 = 1 << 4;
/// The waker has been replaced: comparing the state no longer detects a further replacement (the ABA
/// problem), so `send` takes the slow path.
const REPLACED: u32 = 1 << 5;
const DEAD_LETTERED: u32 = 1 << 6;
/// Any of these flags ends the wait.
const WAIT_OVER: u32 = VALUE | SENDER_DROPPED | TIMED_OUT | RECEIVER_DROPPED | DEAD_LETTERED;
/// One reference; the bits from here up are the reference count.
const REFERENCE: u32 = 1 << 8;

#[repr(C)]
struct Inner<T> {
    header: OneshotHeader,
    value: UnsafeCell<Option<T>>,
}

struct OneshotHeader {
    state: AtomicU32,
    waker: StoredWaker,
    free: unsafe fn(NonNull<OneshotHeader>),
}

/// Data pointer and vtable of the stored waker; only the receiver writes them.
///
/// They are atomic because a sender may read them while the receiver replaces them. The sender's
/// compare-exchange then fails, and it discards the torn read.
struct StoredWaker {
    data: AtomicPtr<()>,
    vtable: AtomicPtr<RawWakerVTable>,
}

impl StoredWaker {
    fn new() -> Self {
        Self { data: AtomicPtr::new(ptr::null_mut()), vtable: AtomicPtr::new(ptr::null_mut()) }
    }

    fn store(&self, waker: Waker) {
        let waker = ManuallyDrop::new(waker);
        self.data.store(waker.data().cast_mut(), Ordering::Relaxed);
        self.vtable.store(ptr::from_ref(waker.vtable()).cast_mut(), Ordering::Relaxed);
    }

    /// Reassembles the waker.
    ///
    /// # Safety
    /// The state was loaded with acquire ordering and had `WAKER` set, and only the owner of the waker uses or
    /// drops the result.
    unsafe fn load(&self) -> ManuallyDrop<Waker> {
        let data = self.data.load(Ordering::Relaxed);
        let vtable = self.vtable.load(Ordering::Relaxed);
        // SAFETY: both were stored before the flag was set, so the vtable belongs to a waker.
        ManuallyDrop::new(unsafe { Waker::new(data, &*vtable) })
    }
}

/// Error of a wait that ended without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvError {
    /// The sender was dropped without a reply.
    SenderDropped,
    /// The message that holds the sender was dead-lettered.
    DeadLettered,
    /// The deadline passed.
    TimedOut,
}

/// A counted reference to the channel.
///
/// It has no `Drop`: [`Sender`], [`Receiver`] and [`DeadlineHandle`] release it in theirs.
struct OneshotRef(NonNull<OneshotHeader>);

// SAFETY: the state decides which thread may access the waker and the value; see `end_wait`, `Sender` and
// `Receiver`.
unsafe impl Send for OneshotRef {}
// SAFETY: as above.
unsafe impl Sync for OneshotRef {}

impl OneshotRef {
    fn header(&self) -> &OneshotHeader {
        // SAFETY: counted, so not freed.
        unsafe { self.0.as_ref() }
    }

    /// Ends the wait with `reason` and wakes the receiver if nothing ended the wait before; returns the previous
    /// state.
    fn end_wait(&self, reason: u32) -> u32 {
        let before = self.header().state.fetch_or(reason, Ordering::AcqRel);
        if before & (WAIT_OVER | WAKER) == WAKER {
            // SAFETY: this thread ended the wait, so it owns the stored waker: the receiver replaces it only
            // while the wait is not over, and a thread that ends the wait later sees that it already is.
            wake_and_request_yield(ManuallyDrop::into_inner(unsafe { self.header().waker.load() }));
        }
        before
    }
}

impl OneshotRef {
    fn clone_ref(&self) -> Self {
        self.header().state.fetch_add(REFERENCE, Ordering::Relaxed);
        Self(self.0)
    }
}

impl OneshotRef {
    /// Releases the reference and sets `flags`, none of which may be set yet, in one step; returns the previous
    /// state.
    fn release(&self, flags: u32) -> u32 {
        // Subtracts one reference and adds `flags`, which sets them because they are clear.
        let before = self.header().state.fetch_sub(REFERENCE - flags, Ordering::AcqRel);
        if before / REFERENCE == 1 {
            // SAFETY: this was the last reference.
            unsafe { self.free() };
        }
        before
    }

    /// Frees the memory block.
    ///
    /// # Safety
    /// This is the only reference.
    unsafe fn free(&self) {
        // SAFETY: guaranteed by the caller; `free` was instantiated for the type behind the header.
        unsafe { (self.header().free)(self.0) };
    }
}

/// The sending half.
pub(crate) struct Sender<T>(OneshotRef, core::marker::PhantomData<T>);
/// The receiving half.
pub(crate) struct Receiver<T>(OneshotRef, core::marker::PhantomData<T>);
/// Handle with which the timer driver ends the wait at the deadline.
pub(crate) struct DeadlineHandle(OneshotRef);

// SAFETY: a value of `T` moves from the sender's thread to the receiver's, or is dropped by either.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: a shared sender gives no access to the value.
unsafe impl<T: Send> Sync for Sender<T> {}
// SAFETY: as for the sender.
unsafe impl<T: Send> Send for Receiver<T> {}
// SAFETY: a shared receiver can only create a deadline handle.
unsafe impl<T: Send> Sync for Receiver<T> {}

pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let header = allocate(Inner::<T> {
        header: OneshotHeader {
            state: AtomicU32::new(2 * REFERENCE),
            waker: StoredWaker::new(),
            free: free::<T>,
        },
        value: UnsafeCell::new(None),
    });
    (
        Sender(OneshotRef(header), core::marker::PhantomData),
        Receiver(OneshotRef(header), core::marker::PhantomData),
    )
}

/// Allocates the channel's memory, to be freed by [`free`].
#[cfg(all(feature = "std", not(loom)))]
#[inline]
fn allocate<T>(inner: Inner<T>) -> NonNull<OneshotHeader> {
    if !free_list::fits::<Inner<T>>() {
        return NonNull::from(Box::leak(Box::new(inner))).cast();
    }
    let block = free_list::alloc_block().cast::<Inner<T>>();
    // SAFETY: the block belongs to this thread, and is large and aligned enough.
    unsafe { block.write(inner) };
    block.cast()
}

#[cfg(any(not(feature = "std"), loom))]
fn allocate<T>(inner: Inner<T>) -> NonNull<OneshotHeader> {
    NonNull::from(Box::leak(Box::new(inner))).cast()
}

/// Frees the memory that [`allocate`] returned.
///
/// # Safety
/// `header` is the first field of an `Inner<T>` from [`allocate`] to which no reference is left.
unsafe fn free<T>(header: NonNull<OneshotHeader>) {
    let inner = header.cast::<Inner<T>>();
    #[cfg(all(feature = "std", not(loom)))]
    if free_list::fits::<Inner<T>>() {
        // SAFETY: guaranteed by the caller; a value that fits is in a block of the free list, which holds
        // nothing after the drop.
        unsafe {
            inner.drop_in_place();
            free_list::free_block(inner.cast());
        }
        return;
    }
    // SAFETY: guaranteed by the caller; `repr(C)` puts the header first, and this value is in a box.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

/// Returns the cell that holds the reply.
///
/// # Safety
/// `channel` belongs to an `Inner<T>`.
unsafe fn value_cell<T>(channel: &OneshotRef) -> &UnsafeCell<Option<T>> {
    // SAFETY: guaranteed by the caller; counted, so not freed.
    unsafe { &(*channel.0.cast::<Inner<T>>().as_ptr()).value }
}

impl<T> Sender<T> {
    /// Sends the reply; returns it if the receiver was dropped.
    #[inline]
    pub(crate) fn send(self, reply: T) -> Result<(), T> {
        // SAFETY: there is only one sender, and `VALUE` is not set: the receiver does not read the value yet.
        unsafe { value_cell::<T>(&self.0).with_mut(|value| *value = Some(reply)) };
        let header = self.0.header();
        let mut state = header.state.load(Ordering::Acquire);
        while state & (REPLACED | RECEIVER_DROPPED) == 0 {
            let is_waiting = state & (WAIT_OVER | WAKER) == WAKER;
            // SAFETY: the flag was loaded with acquire ordering, and the waker is used only if the
            // compare-exchange below succeeds: then it was not replaced, and this sender, which ends the
            // wait, owns it.
            let waker = is_waiting.then(|| unsafe { header.waker.load() });
            // The receiver still holds a reference, so this one is not the last.
            let replied = (state | VALUE) - REFERENCE;
            match header.state.compare_exchange_weak(state, replied, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    core::mem::forget(self);
                    if let Some(waker) = waker {
                        wake_and_request_yield(ManuallyDrop::into_inner(waker));
                    }
                    return Ok(());
                }
                Err(seen) => state = seen,
            }
        }
        self.send_slow()
    }

    /// Publishes the value first and releases the reference afterwards.
    #[cold]
    fn send_slow(self) -> Result<(), T> {
        let before = self.0.end_wait(VALUE);
        if before & RECEIVER_DROPPED == 0 {
            return Ok(());
        }
        // SAFETY: the receiver was dropped before the value was published, so the sender still owns the value.
        match unsafe { value_cell::<T>(&self.0).with_mut(|value| (*value).take()) } {
            Some(reply) => Err(reply),
            None => Ok(()),
        }
    }

    /// Reports whether a reply can still reach the receiver.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.header().state.load(Ordering::Relaxed) & (RECEIVER_DROPPED | TIMED_OUT) == 0
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.header().state.load(Ordering::Relaxed) & VALUE == 0 {
            self.0.end_wait(if dead_letter_scope::is_dead_lettering() {
                DEAD_LETTERED
            } else {
                SENDER_DROPPED
            });
        }
        self.0.release(0);
    }
}

impl<T> Receiver<T> {
    /// Creates a handle for the deadline.
    pub(crate) fn deadline(&self) -> DeadlineHandle {
        DeadlineHandle(self.0.clone_ref())
    }

    /// Polls for the reply. If there is none yet, stores the waker that `make_owned` returns, to be called when
    /// the wait ends; it must wake the same task as `waker`.
    #[inline]
    pub(crate) fn poll_recv(
        &mut self,
        waker: &Waker,
        make_owned: impl FnOnce() -> Waker,
    ) -> Poll<Result<T, RecvError>> {
        let header = self.0.header();
        let mut state = header.state.load(Ordering::Acquire);
        if state & (WAIT_OVER | WAKER) == WAKER {
            // SAFETY: the receiver stored it, and only reads it here.
            if unsafe { header.waker.load() }.will_wake(waker) {
                return Poll::Pending;
            }
            state = drop_stored_waker(header, state);
        }
        if state & WAIT_OVER == 0 {
            header.waker.store(make_owned());
            state = header.state.fetch_or(WAKER, Ordering::AcqRel);
            if state & WAIT_OVER == 0 {
                return Poll::Pending;
            }
            // SAFETY: stored above; the thread that ended the wait did so before `WAKER` was set, so it did not
            // take the waker.
            drop(ManuallyDrop::into_inner(unsafe { header.waker.load() }));
        }
        if state & VALUE != 0 {
            // SAFETY: `VALUE` was set after the value was written, and there is only one receiver.
            if let Some(reply) = unsafe { value_cell::<T>(&self.0).with_mut(|value| (*value).take()) } {
                return Poll::Ready(Ok(reply));
            }
        }
        Poll::Ready(Err(match state {
            _ if state & TIMED_OUT != 0 => RecvError::TimedOut,
            _ if state & DEAD_LETTERED != 0 => RecvError::DeadLettered,
            _ => RecvError::SenderDropped,
        }))
    }
}

/// Drops the stored waker unless the wait is over; returns the resulting state.
#[cold]
fn drop_stored_waker(header: &OneshotHeader, mut seen: u32) -> u32 {
    while seen & WAIT_OVER == 0 {
        let cleared = seen & !WAKER | REPLACED;
        match header.state.compare_exchange_weak(seen, cleared, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the flag was set, and no other thread can claim the waker any more.
                drop(ManuallyDrop::into_inner(unsafe { header.waker.load() }));
                return cleared;
            }
            Err(changed) => seen = changed,
        }
    }
    seen
}

impl<T> Drop for Receiver<T> {
    #[inline]
    fn drop(&mut self) {
        let header = self.0.header();
        let state = header.state.load(Ordering::Acquire);
        if state / REFERENCE == 1 {
            // SAFETY: no other reference exists or can be created; if a waker was stored, the thread that
            // ended the wait took it.
            unsafe { self.0.free() };
            return;
        }
        // SAFETY: the receiver stored it, and drops it below only if the receiver still owns it.
        let waker = (state & (WAIT_OVER | WAKER) == WAKER).then(|| unsafe { header.waker.load() });
        if self.0.release(RECEIVER_DROPPED) & WAIT_OVER == 0 {
            drop(waker.map(ManuallyDrop::into_inner));
        }
    }
}

impl DeadlineHandle {
    /// Ends the wait unless it is over.
    ///
    /// The waker runs user code; a panic in it must not stop the timer driver.
    pub(crate) fn time_out(&self) {
        ignore_panic(|| {
            self.0.end_wait(TIMED_OUT);
        });
    }

    /// Reports whether nothing has ended the wait yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.header().state.load(Ordering::Relaxed) & WAIT_OVER == 0
    }
}

impl Drop for DeadlineHandle {
    /// Drops a reply that was never read if this is the last reference.
    fn drop(&mut self) {
        ignore_panic(|| {
            self.0.release(0);
        });
    }
}

impl core::fmt::Debug for DeadlineHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_pending() { "DeadlineHandle(pending)" } else { "DeadlineHandle(done)" })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_rig::WakeCounter;
    use alloc::string::String;
    use alloc::sync::Arc;

    #[test]
    fn a_reply_sent_before_the_first_poll_wakes_no_task() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(sender.send(String::from("yes")), Ok(()));
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok("yes".into())));
        assert_eq!(wakes.count(), 0);
    }

    #[test]
    fn a_reply_wakes_the_receiver_once() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert!(sender.is_awaited());
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok(7)));
    }

    #[test]
    fn only_the_most_recent_waker_is_woken() {
        let (sender, mut receiver) = channel();
        let (first, waker) = WakeCounter::new();
        let (second, other) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert_eq!(poll(&mut receiver, &other), Poll::Pending);
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!((first.count(), second.count()), (0, 1));
    }

    #[test]
    fn dropping_the_sender_ends_the_wait() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        drop(sender);
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::SenderDropped)));
    }

    #[test]
    fn a_sender_dropped_with_a_dead_letter_reports_dead_lettered() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        dead_letter_scope::while_dead_lettering(|| drop(sender));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::DeadLettered)));
    }

    #[test]
    fn after_a_deadline_nothing_else_wakes_the_receiver() {
        let (sender, mut receiver) = channel::<u32>();
        let deadline = receiver.deadline();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert_eq!(alloc::format!("{deadline:?}"), "DeadlineHandle(pending)");
        deadline.time_out();
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::TimedOut)));
        assert!(!sender.is_awaited());
        drop(sender);
        deadline.time_out();
        assert_eq!((wakes.count(), deadline.is_pending()), (1, false));
        assert_eq!(alloc::format!("{deadline:?}"), "DeadlineHandle(done)");
    }

    #[test]
    fn a_reply_to_a_dropped_receiver_is_returned_to_the_sender() {
        let (sender, receiver) = channel();
        drop(receiver);
        assert!(!sender.is_awaited());
        assert_eq!(sender.send(7), Err(7));
    }

    #[test]
    fn a_reply_after_the_deadline_is_dropped_with_the_channel() {
        let (sender, receiver) = channel();
        let deadline = receiver.deadline();
        let reply = Arc::new(());
        deadline.time_out();
        assert_eq!(sender.send(reply.clone()), Ok(()));
        drop(receiver);
        assert_eq!(Arc::strong_count(&reply), 2);
        drop(deadline);
        assert_eq!(Arc::strong_count(&reply), 1);
    }

    #[test]
    fn a_waker_that_was_never_woken_is_dropped_with_the_receiver() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = WakeCounter::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        drop((receiver, waker));
        assert_eq!((Arc::strong_count(&wakes), wakes.count()), (1, 0));
        drop(sender);
        assert_eq!((Arc::strong_count(&wakes), wakes.count()), (1, 0));
    }

    fn poll<T>(receiver: &mut Receiver<T>, waker: &Waker) -> Poll<Result<T, RecvError>> {
        receiver.poll_recv(waker, || waker.clone())
    }
}
