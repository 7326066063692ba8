//! A thread outside the runtime sends messages to an idle actor at intervals; measures the latency until it receives
//! them.

use std::thread;
use std::time::Duration;

use crate::clock::now_ns;
use crate::counter::{Counter, Latch, Latencies};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;

const MESSAGES: u64 = 10_000;
/// Long enough for the actor, and usually its worker, to become idle.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let messages = settings.scaled(MESSAGES);
    let started = Latch::new(1);
    let done = Latch::new(1);
    let latencies = Latencies::with_capacity(messages);
    let counter = Counter::new(messages, &started, &done).recording(latencies.clone());
    let addr = harness.runtime.spawn_actor(0, counter);
    started.wait();
    let measurement = harness.begin()?;
    for _ in 0..messages {
        futures_lite::future::block_on(R::tell(&addr, now_ns()));
        thread::sleep(PAUSE);
    }
    done.wait();
    Ok(harness.finish(measurement, messages)?.with_latencies("", latencies.take()))
}
