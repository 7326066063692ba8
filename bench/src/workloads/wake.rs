//! A thread outside the runtime tells an idle actor now and then: delay until it receives.

use std::thread;
use std::time::Duration;

use crate::clock::now_ns;
use crate::counter::{Counter, Delays, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{NoSample, Sample};
use crate::settings::Settings;

const MESSAGES: u64 = 10_000;
/// Long enough for the actor, and mostly for its worker, to go to sleep.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let messages = settings.scaled(MESSAGES);
    let started = Latch::new(1);
    let done = Latch::new(1);
    let delays = Delays::with_capacity(messages);
    let counter = Counter::new(messages, &started, &done).noting(delays.clone());
    let addr = stage.runtime.spawn_actor(0, counter);
    started.wait();
    let take = stage.start()?;
    for _ in 0..messages {
        futures_lite::future::block_on(R::tell(&addr, now_ns()));
        thread::sleep(PAUSE);
    }
    done.wait();
    Ok(stage.stop(take, messages)?.with_delays("", delays.take()))
}
