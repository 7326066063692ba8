//! What a runtime must offer to be measured.

use std::future::Future;

use tokio::runtime::Handle;

use crate::counter::Counter;
use crate::sample::NoSample;
use crate::settings::Settings;

/// A runtime in which actors and tasks live.
///
/// It is never shut down: a run ends with its process.
pub trait Runtime: Sized + Send + Sync + 'static {
    /// The address of an actor around a [`Counter`].
    type Addr: Clone + Send + Sync + 'static;

    /// The most actors worth trying; workloads that want more make do with so many.
    const ACTORS_MAX: usize = usize::MAX;

    /// Starts the runtime, or says which setting it cannot honour.
    fn start(settings: &Settings) -> Result<Self, NoSample>;

    /// Runs a future as a task of the runtime.
    ///
    /// `lane` spreads tasks over threads where the runtime cannot move them by itself.
    fn spawn_task(&self, lane: usize, task: impl Future<Output = ()> + Send + 'static);

    /// Spawns an actor that calls [`Counter::on_start`] first and then [`Counter::on_tell`] or [`Counter::on_ask`] for
    /// each message.
    ///
    /// Its mailbox is the one of the settings; `lane` is as for tasks.
    fn spawn_actor(&self, lane: usize, counter: Counter) -> Self::Addr;

    /// Sends a message that wants no answer, and waits only for a place in a bounded mailbox.
    fn tell(addr: &Self::Addr, value: u64) -> impl Future<Output = ()> + Send;

    /// Sends a message and waits for its answer.
    fn ask(addr: &Self::Addr, value: u64) -> impl Future<Output = u64> + Send;

    /// Lets others run, so that a task that sends without end does not own its worker.
    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }

    /// Names the tokio runtime the actors run on, if they do; an echo server needs one.
    fn tokio(&self) -> Option<&Handle> {
        None
    }
}
