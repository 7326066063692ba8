//! The interface of a runtime adapter.

use std::future::Future;

use tokio::runtime::Handle;

use crate::counter::Counter;
use crate::sample::SampleError;
use crate::settings::Settings;

/// A runtime for actors and tasks.
///
/// It is never shut down: a run ends with its process.
pub trait Runtime: Sized + Send + Sync + 'static {
    /// Address of an actor with a [`Counter`].
    type Addr: Clone + Send + Sync + 'static;

    /// Largest practical number of actors; workloads that ask for more get this many.
    const ACTORS_MAX: usize = usize::MAX;

    /// Starts the runtime; fails if it does not support a setting.
    fn start(settings: &Settings) -> Result<Self, SampleError>;

    /// Spawns a future as a task of the runtime.
    ///
    /// `thread` assigns it to a thread, modulo the number of workers, if the runtime cannot move tasks between threads.
    fn spawn_task(&self, thread: usize, task: impl Future<Output = ()> + Send + 'static);

    /// Spawns an actor that calls [`Counter::on_start`] first and then [`Counter::on_tell`] or [`Counter::on_ask`] for
    /// each message.
    ///
    /// Its mailbox is configured by the settings; `thread` is as for tasks.
    fn spawn_actor(&self, thread: usize, counter: Counter) -> Self::Addr;

    /// Sends a message without a reply; waits only while a bounded mailbox is full.
    fn tell(addr: &Self::Addr, value: u64) -> impl Future<Output = ()> + Send;

    /// Sends a message and waits for the reply.
    fn ask(addr: &Self::Addr, value: u64) -> impl Future<Output = u64> + Send;

    /// Yields to other tasks, so that a busy producer does not monopolize its worker.
    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    /// Returns the tokio runtime that the actors run on, if any; the echo server needs one.
    fn tokio(&self) -> Option<&Handle> {
        None
    }
}
