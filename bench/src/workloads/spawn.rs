//! Actors that start and then sit idle: how long that takes, and what they weigh.

use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{NoSample, Sample};
use crate::settings::Settings;
use crate::workload::HeapGauge;

pub(crate) const ACTORS: u64 = 100_000;

/// Takes the time until the last actor's start hook has run.
pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let count = count::<R>(settings);
    let started = Latch::new(count as u64);
    let done = Latch::new(count as u64);
    let mut addrs = Vec::with_capacity(count);
    let take = stage.start()?;
    addrs.extend((0..count).map(|lane| stage.runtime.spawn_actor(lane, Counter::new(1, &started, &done))));
    started.wait();
    let sample = stage.stop(take, count as u64);
    drop(addrs);
    sample
}

/// Weighs actors that have started, and again after each has received its first message.
pub(crate) fn weigh<R: Runtime>(settings: &Settings, heap: HeapGauge) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let count = count::<R>(settings);
    let started = Latch::new(count as u64);
    let done = Latch::new(count as u64);
    let mut addrs = Vec::with_capacity(count);
    let take = stage.start()?;
    let before = heap();
    addrs.extend((0..count).map(|lane| stage.runtime.spawn_actor(lane, Counter::new(1, &started, &done))));
    started.wait();
    let idle = heap();
    for addr in &addrs {
        futures_lite::future::block_on(R::tell(addr, 1));
    }
    done.wait();
    let touched = heap();
    let each = |after: usize| after.saturating_sub(before) as f64 / count as f64;
    let sample = stage.stop(take, count as u64)?;
    Ok(sample.with("heap_bytes", each(idle)).with("touched_bytes", each(touched)))
}

fn count<R: Runtime>(settings: &Settings) -> usize {
    R::ACTORS_MAX.min(settings.scaled(ACTORS) as usize)
}
