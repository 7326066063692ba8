//! Oneshot channel for the reply to an ask, with a deadline as third party.
//!
//! A reply, a dropped sender or a deadline may end the wait; exactly the first of them wakes the receiver.
//! Limits: one memory block per ask, and one read-modify-write per reply, which publishes it, claims the
//! waker and releases the block in the same step.

use alloc::boxed::Box;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::task::{Poll, RawWakerVTable, Waker};

#[cfg(all(feature = "std", not(loom)))]
use super::free_list;
use crate::dead_letter_scope;
use crate::ignore_panic::{ignore_panic, wake_and_yield};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};

/// A waker is stored; it belongs to the party that ends the wait.
const WAKER: u32 = 1 << 0;
const VALUE: u32 = 1 << 1;
const SENDER_DROPPED: u32 = 1 << 2;
const TIMED_OUT: u32 = 1 << 3;
const RECEIVER_GONE: u32 = 1 << 4;
const DONE: u32 = VALUE | SENDER_DROPPED | TIMED_OUT | RECEIVER_GONE | DEAD_LETTERED;
/// The stored waker is not the first one, so an unchanged word does not imply an unchanged waker.
const REPLACED: u32 = 1 << 5;
const DEAD_LETTERED: u32 = 1 << 6;
/// The remaining bits of the word count references.
const REFERENCE: u32 = 1 << 8;

#[repr(C)]
struct Inner<T> {
    head: OneshotHeader,
    value: UnsafeCell<Option<T>>,
}

struct OneshotHeader {
    word: AtomicU32,
    waker: StoredWaker,
    free: unsafe fn(NonNull<OneshotHeader>),
}

/// The parts of the stored waker; only the receiver writes them.
///
/// Atomic, because a sender may read them while they are replaced; it then discards what it read.
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
    /// The word was read with `WAKER` set, by acquire; and the waker is used or dropped only by the party
    /// that it belongs to.
    unsafe fn load(&self) -> ManuallyDrop<Waker> {
        let data = self.data.load(Ordering::Relaxed);
        let vtable = self.vtable.load(Ordering::Relaxed);
        // SAFETY: both were stored before the flag was set, so the vtable belongs to a waker.
        ManuallyDrop::new(unsafe { Waker::new(data, &*vtable) })
    }
}

/// Reason why no reply arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvError {
    /// The sender was dropped.
    Dropped,
    /// The sender was dropped with a message that was dead-lettered.
    DeadLettered,
    /// The deadline passed.
    TimedOut,
}

/// A counted reference to the channel.
struct OneshotRef(NonNull<OneshotHeader>);

// SAFETY: the word decides who accesses waker and value; see `finish`, `Sender` and `Receiver`.
unsafe impl Send for OneshotRef {}
// SAFETY: as above.
unsafe impl Sync for OneshotRef {}

impl OneshotRef {
    fn head(&self) -> &OneshotHeader {
        // SAFETY: counted, so not freed.
        unsafe { self.0.as_ref() }
    }

    /// Ends the wait for `reason`, waking the receiver if this is the first reason; returns the previous
    /// word.
    fn finish(&self, reason: u32) -> u32 {
        let before = self.head().word.fetch_or(reason, Ordering::AcqRel);
        if before & (DONE | WAKER) == WAKER {
            // SAFETY: this is the first to end the wait, so the stored waker belongs to this thread: the
            // receiver replaces it only while the wait is not over, and later enders see that it is.
            wake_and_yield(ManuallyDrop::into_inner(unsafe { self.head().waker.load() }));
        }
        before
    }
}

impl OneshotRef {
    fn clone_ref(&self) -> Self {
        self.head().word.fetch_add(REFERENCE, Ordering::Relaxed);
        Self(self.0)
    }
}

impl OneshotRef {
    /// Releases the reference and sets `flags`, none of which is set yet, in the same step; returns the
    /// previous word.
    fn release(&self, flags: u32) -> u32 {
        let before = self.head().word.fetch_sub(REFERENCE - flags, Ordering::AcqRel);
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
        unsafe { (self.head().free)(self.0) };
    }
}

/// The sending half.
///
/// Sender, receiver and deadline handle release their reference in their own `Drop`; [`OneshotRef`] has none.
pub(crate) struct Sender<T>(OneshotRef, core::marker::PhantomData<T>);
/// The receiving half.
pub(crate) struct Receiver<T>(OneshotRef, core::marker::PhantomData<T>);
/// The third party, which ends the wait at the deadline.
pub(crate) struct DeadlineHandle(OneshotRef);

// SAFETY: a value of `T` moves from the sender's thread to the receiver's, or is dropped by either.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: a shared sender gives no access to the value.
unsafe impl<T: Send> Sync for Sender<T> {}
// SAFETY: as for the sender.
unsafe impl<T: Send> Send for Receiver<T> {}
// SAFETY: a shared receiver can only create a deadline handle.
unsafe impl<T: Send> Sync for Receiver<T> {}

/// Creates a channel.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let head = allocate(Inner::<T> {
        head: OneshotHeader {
            word: AtomicU32::new(2 * REFERENCE),
            waker: StoredWaker::new(),
            free: free::<T>,
        },
        value: UnsafeCell::new(None),
    });
    (
        Sender(OneshotRef(head), core::marker::PhantomData),
        Receiver(OneshotRef(head), core::marker::PhantomData),
    )
}

/// Allocates the shared part, which lives until [`free`].
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

/// Frees what [`allocate`] allocated.
///
/// # Safety
/// `head` is the first field of an `Inner<T>` from [`allocate`] to which no reference is left.
unsafe fn free<T>(head: NonNull<OneshotHeader>) {
    let inner = head.cast::<Inner<T>>();
    #[cfg(all(feature = "std", not(loom)))]
    if free_list::fits::<Inner<T>>() {
        // SAFETY: guaranteed by the caller; such a type is in a block, which is empty afterwards.
        unsafe {
            inner.drop_in_place();
            free_list::free_block(inner.cast());
        }
        return;
    }
    // SAFETY: guaranteed by the caller; `repr(C)` puts the header first, and this value is in a box.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

/// Returns the cell of the value.
///
/// # Safety
/// `head` belongs to an `Inner<T>`.
unsafe fn value<T>(head: &OneshotRef) -> &UnsafeCell<Option<T>> {
    // SAFETY: guaranteed by the caller; counted, so not freed.
    unsafe { &(*head.0.cast::<Inner<T>>().as_ptr()).value }
}

impl<T> Sender<T> {
    /// Sends the reply; returns it if the receiver is gone.
    #[inline]
    pub(crate) fn send(self, reply: T) -> Result<(), T> {
        // SAFETY: there is only one sender, and `VALUE` is not set: the receiver does not read the value yet.
        unsafe { value::<T>(&self.0).with_mut(|value| *value = Some(reply)) };
        let head = self.0.head();
        let mut word = head.word.load(Ordering::Acquire);
        while word & (REPLACED | RECEIVER_GONE) == 0 {
            let is_waiting = word & (DONE | WAKER) == WAKER;
            // SAFETY: the flag was read by acquire, and the waker is used only if the word is unchanged
            // below: then it was not replaced and belongs to this sender, which ends the wait.
            let waker = is_waiting.then(|| unsafe { head.waker.load() });
            // The receiver still holds a reference, so this one is not the last.
            let replied = (word | VALUE) - REFERENCE;
            match head.word.compare_exchange_weak(word, replied, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    core::mem::forget(self);
                    if let Some(waker) = waker {
                        wake_and_yield(ManuallyDrop::into_inner(waker));
                    }
                    return Ok(());
                }
                Err(seen) => word = seen,
            }
        }
        self.send_slow()
    }

    /// Publishes the value first and releases the reference afterwards.
    #[cold]
    fn send_slow(self) -> Result<(), T> {
        let before = self.0.finish(VALUE);
        if before & RECEIVER_GONE == 0 {
            return Ok(());
        }
        // SAFETY: the receiver was gone before the value was published, so the sender still owns it.
        match unsafe { value::<T>(&self.0).with_mut(|value| (*value).take()) } {
            Some(reply) => Err(reply),
            None => Ok(()),
        }
    }

    /// Reports whether the receiver still waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.head().word.load(Ordering::Relaxed) & (RECEIVER_GONE | TIMED_OUT) == 0
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.head().word.load(Ordering::Relaxed) & VALUE == 0 {
            self.0.finish(if dead_letter_scope::is_dead_lettering() {
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

    /// Polls for the reply; stores `owned`, which wakes the same task as `waker`, to be woken when the wait
    /// ends.
    #[inline]
    pub(crate) fn poll_with(
        &mut self,
        waker: &Waker,
        owned: impl FnOnce() -> Waker,
    ) -> Poll<Result<T, RecvError>> {
        let head = self.0.head();
        let mut word = head.word.load(Ordering::Acquire);
        if word & (DONE | WAKER) == WAKER {
            // SAFETY: the receiver stored it, and only reads it here.
            if unsafe { head.waker.load() }.will_wake(waker) {
                return Poll::Pending;
            }
            word = take_stored_waker(head, word);
        }
        if word & DONE == 0 {
            head.waker.store(owned());
            word = head.word.fetch_or(WAKER, Ordering::AcqRel);
            if word & DONE == 0 {
                return Poll::Pending;
            }
            // SAFETY: stored above, and the party that ended the wait before saw no waker.
            drop(ManuallyDrop::into_inner(unsafe { head.waker.load() }));
        }
        if word & VALUE != 0 {
            // SAFETY: `VALUE` was set after the value was written, and there is only one receiver.
            if let Some(reply) = unsafe { value::<T>(&self.0).with_mut(|value| (*value).take()) } {
                return Poll::Ready(Ok(reply));
            }
        }
        Poll::Ready(Err(match word {
            _ if word & TIMED_OUT != 0 => RecvError::TimedOut,
            _ if word & DEAD_LETTERED != 0 => RecvError::DeadLettered,
            _ => RecvError::Dropped,
        }))
    }
}

/// Removes the stored waker unless the wait is over; returns the resulting word.
#[cold]
fn take_stored_waker(head: &OneshotHeader, mut seen: u32) -> u32 {
    while seen & DONE == 0 {
        let without = seen & !WAKER | REPLACED;
        match head.word.compare_exchange_weak(seen, without, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the flag was set, and no other party can claim the waker any more.
                drop(ManuallyDrop::into_inner(unsafe { head.waker.load() }));
                return without;
            }
            Err(changed) => seen = changed,
        }
    }
    seen
}

impl<T> Drop for Receiver<T> {
    #[inline]
    fn drop(&mut self) {
        let head = self.0.head();
        let word = head.word.load(Ordering::Acquire);
        if word / REFERENCE == 1 {
            // SAFETY: no other reference exists or can be created; if a waker was stored, the party that
            // ended the wait took it.
            unsafe { self.0.free() };
            return;
        }
        // SAFETY: the receiver stored it; it is used only if it still belongs to the receiver below.
        let waker = (word & (DONE | WAKER) == WAKER).then(|| unsafe { head.waker.load() });
        if self.0.release(RECEIVER_GONE) & DONE == 0 {
            drop(waker.map(ManuallyDrop::into_inner));
        }
    }
}

impl DeadlineHandle {
    /// Ends the wait unless it is over.
    ///
    /// The receiver's waker is foreign code, and its panic must not stop the timer driver.
    pub(crate) fn time_out(&self) {
        ignore_panic(|| {
            self.0.finish(TIMED_OUT);
        });
    }

    /// Reports whether the receiver still waits.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.head().word.load(Ordering::Relaxed) & DONE == 0
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
    use crate::test_rig::Wakes;
    use alloc::string::String;
    use alloc::sync::Arc;

    #[test]
    fn a_reply_sent_before_the_first_poll_wakes_no_one() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = Wakes::new();
        assert_eq!(sender.send(String::from("yes")), Ok(()));
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok("yes".into())));
        assert_eq!(wakes.count(), 0);
    }

    #[test]
    fn a_reply_wakes_the_receiver_once() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert!(sender.is_awaited());
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok(7)));
    }

    #[test]
    fn only_the_most_recent_waker_is_woken() {
        let (sender, mut receiver) = channel();
        let (first, waker) = Wakes::new();
        let (second, other) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert_eq!(poll(&mut receiver, &other), Poll::Pending);
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!((first.count(), second.count()), (0, 1));
    }

    #[test]
    fn dropping_the_sender_ends_the_wait() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        drop(sender);
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::Dropped)));
    }

    #[test]
    fn a_dead_lettered_sender_is_reported_as_such() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        dead_letter_scope::while_dead_lettering(|| drop(sender));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::DeadLettered)));
    }

    #[test]
    fn after_a_deadline_nothing_else_wakes_the_receiver() {
        let (sender, mut receiver) = channel::<u32>();
        let deadline = receiver.deadline();
        let (wakes, waker) = Wakes::new();
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
    fn a_reply_without_a_receiver_is_returned() {
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
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        drop((receiver, waker));
        assert_eq!((Arc::strong_count(&wakes), wakes.count()), (1, 0));
        drop(sender);
        assert_eq!((Arc::strong_count(&wakes), wakes.count()), (1, 0));
    }

    fn poll<T>(receiver: &mut Receiver<T>, waker: &Waker) -> Poll<Result<T, RecvError>> {
        receiver.poll_with(waker, || waker.clone())
    }
}
