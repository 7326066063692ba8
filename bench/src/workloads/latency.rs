//! Delays from send to receive while producers keep a bounded number of messages in flight.
//!
//! Bound: a producer sends a burst of at most 64 and asks the last actor it told before it sends more, so that a
//! delay says how soon an actor runs, not how far a producer ran ahead.

use crate::clock::now_ns;
use crate::counter::{Counter, Delays, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{NoSample, Sample};
use crate::settings::Settings;

const MESSAGES: u64 = 200_000;
const PRODUCERS: usize = 4;
const BURST: u64 = 64;

pub(crate) fn run<R: Runtime>(settings: &Settings, actors: usize) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let turns = (settings.scaled(MESSAGES) / (actors * PRODUCERS) as u64).max(1);
    let each = turns * PRODUCERS as u64;
    let started = Latch::new(actors as u64);
    let done = Latch::new(actors as u64);
    let delays: Vec<_> = (0..actors).map(|_| Delays::with_capacity(each)).collect();
    let spawn = |(lane, delays): (usize, &Delays)| {
        stage.runtime.spawn_actor(lane, Counter::new(each, &started, &done).noting(delays.clone()))
    };
    let addrs: Vec<R::Addr> = delays.iter().enumerate().map(spawn).collect();
    started.wait();
    let take = stage.start()?;
    for lane in 0..PRODUCERS {
        let mut addrs = addrs.clone();
        // Producers follow each other around the ring instead of meeting at the same actor.
        addrs.rotate_left(lane * actors / PRODUCERS);
        stage.runtime.spawn_task(lane, produce::<R>(addrs, turns));
    }
    done.wait();
    let sample = stage.stop(take, each * actors as u64)?;
    Ok(sample.with_delays("", delays.iter().flat_map(Delays::take).collect()))
}

async fn produce<R: Runtime>(addrs: Vec<R::Addr>, turns: u64) {
    let mut sent = 0_u64;
    for _ in 0..turns {
        for addr in &addrs {
            R::tell(addr, now_ns()).await;
            sent += 1;
            if sent.is_multiple_of(BURST) {
                R::ask(addr, 0).await;
            }
        }
    }
}
