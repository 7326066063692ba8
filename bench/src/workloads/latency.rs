//! Latency from send to receive, with a bounded number of messages in flight.
//!
//! Limits: after a burst of 64 messages, a producer asks the last actor and waits for the reply before it sends more.
//! So the latency shows how soon an actor runs, not how far a producer is ahead.

use crate::clock::now_ns;
use crate::counter::{Counter, Latch, Latencies};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;

const MESSAGES: u64 = 200_000;
const PRODUCERS: usize = 4;
const BURST: u64 = 64;

pub(crate) fn run<R: Runtime>(settings: &Settings, actors: usize) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let passes = (settings.scaled(MESSAGES) / (actors * PRODUCERS) as u64).max(1);
    let each = passes * PRODUCERS as u64;
    let started = Latch::new(actors as u64);
    let done = Latch::new(actors as u64);
    let latencies: Vec<_> = (0..actors).map(|_| Latencies::with_capacity(each)).collect();
    let spawn = |(thread, latencies): (usize, &Latencies)| {
        harness.runtime.spawn_actor(thread, Counter::new(each, &started, &done).recording(latencies.clone()))
    };
    let addrs: Vec<R::Addr> = latencies.iter().enumerate().map(spawn).collect();
    started.wait();
    let measurement = harness.begin()?;
    for thread in 0..PRODUCERS {
        let mut addrs = addrs.clone();
        // Producers start at different actors, so that they do not all send to the same one.
        addrs.rotate_left(thread * actors / PRODUCERS);
        harness.runtime.spawn_task(thread, produce::<R>(addrs, passes));
    }
    done.wait();
    let sample = harness.finish(measurement, each * actors as u64)?;
    Ok(sample.with_latencies("", latencies.iter().flat_map(Latencies::take).collect()))
}

async fn produce<R: Runtime>(addrs: Vec<R::Addr>, passes: u64) {
    let mut sent = 0_u64;
    for _ in 0..passes {
        for addr in &addrs {
            R::tell(addr, now_ns()).await;
            sent += 1;
            if sent.is_multiple_of(BURST) {
                R::ask(addr, 0).await;
            }
        }
    }
}
