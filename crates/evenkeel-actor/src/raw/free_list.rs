//! Small pieces of memory that a thread uses again and again.
//!
//! A question is asked and answered a million times a second, and the general allocator is a tenth of
//! what it costs. Bound: a thread keeps at most [`KEPT_MAX`] blocks of [`BLOCK`] bytes.

use alloc::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use core::cell::Cell;
use core::ptr::NonNull;

const BLOCK: usize = 64;
const KEPT_MAX: u32 = 64;
const LAYOUT: Layout = match Layout::from_size_align(BLOCK, 16) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

std::thread_local! {
    static KEPT: FreeList = const { FreeList { first: Cell::new(None), count: Cell::new(0) } };
}

/// Blocks nobody uses; each begins with where the next one is.
struct FreeList {
    first: Cell<Option<NonNull<u8>>>,
    count: Cell<u32>,
}

impl FreeList {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        let block = self.first.get()?;
        // SAFETY: a block in the list is in nobody's hands, and begins with the next one.
        self.first.set(unsafe { block.cast::<Option<NonNull<u8>>>().read() });
        self.count.set(self.count.get() - 1);
        Some(block)
    }

    /// Puts a block in; `false` when there are enough.
    ///
    /// # Safety
    /// `block` has the layout of one, and nothing in it is used any more.
    #[inline]
    unsafe fn push(&self, block: NonNull<u8>) -> bool {
        if self.count.get() == KEPT_MAX {
            return false;
        }
        // SAFETY: promised by the caller; a block has room for a pointer, and is aligned for one.
        unsafe { block.cast::<Option<NonNull<u8>>>().write(self.first.get()) };
        self.first.set(Some(block));
        self.count.set(self.count.get() + 1);
        true
    }
}

impl Drop for FreeList {
    fn drop(&mut self) {
        while let Some(block) = self.pop() {
            // SAFETY: allocated in `take` with this layout, and in nobody's hands.
            unsafe { dealloc(block.as_ptr(), LAYOUT) };
        }
    }
}

/// Whether a value of this type has room in a block.
pub(super) const fn fits<T>() -> bool {
    size_of::<T>() <= BLOCK && align_of::<T>() <= 16
}

/// Hands out a block; give it to [`give_back`] from whatever thread.
#[inline]
pub(super) fn take() -> NonNull<u8> {
    // A thread that is ending has no blocks of its own any more.
    let kept = KEPT.try_with(FreeList::pop).ok().flatten();
    kept.unwrap_or_else(|| {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc(LAYOUT) }).unwrap_or_else(|| handle_alloc_error(LAYOUT))
    })
}

/// Takes a block back.
///
/// # Safety
/// `block` came from [`take`], and nothing in it is used any more.
#[inline]
pub(super) unsafe fn give_back(block: NonNull<u8>) {
    // SAFETY: promised by the caller.
    let kept = KEPT.try_with(|kept| unsafe { kept.push(block) });
    if kept != Ok(true) {
        // SAFETY: promised by the caller; the layout is the one it was allocated with.
        unsafe { dealloc(block.as_ptr(), LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_block_is_used_again_and_no_more_are_kept_than_the_limit() {
        let blocks: Vec<_> = (0..KEPT_MAX as usize + 3).map(|_| take()).collect();
        for block in &blocks {
            // SAFETY: taken above, used by nobody.
            unsafe { give_back(*block) };
        }
        assert_eq!(KEPT.with(|kept| kept.count.get()), KEPT_MAX);
        let again = take();
        assert_eq!(again, blocks[KEPT_MAX as usize - 1]);
        // SAFETY: taken above, used by nobody.
        unsafe { give_back(again) };
    }

    #[test]
    fn a_block_may_be_given_back_by_another_thread() {
        let block = take().as_ptr() as usize;
        let other = std::thread::spawn(move || {
            let block = NonNull::new(core::ptr::with_exposed_provenance_mut(block)).unwrap();
            // SAFETY: taken above, used by nobody.
            unsafe { give_back(block) };
        });
        other.join().unwrap();
    }
}
