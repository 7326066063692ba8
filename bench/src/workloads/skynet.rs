//! A tree of actors that spawn actors, with a leaf for every number, summed up.

use std::sync::mpsc;

use crate::harness::Harness;
use crate::sample::{NoSample, Sample};
use crate::settings::Settings;
use crate::skynet::{CHILDREN, Parent, Skynet, start};

const LEAVES: u64 = 1_000_000;

pub(crate) fn run<R: Skynet>(settings: &Settings) -> Result<Sample, NoSample> {
    let mut stage = Harness::<R>::set(settings)?;
    let level = level(settings);
    let leaves = CHILDREN.pow(level);
    let (answered, answer) = mpsc::channel();
    let take = stage.start()?;
    let root = stage.runtime.spawn_root();
    R::tell_node(&root, start(&root, level, 0, Parent::Workload(answered)));
    let sum = answer.recv();
    let sample = stage.stop(take, leaves)?;
    let expected = leaves * (leaves - 1) / 2;
    if sum != Ok(expected) {
        return Err(NoSample::Failed(format!("the sum of the leaves was {sum:?}, not {expected}")));
    }
    Ok(sample)
}

/// How many levels are below the root: a whole number, at least one.
pub(crate) fn level(settings: &Settings) -> u32 {
    settings.scaled(LEAVES).max(CHILDREN).ilog(CHILDREN)
}
