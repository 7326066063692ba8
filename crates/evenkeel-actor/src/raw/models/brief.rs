//! The brief lock gives its value to one thread at a time, and loses no turn.

use loom::thread;

use super::super::brief::BriefLock;
use super::check;
use crate::sync::Arc;

#[test]
fn what_two_threads_write_in_turn_is_all_there() {
    check(3, || {
        let lock = Arc::new(BriefLock::new(Vec::new()));
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let lock = lock.clone();
                thread::spawn(move || lock.with(|written: &mut Vec<u32>| written.push(writer)))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut written = lock.with(core::mem::take);
        written.sort_unstable();
        assert_eq!(written, [0, 1]);
    });
}
