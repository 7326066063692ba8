//! A tree of actors that spawn actors; the result is the sum of the leaves' numbers.

use std::sync::mpsc;

use crate::harness::Harness;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;
use crate::skynet::{CHILDREN, Parent, Skynet, start};

const LEAVES: u64 = 1_000_000;

pub(crate) fn run<R: Skynet>(settings: &Settings) -> Result<Sample, SampleError> {
    let mut harness = Harness::<R>::start(settings)?;
    let level = level(settings);
    let leaves = CHILDREN.pow(level);
    let (result, sum) = mpsc::channel();
    let measurement = harness.begin()?;
    let root = harness.runtime.spawn_root();
    R::tell_node(&root, start(&root, level, 0, Parent::Workload(result)));
    let sum = sum.recv();
    let sample = harness.finish(measurement, leaves)?;
    let expected = leaves * (leaves - 1) / 2;
    if sum != Ok(expected) {
        return Err(SampleError::Failed(format!("the sum of the leaves was {sum:?}, not {expected}")));
    }
    Ok(sample)
}

/// Returns the number of levels below the root, at least one.
pub(crate) fn level(settings: &Settings) -> u32 {
    settings.scaled(LEAVES).max(CHILDREN).ilog(CHILDREN)
}
