//! A pointer in the LIFO slot is returned exactly once, and carries the writes made before it was stored.

use alloc::vec::Vec;

use loom::thread;

use super::super::lifo_slot::PointerSlot;
use super::check;
use crate::sync::{Arc, UnsafeCell};

/// Two cells of which each run, by one thread at a time, adds one to a counter that has no synchronization of its own.
struct SlotModel {
    slot: PointerSlot,
    runs: [UnsafeCell<u32>; 2],
}

// SAFETY: a counter is accessed only by the thread that got its address from the slot, which is what the model checks.
unsafe impl Send for SlotModel {}
// SAFETY: as above.
unsafe impl Sync for SlotModel {}

impl SlotModel {
    fn address(&self, cell: usize) -> *mut () {
        (&raw const self.runs[cell]).cast_mut().cast()
    }

    /// Runs the cell behind an address from the slot; returns how often it has run.
    fn run(&self, address: *mut ()) -> Option<u32> {
        let cell = (0..2).find(|cell| self.address(*cell) == address)?;
        // SAFETY: loom fails the model if another access is not ordered before this one.
        Some(self.runs[cell].with_mut(|runs| unsafe {
            *runs += 1;
            *runs
        }))
    }
}

#[test]
fn each_stored_pointer_is_returned_once_with_the_writes_before_it() {
    check(3, || {
        let model = Arc::new(SlotModel { slot: PointerSlot::new(), runs: [0, 0].map(UnsafeCell::new) });
        let other = model.clone();
        let thief = thread::spawn(move || {
            [other.slot.take(), other.slot.take()].into_iter().filter_map(|taken| other.run(taken)).collect()
        });
        let mut runs: Vec<u32> = Vec::new();
        for cell in 0..2 {
            // A run before the cell is stored, which the next run must see.
            model.run(model.address(cell));
            let address = model.address(cell);
            runs.extend(model.run(model.slot.replace(address)));
        }
        runs.extend(model.run(model.slot.take()));
        let stolen: Vec<u32> = thief.join().unwrap();
        runs.extend(stolen);
        assert_eq!(runs, [2, 2]);
    });
}
