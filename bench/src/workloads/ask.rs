//! One task asks one actor, one question in flight.

use std::sync::mpsc;

use crate::counter::{Counter, Latch};
use crate::harness::Harness;
use crate::runtime::Runtime;
use crate::sample::{NoSample, Sample};
use crate::settings::{Settings, Switch};

pub(crate) const QUESTIONS: u64 = 200_000;

pub(crate) fn run<R: Runtime>(settings: &Settings) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let questions = settings.scaled(QUESTIONS);
    let started = Latch::new(1);
    let unused = Latch::new(1);
    let lane = if settings.colocate == Switch::On { 0 } else { 1 };
    let addr = stage.runtime.spawn_actor(lane, Counter::new(1, &started, &unused));
    started.wait();
    let (answered, answer) = mpsc::channel();
    let take = stage.start()?;
    stage.runtime.spawn_task(0, async move {
        let mut value = 0;
        for _ in 0..questions {
            value = R::ask(&addr, value).await;
        }
        // The workload waits below for as long as it takes.
        let _ = answered.send(value);
    });
    let value = answer.recv();
    let sample = stage.stop(take, questions)?;
    if value != Ok(questions) {
        return Err(NoSample::Failed(format!("the last answer was {value:?}, not {questions}")));
    }
    Ok(sample)
}
