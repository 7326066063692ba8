//! One answer to one question, with a third party that may end the wait.
//!
//! Three may end the wait — an answer, a sender that gives up, a deadline — and exactly the first of
//! them wakes the receiver. Bound: one block of memory per question, and one read-modify-write for an
//! answer: it is published, the waker claimed and the block let go of in the same step.

use alloc::boxed::Box;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::task::{Poll, RawWakerVTable, Waker};

#[cfg(all(feature = "std", not(loom)))]
use super::free_list;
use crate::dead_letter_scope;
use crate::ignore_panic::{ignore_panic, wake_and_yield};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};

/// A waker is stored; it belongs to whoever ends the wait.
const WAKER: u32 = 1 << 0;
const VALUE: u32 = 1 << 1;
const UNANSWERED: u32 = 1 << 2;
const EXPIRED: u32 = 1 << 3;
const RECEIVER_GONE: u32 = 1 << 4;
const OVER: u32 = VALUE | UNANSWERED | EXPIRED | RECEIVER_GONE | BURIED;
/// The waker is not the first: that the word is what it was does not say the same of the waker.
const REPLACED: u32 = 1 << 5;
const BURIED: u32 = 1 << 6;
/// References are counted in the rest of the word.
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

/// The parts of a waker that is stored; only the receiver writes them.
///
/// Atomic, for a sender may read them while they are replaced; what it read is then thrown away.
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

    /// Puts the parts together.
    ///
    /// # Safety
    /// The word was seen with `WAKER`, by acquire; and the waker is used or dropped only by whoever it
    /// belongs to.
    unsafe fn load(&self) -> ManuallyDrop<Waker> {
        let data = self.data.load(Ordering::Relaxed);
        let vtable = self.vtable.load(Ordering::Relaxed);
        // SAFETY: both were stored before the flag was set, so the table is a waker's.
        ManuallyDrop::new(unsafe { Waker::new(data, &*vtable) })
    }
}

/// Why no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvError {
    /// The sender was dropped.
    Dropped,
    /// The sender was dropped with a message that became a dead letter.
    DeadLettered,
    /// The wait was ended from outside.
    TimedOut,
}

/// A counted reference to the head.
struct OneshotRef(NonNull<OneshotHeader>);

// SAFETY: the word decides who touches waker and value; see `end` and the two halves.
unsafe impl Send for OneshotRef {}
// SAFETY: as above.
unsafe impl Sync for OneshotRef {}

impl OneshotRef {
    fn head(&self) -> &OneshotHeader {
        // SAFETY: counted, so not freed.
        unsafe { self.0.as_ref() }
    }

    /// Ends the wait for one reason; returns the word before.
    fn end(&self, reason: u32) -> u32 {
        let before = self.head().word.fetch_or(reason, Ordering::AcqRel);
        if before & (OVER | WAKER) == WAKER {
            // SAFETY: we are the first to end the wait, so the stored waker is ours: the receiver
            // replaces it only while the wait is not over, and later enders see that it is.
            wake_and_yield(ManuallyDrop::into_inner(unsafe { self.head().waker.load() }));
        }
        before
    }
}

impl OneshotRef {
    fn another(&self) -> Self {
        self.head().word.fetch_add(REFERENCE, Ordering::Relaxed);
        Self(self.0)
    }
}

impl OneshotRef {
    /// Gives the reference up, and sets `flags`, none of which is set, in the same step; returns the word
    /// before.
    fn leave(&self, flags: u32) -> u32 {
        let before = self.head().word.fetch_sub(REFERENCE - flags, Ordering::AcqRel);
        if before / REFERENCE == 1 {
            // SAFETY: the last reference.
            unsafe { self.free() };
        }
        before
    }

    /// Gives the block back.
    ///
    /// # Safety
    /// This is the only reference.
    unsafe fn free(&self) {
        // SAFETY: promised by the caller; `free` was made for the type behind the head.
        unsafe { (self.head().free)(self.0) };
    }
}

/// The half that answers.
///
/// The three parts are not dropped by the reference they hold but give it up themselves.
pub(crate) struct Sender<T>(OneshotRef, core::marker::PhantomData<T>);
/// The half that waits.
pub(crate) struct Receiver<T>(OneshotRef, core::marker::PhantomData<T>);
/// The third party.
pub(crate) struct DeadlineHandle(OneshotRef);

// SAFETY: a value of `T` moves from the sender's thread to the receiver's, or is dropped by either.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: a shared sender can do nothing.
unsafe impl<T: Send> Sync for Sender<T> {}
// SAFETY: as for the sender.
unsafe impl<T: Send> Send for Receiver<T> {}
// SAFETY: a shared receiver can only be asked for an expiry.
unsafe impl<T: Send> Sync for Receiver<T> {}

/// Makes the two halves.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let head = place(Inner::<T> {
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

/// Puts what the halves share somewhere that stays until [`free`].
#[cfg(all(feature = "std", not(loom)))]
#[inline]
fn place<T>(shared: Inner<T>) -> NonNull<OneshotHeader> {
    if !free_list::fits::<Inner<T>>() {
        return NonNull::from(Box::leak(Box::new(shared))).cast();
    }
    let block = free_list::take().cast::<Inner<T>>();
    // SAFETY: the block is ours, and large and aligned enough.
    unsafe { block.write(shared) };
    block.cast()
}

#[cfg(any(not(feature = "std"), loom))]
fn place<T>(shared: Inner<T>) -> NonNull<OneshotHeader> {
    NonNull::from(Box::leak(Box::new(shared))).cast()
}

/// Frees what [`place`] put somewhere.
///
/// # Safety
/// `head` is the first field of a `Shared<T>` from [`place`] that nobody refers to any more.
unsafe fn free<T>(head: NonNull<OneshotHeader>) {
    let shared = head.cast::<Inner<T>>();
    #[cfg(all(feature = "std", not(loom)))]
    if free_list::fits::<Inner<T>>() {
        // SAFETY: promised by the caller; such a type is in a block, which is empty afterwards.
        unsafe {
            shared.drop_in_place();
            free_list::give_back(shared.cast());
        }
        return;
    }
    // SAFETY: promised by the caller; `repr(C)` puts the head first, and this one is in a box.
    drop(unsafe { Box::from_raw(shared.as_ptr()) });
}

/// The place of the value.
///
/// # Safety
/// `head` belongs to a `Shared<T>`.
unsafe fn value<T>(head: &OneshotRef) -> &UnsafeCell<Option<T>> {
    // SAFETY: promised by the caller; counted, so not freed.
    unsafe { &(*head.0.cast::<Inner<T>>().as_ptr()).value }
}

impl<T> Sender<T> {
    /// Answers; the value comes back when nobody waits any more.
    #[inline]
    pub(crate) fn send(self, answer: T) -> Result<(), T> {
        // SAFETY: the only sender, and `VALUE` is not set: the receiver does not look yet.
        unsafe { value::<T>(&self.0).with_mut(|value| *value = Some(answer)) };
        let head = self.0.head();
        let mut word = head.word.load(Ordering::Acquire);
        while word & (REPLACED | RECEIVER_GONE) == 0 {
            let waits = word & (OVER | WAKER) == WAKER;
            // SAFETY: the flag was seen by acquire, and the waker is used only if the word is still the same
            // below: then it was not replaced, and belongs to us, who end the wait.
            let waker = waits.then(|| unsafe { head.waker.load() });
            // The receiver is still there, so this reference is not the last.
            let answered = (word | VALUE) - REFERENCE;
            match head.word.compare_exchange_weak(word, answered, Ordering::AcqRel, Ordering::Acquire) {
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
        self.send_step_by_step()
    }

    /// Publishes what was written, and gives the reference up afterwards.
    #[cold]
    fn send_step_by_step(self) -> Result<(), T> {
        let before = self.0.end(VALUE);
        if before & RECEIVER_GONE == 0 {
            return Ok(());
        }
        // SAFETY: the receiver was gone before the value was there, so it is still ours.
        match unsafe { value::<T>(&self.0).with_mut(|value| (*value).take()) } {
            Some(answer) => Err(answer),
            None => Ok(()),
        }
    }

    /// Whether somebody still waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.head().word.load(Ordering::Relaxed) & (RECEIVER_GONE | EXPIRED) == 0
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.head().word.load(Ordering::Relaxed) & VALUE == 0 {
            self.0.end(if dead_letter_scope::is_dead_lettering() { BURIED } else { UNANSWERED });
        }
        self.0.leave(0);
    }
}

impl<T> Receiver<T> {
    /// Makes the third party.
    pub(crate) fn expiry(&self) -> DeadlineHandle {
        DeadlineHandle(self.0.another())
    }

    /// Looks for the answer; `owned`, which wakes whom `waker` does, is woken when the wait is over.
    #[inline]
    pub(crate) fn poll_with(
        &mut self,
        waker: &Waker,
        owned: impl FnOnce() -> Waker,
    ) -> Poll<Result<T, RecvError>> {
        let head = self.0.head();
        let mut word = head.word.load(Ordering::Acquire);
        if word & (OVER | WAKER) == WAKER {
            // SAFETY: we stored it, and only look at it.
            if unsafe { head.waker.load() }.will_wake(waker) {
                return Poll::Pending;
            }
            word = take_back(head, word);
        }
        if word & OVER == 0 {
            head.waker.store(owned());
            word = head.word.fetch_or(WAKER, Ordering::AcqRel);
            if word & OVER == 0 {
                return Poll::Pending;
            }
            // SAFETY: stored above, and whoever ended the wait before saw none.
            drop(ManuallyDrop::into_inner(unsafe { head.waker.load() }));
        }
        if word & VALUE != 0 {
            // SAFETY: `VALUE` was set after the value was written, and only one receiver exists.
            if let Some(answer) = unsafe { value::<T>(&self.0).with_mut(|value| (*value).take()) } {
                return Poll::Ready(Ok(answer));
            }
        }
        Poll::Ready(Err(match word {
            _ if word & EXPIRED != 0 => RecvError::TimedOut,
            _ if word & BURIED != 0 => RecvError::DeadLettered,
            _ => RecvError::Dropped,
        }))
    }
}

/// Takes the stored waker away unless the wait is over; returns the word as it is then.
#[cold]
fn take_back(head: &OneshotHeader, mut seen: u32) -> u32 {
    while seen & OVER == 0 {
        let without = seen & !WAKER | REPLACED;
        match head.word.compare_exchange_weak(seen, without, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the flag was set, and nobody can claim the waker any more.
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
            // SAFETY: nobody else has a reference, or could get one; who ended the wait has the waker.
            unsafe { self.0.free() };
            return;
        }
        // SAFETY: we stored it; it is used only if it is still ours below.
        let waker = (word & (OVER | WAKER) == WAKER).then(|| unsafe { head.waker.load() });
        if self.0.leave(RECEIVER_GONE) & OVER == 0 {
            drop(waker.map(ManuallyDrop::into_inner));
        }
    }
}

impl DeadlineHandle {
    /// Ends the wait, unless it is over.
    ///
    /// Whoever waits may be anybody, and the clock is nobody's to stop.
    pub(crate) fn expire(&self) {
        ignore_panic(|| {
            self.0.end(EXPIRED);
        });
    }

    /// Whether anybody still waits for an answer that has not come.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.head().word.load(Ordering::Relaxed) & OVER == 0
    }
}

impl Drop for DeadlineHandle {
    /// It may be the last to hold an answer that nobody read.
    fn drop(&mut self) {
        ignore_panic(|| {
            self.0.leave(0);
        });
    }
}

impl core::fmt::Debug for DeadlineHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_pending() { "Expiry(pending)" } else { "Expiry(over)" })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_rig::Wakes;
    use alloc::string::String;
    use alloc::sync::Arc;

    #[test]
    fn an_answer_that_came_first_needs_no_wake_up() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = Wakes::new();
        assert_eq!(sender.send(String::from("yes")), Ok(()));
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok("yes".into())));
        assert_eq!(wakes.count(), 0);
    }

    #[test]
    fn an_answer_wakes_whoever_waits_once() {
        let (sender, mut receiver) = channel();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert!(sender.is_awaited());
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Ok(7)));
    }

    #[test]
    fn the_last_waker_is_the_one_that_is_woken() {
        let (sender, mut receiver) = channel();
        let (first, waker) = Wakes::new();
        let (second, other) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert_eq!(poll(&mut receiver, &other), Poll::Pending);
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!((first.count(), second.count()), (0, 1));
    }

    #[test]
    fn a_sender_that_gives_up_ends_the_wait() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        drop(sender);
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::Dropped)));
    }

    #[test]
    fn a_sender_that_is_buried_says_so() {
        let (sender, mut receiver) = channel::<u32>();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        dead_letter_scope::while_dead_lettering(|| drop(sender));
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::DeadLettered)));
    }

    #[test]
    fn a_deadline_ends_the_wait_and_nobody_else_wakes_then() {
        let (sender, mut receiver) = channel::<u32>();
        let expiry = receiver.expiry();
        let (wakes, waker) = Wakes::new();
        assert_eq!(poll(&mut receiver, &waker), Poll::Pending);
        assert_eq!(alloc::format!("{expiry:?}"), "Expiry(pending)");
        expiry.expire();
        assert_eq!(poll(&mut receiver, &waker), Poll::Ready(Err(RecvError::TimedOut)));
        assert!(!sender.is_awaited());
        drop(sender);
        expiry.expire();
        assert_eq!((wakes.count(), expiry.is_pending()), (1, false));
        assert_eq!(alloc::format!("{expiry:?}"), "Expiry(over)");
    }

    #[test]
    fn an_answer_nobody_waits_for_comes_back() {
        let (sender, receiver) = channel();
        drop(receiver);
        assert!(!sender.is_awaited());
        assert_eq!(sender.send(7), Err(7));
    }

    #[test]
    fn an_answer_that_comes_after_the_deadline_is_dropped_with_the_question() {
        let (sender, receiver) = channel();
        let expiry = receiver.expiry();
        let answer = Arc::new(());
        expiry.expire();
        assert_eq!(sender.send(answer.clone()), Ok(()));
        drop(receiver);
        assert_eq!(Arc::strong_count(&answer), 2);
        drop(expiry);
        assert_eq!(Arc::strong_count(&answer), 1);
    }

    #[test]
    fn a_waker_nobody_woke_is_dropped_with_the_receiver() {
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
