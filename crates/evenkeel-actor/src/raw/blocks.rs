//! Small pieces of memory that a thread uses again and again.
//!
//! A question is asked and answered a million times a second, and the general allocator is a tenth of
//! what it costs. Bound: a thread keeps at most [`KEPT_MAX`] blocks of [`BLOCK`] bytes.

use alloc::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ptr::NonNull;

const BLOCK: usize = 64;
const KEPT_MAX: usize = 64;
const LAYOUT: Layout = match Layout::from_size_align(BLOCK, 16) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

std::thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept(Vec::new())) };
}

/// Blocks nobody uses.
struct Kept(Vec<NonNull<u8>>);

impl Drop for Kept {
    fn drop(&mut self) {
        for block in self.0.drain(..) {
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
    let kept = KEPT.try_with(|kept| kept.borrow_mut().0.pop()).ok().flatten();
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
    let kept = KEPT.try_with(|kept| {
        let blocks = &mut kept.borrow_mut().0;
        if blocks.len() < KEPT_MAX {
            blocks.push(block);
            return true;
        }
        false
    });
    if kept != Ok(true) {
        // SAFETY: promised by the caller; the layout is the one it was allocated with.
        unsafe { dealloc(block.as_ptr(), LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_and_no_more_are_kept_than_the_limit() {
        let blocks: Vec<_> = (0..KEPT_MAX + 3).map(|_| take()).collect();
        for block in &blocks {
            // SAFETY: taken above, used by nobody.
            unsafe { give_back(*block) };
        }
        assert_eq!(KEPT.with(|kept| kept.borrow().0.len()), KEPT_MAX);
        let again = take();
        assert_eq!(again, blocks[KEPT_MAX - 1]);
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
