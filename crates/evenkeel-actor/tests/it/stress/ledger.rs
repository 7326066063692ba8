//! Who sent what to whom, and where it ended up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_actor::ReadyQueueScheduler;
use evenkeel_actor::dead_letters::DeadLetterReason;

use super::chaos_actor::Note;

/// The books of all actors.
pub(crate) struct Ledger {
    books: Vec<Mutex<Book>>,
    producers: usize,
    letters: AtomicU64,
    relayed: Vec<AtomicU64>,
}

/// What is known about one actor's messages, by sender.
#[derive(Clone, Default)]
struct Page {
    accepted: Vec<u64>,
    handled: Vec<u64>,
    dead: Vec<u64>,
}

#[derive(Default)]
struct Book {
    pages: Vec<Page>,
    /// Futures the actor waited for, and those that came back.
    awaited: u64,
    woken: u64,
    told_to_stop: bool,
    stopped: bool,
    /// Messages that waited when the actor stopped.
    left_behind: usize,
}

impl Ledger {
    /// Senders are the producers, then the actors, which pass messages on.
    pub(crate) fn new(actors: usize, producers: usize) -> Self {
        let book = || {
            let pages = vec![Page::default(); producers + actors];
            Mutex::new(Book { pages, ..Book::default() })
        };
        Self {
            books: (0..actors).map(|_| book()).collect(),
            producers,
            letters: AtomicU64::new(0),
            relayed: (0..actors).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The sender's number of an actor, and the number of its next message to pass on.
    pub(crate) fn next_relay(&self, actor: usize) -> (usize, u64) {
        (self.producers + actor, self.relayed[actor].fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn accepted(&self, to: usize, from: usize, number: u64) {
        self.page(to, from, |page| page.accepted.push(number));
    }

    pub(crate) fn handled(&self, to: usize, from: usize, number: u64) {
        self.page(to, from, |page| page.handled.push(number));
    }

    pub(crate) fn awaited(&self, actor: usize) {
        self.books[actor].lock().unwrap().awaited += 1;
    }

    pub(crate) fn woken(&self, actor: usize) {
        self.books[actor].lock().unwrap().woken += 1;
    }

    pub(crate) fn told_to_stop(&self, actor: usize) {
        self.books[actor].lock().unwrap().told_to_stop = true;
    }

    pub(crate) fn stopped(&self, actor: usize) {
        self.books[actor].lock().unwrap().stopped = true;
    }

    fn page(&self, to: usize, from: usize, write: impl FnOnce(&mut Page)) {
        write(&mut self.books[to].lock().unwrap().pages[from]);
    }

    /// Fails unless every message is in exactly one place, and each sender's in order.
    pub(crate) fn balance(&self, round: &str, letters_total: u64) -> usize {
        assert_eq!(self.letters.load(Ordering::Relaxed), letters_total, "dead letters, {round}");
        let mut sent = 0;
        for (actor, book) in self.books.iter().enumerate() {
            let book = book.lock().unwrap();
            assert!(book.stopped, "actor {actor} did not end, {round}");
            assert!(book.woken <= book.awaited, "actor {actor} heard of a future twice, {round}");
            let woken = book.woken == book.awaited;
            let left_behind = book.left_behind == 0;
            assert!(book.told_to_stop || (woken && left_behind), "actor {actor} ended early, {round}");
            for (from, page) in book.pages.iter().enumerate() {
                let what = || format!("from {from} to actor {actor}, {round}");
                let in_order = page.handled.windows(2).all(|pair| pair[0] < pair[1]);
                assert!(in_order, "out of turn or twice {}: {:?}", what(), page.handled);
                let mut ended = [page.handled.clone(), page.dead.clone()].concat();
                ended.sort_unstable();
                assert_eq!(ended, page.accepted, "lost or twice {}", what());
                sent += ended.len();
            }
        }
        sent
    }
}

/// Books dead letters as they come, so that questions among them are dropped.
pub(crate) async fn collect_letters(system: ReadyQueueScheduler, ledger: Arc<Ledger>, over: Arc<AtomicBool>) {
    loop {
        let last = over.load(Ordering::Acquire);
        for letter in system.take_dead_letters() {
            ledger.letters.fetch_add(1, Ordering::Relaxed);
            let note = letter.message.expect("clerks have their letters kept");
            let note = note.downcast::<Note>().expect("nothing but notes is sent");
            ledger.page(note.to, note.from, |page| page.dead.push(note.number));
            let left_behind = usize::from(letter.reason == DeadLetterReason::Stopped);
            ledger.books[note.to].lock().unwrap().left_behind += left_behind;
        }
        if last {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
