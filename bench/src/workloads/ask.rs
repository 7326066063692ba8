//! One task asks one actor, one ask in flight.

use std::sync::mpsc;

use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::{Settings, Switch};

pub(crate) const ASKS: u64 = 200_000;

pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let asks = settings.scaled(ASKS);
    let started = Latch::new(1);
    let unused = Latch::new(1);
    let thread = if settings.colocate == Switch::On { 0 } else { 1 };
    let addr = harness.runtime.spawn_actor(thread, Counter::new(1, &started, &unused));
    started.wait();
    let (done, last_reply) = mpsc::channel();
    let measurement = harness.begin()?;
    harness.runtime.spawn_task(0, async move {
        let mut value = 0;
        for _ in 0..asks {
            value = R::ask(&addr, value).await;
        }
        // The receiver is waiting below.
        let _ = done.send(value);
    });
    let value = last_reply.recv();
    let sample = harness.finish(measurement, asks)?;
    if value != Ok(asks) {
        return Err(SampleError::Failed(format!("the last reply was {value:?}, not {asks}")));
    }
    Ok(sample)
}
