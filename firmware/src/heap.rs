//! The memory that actors and messages are in.
//!
//! Bound: [`LEN`] bytes. Taking and giving memory is an interrupt-free section, so an interrupt handler
//! may send messages.

use embedded_alloc::LlffHeap;

/// All of it; the smallest of the machines has 16 KiB, of which the rest is stack.
pub(crate) const LEN: usize = 11 * 1024;

#[global_allocator]
static HEAP: LlffHeap = LlffHeap::empty();

/// Hands the memory to the allocator; whoever needs memory before has none.
#[allow(unsafe_code, reason = "only the program itself can say which memory is free")]
pub(crate) fn init() {
    // SAFETY: called once, first thing in `main`; the macro's array belongs to nobody else.
    unsafe {
        embedded_alloc::init!(HEAP, LEN);
    }
}

/// Counts the bytes in use.
pub(crate) fn used() -> usize {
    HEAP.used()
}
