//! `[actor]`: the workers that run the queues' actors.

use std::num::NonZeroUsize;

use evenkeel_actor::ActorSystemConfig;

use super::reader::Section;
use super::value::Integer;

/// Maximum of `worker_batch`, which limits how many actors wait behind a long handler and cannot be stolen.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigSources};

    #[test]
    fn the_number_of_workers_depends_on_the_runtime_unless_it_is_configured() {
        let actors = read("", "2").unwrap();
        assert_eq!((actors.workers.map(NonZeroUsize::get), actors.worker_batch.get()), (Some(2), 1));
        let actors = Config::read(&ConfigSources::default()).unwrap().actor;
        assert_eq!((actors.workers, actors.worker_batch.get()), (None, 1));
    }

    #[test]
    fn the_bounds_of_workers_and_batches_are_accepted_and_numbers_beyond_are_errors() {
        let actors = read("[actor]\nworker_batch = 64\n", "1024").unwrap();
        assert_eq!((actors.workers, actors.worker_batch.get()), (NonZeroUsize::new(1024), 64));
        assert_eq!(Some(actors.workers_max), actors.workers);
        for (batch, workers, error) in [
            ("1", "0", "EVENKEEL_ACTOR_WORKERS: workers must be from 1 to 1024"),
            ("1", "1025", "EVENKEEL_ACTOR_WORKERS: workers must be from 1 to 1024"),
            ("0", "1", "evenkeel.toml:2: worker_batch must be from 1 to 64"),
            ("65", "1", "evenkeel.toml:2: worker_batch must be from 1 to 64"),
        ] {
            let text = format!("[actor]\nworker_batch = {batch}\n");
            assert_eq!(read(&text, workers).unwrap_err(), error);
        }
    }

    /// Reads a file, with `workers` set by its environment variable.
    fn read(text: &str, workers: &str) -> Result<ActorSystemConfig, String> {
        let file = Some(("evenkeel.toml".to_owned(), text.to_owned()));
        let env = [("EVENKEEL_ACTOR_WORKERS".to_owned(), workers.to_owned())].into();
        let sources = ConfigSources { file, env, ..ConfigSources::default() };
        Config::read(&sources).map(|config| config.actor).map_err(|errors| errors.to_string())
    }
}
