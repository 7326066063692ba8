//! Actors that start and stay idle: time to start, and memory per actor.

use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;
use crate::workload::HeapGauge;

pub(crate) const ACTORS: u64 = 100_000;

/// Measures the time until the last start hook has run.
pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let count = count::<R>(settings);
    let started = Latch::new(count as u64);
    let done = Latch::new(count as u64);
    let mut addrs = Vec::with_capacity(count);
    let measurement = harness.begin()?;
    addrs.extend(
        (0..count).map(|thread| harness.runtime.spawn_actor(thread, Counter::new(1, &started, &done))),
    );
    started.wait();
    let sample = harness.finish(measurement, count as u64);
    drop(addrs);
    sample
}

/// Measures the heap per actor after the start, and again after each actor's first message.
pub(crate) fn measure_heap<R: Runtime>(settings: &Settings, heap: HeapGauge) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let count = count::<R>(settings);
    let started = Latch::new(count as u64);
    let done = Latch::new(count as u64);
    let mut addrs = Vec::with_capacity(count);
    let measurement = harness.begin()?;
    let before = heap();
    addrs.extend(
        (0..count).map(|thread| harness.runtime.spawn_actor(thread, Counter::new(1, &started, &done))),
    );
    started.wait();
    let idle = heap();
    for addr in &addrs {
        futures_lite::future::block_on(R::tell(addr, 1));
    }
    done.wait();
    let touched = heap();
    let each = |after: usize| after.saturating_sub(before) as f64 / count as f64;
    let sample = harness.finish(measurement, count as u64)?;
    Ok(sample.with("heap_bytes", each(idle)).with("touched_bytes", each(touched)))
}

fn count<R: Runtime>(settings: &Settings) -> usize {
    R::ACTORS_MAX.min(settings.scaled(ACTORS) as usize)
}
