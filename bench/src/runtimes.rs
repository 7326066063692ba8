//! Runtime adapters, one file each.

mod actix;
mod beam;
mod crossbeam_threads;
mod evenkeel;
mod kameo;
mod ractor;
mod seed_sketch;
mod tokio_mpsc;
mod xtra;

use std::num::NonZeroUsize;

use tokio::runtime::{Builder, Runtime as Tokio};

use crate::sample::SampleError;
use crate::workload::{Contender, run, run_flat};

/// All runtimes, the baseline first.
pub const ALL: &[Contender] = &[
    Contender { name: "tokio-mpsc", about: "a tokio task per actor", run: run::<tokio_mpsc::TokioMpsc> },
    Contender {
        name: "evenkeel",
        about: "this project; tasks on the actors' workers",
        run: run::<evenkeel::Evenkeel>,
    },
    Contender {
        name: "evenkeel-tokio",
        about: "this project; tasks as plain tokio tasks",
        run: run::<evenkeel::EvenkeelTokio>,
    },
    Contender {
        name: "crossbeam-threads",
        about: "a thread per actor",
        run: run_flat::<crossbeam_threads::CrossbeamThreads>,
    },
    Contender { name: "actix", about: "actix 0.13, an arbiter per worker", run: run::<actix::Actix> },
    Contender { name: "ractor", about: "ractor 0.16", run: run::<ractor::Ractor> },
    Contender { name: "kameo", about: "kameo 0.22", run: run::<kameo::Kameo> },
    Contender { name: "xtra", about: "xtra 0.6", run: run::<xtra::Xtra> },
    Contender {
        name: "seed-sketch",
        about: "the scheduler sketch of the specification, built literally",
        run: run::<seed_sketch::SeedSketch>,
    },
    Contender { name: "beam", about: "the installed Erlang/OTP, a process per actor", run: beam::run },
];

/// Builds the tokio runtime that most adapters run on.
fn tokio_runtime(workers: NonZeroUsize) -> Result<Tokio, SampleError> {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(workers.get()).enable_all().build();
    built.map_err(|error| SampleError::Failed(format!("tokio did not start: {error}")))
}
