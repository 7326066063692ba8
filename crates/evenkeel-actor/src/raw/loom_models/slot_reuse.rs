//! A stale index never reaches a new occupant, and every occupant is dropped once.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::super::slab::{Occupant, Slab, SlotRef};
use super::check;
use crate::sync::Arc;

/// An occupant with a name; loom reports a read that races with writing or removing it.
struct TestOccupant {
    name: &'static str,
    slab: Arc<Slab<TestOccupant>>,
    dropped: StdArc<AtomicUsize>,
}

impl Occupant for TestOccupant {
    fn take_next(&mut self) -> Option<SlotRef<Self>> {
        None
    }

    fn slab(&self) -> &Slab<Self> {
        &self.slab
    }
}

impl Drop for TestOccupant {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a slab with one slot, and a count of dropped occupants.
fn one_slot() -> (Arc<Slab<TestOccupant>>, StdArc<AtomicUsize>) {
    (Arc::new(Slab::new(1)), StdArc::default())
}

fn occupy(
    slab: &Arc<Slab<TestOccupant>>,
    dropped: &StdArc<AtomicUsize>,
    name: &'static str,
) -> Option<(SlotRef<TestOccupant>, SlotRef<TestOccupant>)> {
    slab.occupy(TestOccupant { name, slab: slab.clone(), dropped: dropped.clone() }).ok()
}

#[test]
fn a_stale_index_never_reaches_the_new_occupant() {
    check(3, || {
        let (slab, dropped) = one_slot();
        let (old, second) = occupy(&slab, &dropped, "old").unwrap();
        let generation = old.generation();
        let reader = {
            let slab = slab.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let found = slab.find(0, generation);
                    assert!(
                        found.is_none_or(|found| found.occupant().name == "old"),
                        "reached another occupant"
                    );
                }
            })
        };
        drop((old, second));
        // Rejected while the other thread still references the old occupant.
        let new = occupy(&slab, &dropped, "new");
        if let Some((new, _)) = &new {
            assert_eq!((new.number(), new.generation(), new.occupant().name), (0, generation + 1, "new"));
            assert!(slab.find(0, generation + 1).is_some_and(|found| found.is(new)));
        }
        drop(new);
        reader.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn the_last_of_three_references_drops_the_occupant() {
    check(3, || {
        let (slab, dropped) = one_slot();
        let (first, second) = occupy(&slab, &dropped, "old").unwrap();
        let generation = first.generation();
        let dropper = thread::spawn(move || {
            assert_eq!(second.occupant().name, "old");
            drop(second);
        });
        let reader = {
            let slab = slab.clone();
            thread::spawn(move || {
                slab.find(0, generation).is_none_or(|found| found.clone().occupant().name == "old")
            })
        };
        drop(first);
        dropper.join().unwrap();
        assert!(reader.join().unwrap());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert!(occupy(&slab, &dropped, "new").is_some(), "the slot is free again");
    });
}

#[test]
fn iterating_over_the_occupants_drops_none_twice() {
    check(3, || {
        let (slab, dropped) = one_slot();
        let (first, second) = occupy(&slab, &dropped, "old").unwrap();
        let reader = {
            let slab = slab.clone();
            thread::spawn(move || slab.iter().for_each(|found| assert!(!found.occupant().name.is_empty())))
        };
        drop((first, second));
        drop(occupy(&slab, &dropped, "new"));
        reader.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}
