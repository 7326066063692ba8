//! Uses of the actor runtime whose costs valgrind counts: instructions per message, and bytes of heap per actor.
//!
//! A case runs on one worker of a [`TestRuntime`], in virtual time and in an order that does not depend on the machine, so
//! its instructions and allocations are the same in each run. `cargo xtask bench actor-costs` runs every case with
//! [`CostCase::count`] and with twice as many; the difference excludes the cost of the start.

mod instructions;
mod memory;

use std::future::{Future, poll_fn};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use evenkeel_actor::runtime::test::{TestOptions, TestRuntime};
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, MailboxOptions,
    Props, ReadyQueueScheduler, Reply,
};

/// One use of the runtime, to be run in a process of its own.
#[derive(Clone, Copy, Debug)]
pub struct CostCase {
    /// The measured cost.
    pub kind: CostKind,
    /// The name, unique among the cases of its kind.
    pub name: &'static str,
    /// The smaller of the two counts, a multiple of 64.
    pub count: u32,
    /// A description of one unit.
    pub about: &'static str,
    /// Runs the case with `count` messages, actors or other units.
    pub run: fn(u32),
}

/// The cost that a case is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostKind {
    /// Instructions per message.
    Instructions,
    /// Bytes of heap per actor.
    Memory,
}

impl CostKind {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Memory => "memory",
        }
    }
}

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = CostCase> {
    instructions::CASES.iter().chain(memory::CASES).copied()
}

/// A system with one worker in virtual time.
struct Rig {
    system: ReadyQueueScheduler,
    runtime: TestRuntime,
}

impl Rig {
    fn new() -> Self {
        Self::with(ActorSystemConfig::with_workers(NonZeroUsize::MIN))
    }

    fn with(config: ActorSystemConfig) -> Self {
        // A slice ends only when no actor is ready, so that the test runtime's own work is a small part.
        let options = TestOptions {
            steps_max: u64::MAX,
            runs_per_slice: NonZeroU32::MAX,
            messages_per_run: NonZeroU32::new(64).expect("64 is not zero"),
            ..TestOptions::new(1)
        };
        let runtime = TestRuntime::with(options);
        let system = ActorSystemRunner::new(config).start(runtime.handle());
        let rig = Self { system: system.expect("the configuration is valid"), runtime };
        rig.run();
        rig
    }

    fn run(&self) {
        self.runtime.run_until_idle();
    }

    /// Spawns an actor and runs it until it is idle.
    fn spawn<A: Actor>(&self, actor: A) -> ActorRef<A::Msg> {
        self.spawn_with(actor, &Props::of_values().build())
    }

    fn spawn_with<A: Actor>(&self, actor: A, props: &Props<A>) -> ActorRef<A::Msg> {
        let spawned = self.system.spawn_value(actor, props).expect("the actor limit is not reached");
        self.run();
        spawned
    }

    /// Spawns a counting actor.
    fn counter(&self, count: &Count, mailbox: MailboxOptions) -> ActorRef<CounterMessage> {
        self.spawn_with(Counter::new(count), &Props::of_values().mailbox(mailbox).build())
    }

    /// Runs a task on the system's worker until nothing is ready.
    fn run_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.system.spawn_task(task).expect("the actor limit is not reached");
        self.run();
    }
}

/// Lets the other actors run first.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Number of events, counted by the actors of one case.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Count {
    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Fails a run that did not do its work, because its cost would be meaningless.
    #[track_caller]
    fn assert(&self, expected: u32) {
        assert_eq!(self.0.load(Ordering::Relaxed), expected, "number of events");
    }
}

/// An actor with a state of 40 bytes, as in the comparison of actor runtimes.
struct Counter {
    count: Count,
    _state: [u64; 4],
}

enum CounterMessage {
    Add,
    Get(Reply<u32>),
}

impl Counter {
    fn new(count: &Count) -> Self {
        Self { count: count.clone(), _state: [0; 4] }
    }
}

impl Actor for Counter {
    type Msg = CounterMessage;

    fn receive(
        &mut self,
        message: CounterMessage,
        _: &mut Context<'_, Self>,
    ) -> HandlerResult<CounterMessage> {
        self.count.add_one();
        match message {
            CounterMessage::Add => {}
            CounterMessage::Get(reply) => drop(reply.send(1)),
        }
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_does_its_work() {
        for case in cases() {
            // Asserts that all of it was done.
            (case.run)(64);
        }
    }

    #[test]
    fn a_counter_has_40_bytes_of_state() {
        assert_eq!(size_of::<Counter>(), 40);
    }
}
