//! Thread-local free list of small memory blocks, for the oneshot channel of an ask.
//!
//! Asks reach a million per second, and the general allocator would be a tenth of their cost. Limits: a
//! thread keeps at most [`BLOCKS_MAX`] blocks of [`BLOCK`] bytes.

use alloc::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use core::cell::Cell;
use core::ptr::NonNull;

const BLOCK: usize = 64;
const BLOCKS_MAX: u32 = 64;
const LAYOUT: Layout = match Layout::from_size_align(BLOCK, 16) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

std::thread_local! {
    static FREE_LIST: FreeList = const { FreeList { first: Cell::new(None), count: Cell::new(0) } };
}

/// Unused blocks; each starts with a pointer to the next one.
struct FreeList {
    first: Cell<Option<NonNull<u8>>>,
    count: Cell<u32>,
}

impl FreeList {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        let block = self.first.get()?;
        // SAFETY: a block in the list is used by no one and starts with the pointer to the next.
        self.first.set(unsafe { block.cast::<Option<NonNull<u8>>>().read() });
        self.count.set(self.count.get() - 1);
        Some(block)
    }

    /// Adds a block; returns `false` if the list is full.
    ///
    /// # Safety
    /// `block` has the layout of a block, and its contents are no longer used.
    #[inline]
    unsafe fn push(&self, block: NonNull<u8>) -> bool {
        if self.count.get() == BLOCKS_MAX {
            return false;
        }
        // SAFETY: guaranteed by the caller; a block has room for a pointer and is aligned for one.
        unsafe { block.cast::<Option<NonNull<u8>>>().write(self.first.get()) };
        self.first.set(Some(block));
        self.count.set(self.count.get() + 1);
        true
    }
}

impl Drop for FreeList {
    fn drop(&mut self) {
        while let Some(block) = self.pop() {
            // SAFETY: allocated with this layout, and used by no one.
            unsafe { dealloc(block.as_ptr(), LAYOUT) };
        }
    }
}

/// Reports whether a value of this type fits into a block.
pub(super) const fn fits<T>() -> bool {
    size_of::<T>() <= BLOCK && align_of::<T>() <= 16
}

/// Allocates a block; any thread may free it with [`free_block`].
#[inline]
pub(super) fn alloc_block() -> NonNull<u8> {
    // The free list of a thread that is exiting is already gone.
    let reused = FREE_LIST.try_with(FreeList::pop).ok().flatten();
    reused.unwrap_or_else(|| {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc(LAYOUT) }).unwrap_or_else(|| handle_alloc_error(LAYOUT))
    })
}

/// Frees a block.
///
/// # Safety
/// `block` came from [`alloc_block`], and its contents are no longer used.
#[inline]
pub(super) unsafe fn free_block(block: NonNull<u8>) {
    // SAFETY: guaranteed by the caller.
    let reused = FREE_LIST.try_with(|reused| unsafe { reused.push(block) });
    if reused != Ok(true) {
        // SAFETY: guaranteed by the caller; the block was allocated with this layout.
        unsafe { dealloc(block.as_ptr(), LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn blocks_are_reused_up_to_the_limit() {
        let blocks: Vec<_> = (0..BLOCKS_MAX as usize + 3).map(|_| alloc_block()).collect();
        for block in &blocks {
            // SAFETY: allocated above and unused.
            unsafe { free_block(*block) };
        }
        assert_eq!(FREE_LIST.with(|reused| reused.count.get()), BLOCKS_MAX);
        let again = alloc_block();
        assert_eq!(again, blocks[BLOCKS_MAX as usize - 1]);
        // SAFETY: allocated above and unused.
        unsafe { free_block(again) };
    }

    #[test]
    fn a_block_may_be_freed_by_another_thread() {
        let block = alloc_block().as_ptr() as usize;
        let other = std::thread::spawn(move || {
            let block = NonNull::new(core::ptr::with_exposed_provenance_mut(block)).unwrap();
            // SAFETY: allocated above and unused.
            unsafe { free_block(block) };
        });
        other.join().unwrap();
    }
}
