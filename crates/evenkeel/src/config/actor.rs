//! `[actor]`: the workers that run the queues' actors.

use std::num::NonZeroUsize;

use evenkeel_actor::ActorSystemConfig;

use super::reader::Section;
use super::value::Integer;

/// Maximum of `worker_batch`, so that a long handler delays few of the actors behind it.
const WORKER_BATCH_MAX: i64 = 64;

pub(super) fn read(section: &mut Section<'_>) -> ActorSystemConfig {
    let workers_max = Integer(ActorSystemConfig::WORKERS_MAX as i64);
    let workers = section.optional_within("workers", Integer(1)..=workers_max);
    let batch = section.within("worker_batch", Integer(1), Integer(1)..=Integer(WORKER_BATCH_MAX));
    let defaults = ActorSystemConfig::default();
    let workers = workers.and_then(|workers| NonZeroUsize::new(workers.as_usize()));
    ActorSystemConfig {
        workers,
        workers_max: workers.unwrap_or(defaults.workers_max),
        worker_batch: NonZeroUsize::new(batch.as_usize()).unwrap_or(defaults.worker_batch),
        ..defaults
    }
}
