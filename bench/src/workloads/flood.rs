//! A task asks a quiet actor, one ask in flight, while producers flood another actor; measures the round trips.
//!
//! The flooded actor's mailbox is bounded, so a producer that is faster than the actor waits and memory stays bounded.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use futures_lite::future::block_on;

use crate::clock::now_ns;
use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::{Mailbox, Settings};
use crate::workloads::YIELD_EVERY;

const ASKS: u64 = 2_000;
const PAUSE: std::time::Duration = std::time::Duration::from_micros(200);
const MAILBOX: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not zero");

/// Origin of the flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// Two tasks of the runtime.
    Tasks,
    /// A thread outside the runtime.
    Thread,
}

pub(crate) fn run<R: Runtime>(settings: &Settings, flood: Flood) -> Result<Sample, SampleError> {
    let mailbox = match settings.mailbox {
        Mailbox::Unbounded => Mailbox::Bounded(MAILBOX),
        bounded @ Mailbox::Bounded(_) => bounded,
    };
    let mut harness = Harness::<R>::start(&Settings { mailbox, ..*settings })?;
    let asks = settings.scaled(ASKS);
    let started = Latch::new(2);
    let unused = Latch::new(1);
    let flooded = harness.runtime.spawn_actor(0, Counter::new(u64::MAX, &started, &unused));
    let quiet = harness.runtime.spawn_actor(1, Counter::new(u64::MAX, &started, &unused));
    started.wait();
    let stop = Arc::new(AtomicBool::new(false));
    match flood {
        Flood::Tasks => (0..2).for_each(|task| {
            let producer = produce::<R>(flooded.clone(), stop.clone());
            harness.runtime.spawn_task(task, producer);
        }),
        Flood::Thread => {
            let stop = stop.clone();
            // Ends with the process.
            drop(thread::spawn(move || block_on(produce::<R>(flooded, stop))));
        }
    }
    let (done, latencies) = mpsc::channel();
    let measurement = harness.begin()?;
    harness.runtime.spawn_task(1, async move {
        let mut latencies = Vec::with_capacity(asks as usize);
        for value in 0..asks {
            let asked = now_ns();
            if R::ask(&quiet, value).await != value + 1 {
                return;
            }
            latencies.push(now_ns() - asked);
            tokio::time::sleep(PAUSE).await;
        }
        // The receiver is waiting below.
        let _ = done.send(latencies);
    });
    let latencies = latencies.recv().map_err(|_| SampleError::Failed("wrong reply".to_owned()));
    stop.store(true, Ordering::Relaxed);
    Ok(harness.finish(measurement, asks)?.with_latencies("", latencies?))
}

/// Floods an actor until `stop` is set.
async fn produce<R: Runtime>(flooded: R::Addr, stop: Arc<AtomicBool>) {
    let mut sent = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        R::tell(&flooded, 1).await;
        sent += 1;
        if sent.is_multiple_of(YIELD_EVERY) {
            R::yield_now().await;
        }
    }
}
