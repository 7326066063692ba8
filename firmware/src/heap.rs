//! The heap for actors and messages.
//!
//! Limits: [`LEN`] bytes. Allocation runs with interrupts disabled, so an interrupt handler may send messages.

use embedded_alloc::LlffHeap;

/// The size of the heap; the smallest machine has 16 KiB of memory, and the rest is stack.
pub(crate) const LEN: usize = 11 * 1024;

#[global_allocator]
static HEAP: LlffHeap = LlffHeap::empty();

/// Initializes the allocator; nothing can be allocated before.
#[allow(unsafe_code, reason = "only the program knows which memory is free")]
pub(crate) fn init() {
    // SAFETY: called once, at the start of `main`; nothing else uses the macro's array.
    unsafe {
        embedded_alloc::init!(HEAP, LEN);
    }
}

/// Returns the number of bytes in use.
pub(crate) fn used() -> usize {
    HEAP.used()
}
