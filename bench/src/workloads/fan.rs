//! Producers tell actors round robin, as fast as they can.

use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;
use crate::workloads::YIELD_EVERY;

/// Number of producers, actors and messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FanShape {
    pub(crate) actors: usize,
    /// Messages for each actor, before scaling.
    pub(crate) each: u64,
    pub(crate) producers: usize,
}

impl FanShape {
    pub(crate) const TELL1: Self = Self { actors: 1, each: 1_000_000, producers: 1 };
    pub(crate) const MPSC4: Self = Self { actors: 1, each: 1_000_000, producers: 4 };
    pub(crate) const FAN10: Self = Self { actors: 10, each: 100_000, producers: 4 };
    pub(crate) const FAN100: Self = Self { actors: 100, each: 10_000, producers: 4 };
    pub(crate) const FAN1000: Self = Self { actors: 1000, each: 1000, producers: 4 };

    /// Returns the number of messages from each producer to each actor.
    pub(crate) fn passes(self, settings: &Settings) -> u64 {
        (settings.scaled(self.each) / self.producers as u64).max(1)
    }
}

pub(crate) fn run<R: Runtime>(settings: &Settings, shape: FanShape) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let passes = shape.passes(settings);
    let each = passes * shape.producers as u64;
    let started = Latch::new(shape.actors as u64);
    let done = Latch::new(shape.actors as u64);
    // A single producer, on thread 0, and its actor are on different threads.
    let spawn = |thread| harness.runtime.spawn_actor(thread, Counter::new(each, &started, &done));
    let addrs: Vec<R::Addr> = (1..=shape.actors).map(spawn).collect();
    started.wait();
    let measurement = harness.begin()?;
    for thread in 0..shape.producers {
        harness.runtime.spawn_task(thread, produce::<R>(addrs.clone(), passes));
    }
    done.wait();
    harness.finish(measurement, each * shape.actors as u64)
}

async fn produce<R: Runtime>(addrs: Vec<R::Addr>, passes: u64) {
    let mut sent = 0_u64;
    for _ in 0..passes {
        for addr in &addrs {
            R::tell(addr, 1).await;
            sent += 1;
            if sent.is_multiple_of(YIELD_EVERY) {
                R::yield_now().await;
            }
        }
    }
}
