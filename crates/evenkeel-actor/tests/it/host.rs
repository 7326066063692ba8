//! The host runtime from outside: systems driven from plain threads, hosts without a timer, hosts that are dropped first,
//! and handlers that block a thread of the host.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::runtime::{RuntimeHandle, block_on};
use evenkeel_actor::*;
use tokio::runtime::{Builder, Runtime};

const CASE_MAX: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// An actor that counts its drops, with messages that keep it busy in different ways.
struct Guest {
    dropped: Arc<AtomicUsize>,
    replies: Vec<Reply<u32>>,
}

enum GuestMsg {
    Answer(Reply<u32>),
    /// Keeps the reply without an answer.
    Keep(Reply<u32>),
    /// Sets a timer that answers.
    Later(Reply<u32>),
    Child(Reply<ActorRef<GuestMsg>>),
    Await,
    Suspend,
    /// Reports that the handler runs, then blocks its thread until the sender is dropped.
    Block(mpsc::Sender<()>, mpsc::Receiver<()>),
    /// Asks the others to answer, then blocks like `Block`.
    TellAndBlock(Vec<ActorRef<GuestMsg>>, mpsc::Sender<()>, mpsc::Receiver<()>),
    /// Reports to the channel.
    Report(mpsc::Sender<()>),
}

impl Actor for Guest {
    type Msg = GuestMsg;

    fn receive(&mut self, message: GuestMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<GuestMsg> {
        match message {
            GuestMsg::Answer(reply) => reply.send(1).unwrap_or_default(),
            GuestMsg::Keep(reply) => self.replies.push(reply),
            GuestMsg::Later(reply) => {
                self.replies.push(reply);
                assert!(ctx.set_timer(TimerId(1), 2 * MS, Repeat::Once));
            }
            GuestMsg::Child(reply) => {
                let dropped = self.dropped.clone();
                let child =
                    ctx.spawn(&guest(&dropped)).map_err(|error| ActorError::new(error.to_string()))?;
                drop(reply.send(child)); // the asker may have given up
            }
            GuestMsg::Await => return Ok(Flow::wait(std::future::pending())),
            GuestMsg::Suspend => {
                let forever = ResumeCondition::ExternalSignal(ctx.signal_key());
                return Ok(Flow::Suspend(SuspendReason::UserDefined, forever));
            }
            GuestMsg::Block(running, until) => {
                let _ = running.send(());
                let _closed = until.recv();
            }
            GuestMsg::TellAndBlock(others, report, until) => {
                others.iter().for_each(|other| other.tell(GuestMsg::Report(report.clone())));
                let _closed = until.recv();
            }
            GuestMsg::Report(report) => report.send(()).unwrap_or_default(),
        }
        Ok(Flow::Continue)
    }

    fn signal(&mut self, _signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<GuestMsg> {
        self.replies.drain(..).for_each(|reply| reply.send(2).unwrap_or_default());
        Ok(Flow::Continue)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn guest(dropped: &Arc<AtomicUsize>) -> Props<Guest> {
    let dropped = dropped.clone();
    Props::new(move || Guest { dropped: dropped.clone(), replies: Vec::new() }).build()
}

fn tokio_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

fn start(runtime: &Runtime) -> ReadyQueueScheduler {
    let runtime = TokioRuntime::new(runtime.handle().clone());
    ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime).unwrap()
}

#[test]
fn asks_timers_and_the_shutdown_work_on_a_plain_thread() {
    let runtime = tokio_runtime();
    let system = start(&runtime);
    let actor = system.spawn(&guest(&Arc::default())).unwrap();
    assert_eq!(block_on(actor.ask(GuestMsg::Answer)), Ok(1));
    assert_eq!(block_on(actor.ask(GuestMsg::Later)), Ok(2));
    assert_eq!(block_on(actor.ask(GuestMsg::Keep).within(2 * MS)), Err(AskError::TimedOut));
    let host = TokioRuntime::new(runtime.handle().clone());
    let due = host.now() + 2 * MS;
    block_on(host.sleep_until(due));
    assert!(due <= host.now());
    let report = block_on(system.graceful_shutdown(CASE_MAX));
    assert_eq!(report, ShutdownReport { drained: true, abandoned: 0 });
}

#[test]
fn only_a_task_of_the_host_is_reported_as_one() {
    let runtime = tokio_runtime();
    let host = TokioRuntime::new(runtime.handle().clone());
    let in_task = host.clone();
    assert!(runtime.block_on(runtime.spawn(async move { in_task.is_host_task() })).unwrap());
    assert!(!runtime.block_on(async { host.is_host_task() }), "a thread that waits for a future is no task");
    assert!(!host.is_host_task());
}

#[test]
fn a_tokio_runtime_without_a_time_driver_is_rejected() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let host = TokioRuntime::new(runtime.handle().clone());
    let error = ActorSystemRunner::new(ActorSystemConfig::default()).start(host).map(drop).unwrap_err();
    assert_eq!(error, StartError::NoTimer);
    let expected = "the runtime has no time driver; build it with enable_time or enable_all";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_system_does_not_start_on_a_runtime_that_was_dropped() {
    let runtime = tokio_runtime();
    let host = TokioRuntime::new(runtime.handle().clone());
    drop(runtime);
    let error = ActorSystemRunner::new(ActorSystemConfig::default()).start(host).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the runtime accepts no more tasks");
}

/// Starts a system with actors in every state, drops its runtime, and checks that nothing is left.
fn drop_host_first(runtime: Runtime) {
    let system = start(&runtime);
    let dropped = Arc::new(AtomicUsize::new(0));
    let actors: Vec<_> = (0..40).map(|_| system.spawn(&guest(&dropped)).unwrap()).collect();
    let mut open = Box::pin(actors[2].ask(GuestMsg::Keep).within(CASE_MAX));
    runtime.block_on(async {
        for actor in &actors {
            for _ in 0..2 {
                assert!(actor.ask(GuestMsg::Child).await.is_ok());
            }
        }
        actors.iter().step_by(4).for_each(|actor| actor.tell(GuestMsg::Await));
        actors.iter().skip(1).step_by(4).for_each(|actor| actor.tell(GuestMsg::Suspend));
        assert!(poll(&mut open).is_pending());
        assert_eq!(actors[2].ask(GuestMsg::Answer).await, Ok(1));
    });
    // The first of them never handles it.
    assert_eq!(actors[0].try_tell(GuestMsg::Await).ok(), Some(SendOutcome::Queued));
    drop(runtime);
    assert_eq!(dropped.load(Ordering::SeqCst), 120, "every actor is dropped");
    assert_eq!((system.alive(), system.lifecycle()), (0, Lifecycle::Stopped));
    assert_eq!(poll(&mut open), Poll::Ready(Err(AskError::HostGone)));
    let before = system.dead_letters_total();
    assert!(before >= 1, "the queued message is dead-lettered");
    for actor in &actors {
        assert_eq!(actor.state(), ActorState::Stopped);
        assert!(matches!(actor.try_tell(GuestMsg::Await), Err(SendError::HostGone(GuestMsg::Await))));
        assert_eq!(block_on(actor.ask(GuestMsg::Answer)), Err(AskError::HostGone));
        assert!(matches!(block_on(actor.send(GuestMsg::Await)), Err(SendError::HostGone(_))));
        actor.tell(GuestMsg::Await);
    }
    assert_eq!(system.dead_letters_total(), before + 40);
    let letters = system.take_dead_letters();
    assert!(letters.iter().all(|letter| letter.reason == DeadLetterReason::HostGone), "{letters:?}");
    assert_eq!(system.spawn(&guest(&dropped)).err(), Some(SpawnError::Stopping));
    let report = block_on(system.graceful_shutdown(CASE_MAX));
    assert_eq!(report, ShutdownReport { drained: false, abandoned: 0 });
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

#[test]
fn a_multi_threaded_host_that_is_dropped_first_ends_the_system() {
    drop_host_first(tokio_runtime());
}

#[test]
fn a_current_thread_host_that_is_dropped_first_ends_the_system() {
    drop_host_first(Builder::new_current_thread().enable_time().build().unwrap());
}

#[test]
fn a_host_that_is_dropped_first_does_not_leave_a_shutdown_waiting() {
    let runtime = tokio_runtime();
    let system = start(&runtime);
    let dropped = Arc::new(AtomicUsize::new(0));
    let actor = system.spawn(&guest(&dropped)).unwrap();
    actor.tell(GuestMsg::Await);
    assert_eq!(
        runtime.block_on(async { actor.ask(GuestMsg::Child).within(2 * MS).await }).err(),
        Some(AskError::TimedOut)
    );
    let waiting = system.clone();
    let shutdown = std::thread::spawn(move || block_on(waiting.graceful_shutdown(CASE_MAX)));
    drop(runtime);
    // The shutdown may see the actor just before or after the host drops it.
    assert!(!shutdown.join().unwrap().drained);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn an_actor_in_a_handler_when_its_host_is_dropped_ends_after_the_handler() {
    let runtime = tokio_runtime();
    let system = start(&runtime);
    let dropped = Arc::new(AtomicUsize::new(0));
    let actors: Vec<_> = (0..8).map(|_| system.spawn(&guest(&dropped)).unwrap()).collect();
    let (running, runs) = mpsc::channel();
    let (release, until) = mpsc::channel();
    actors[0].tell(GuestMsg::Block(running, until));
    runs.recv_timeout(CASE_MAX).unwrap();
    let host = std::thread::spawn(move || drop(runtime));
    drop(release);
    host.join().unwrap();
    assert_eq!((dropped.load(Ordering::SeqCst), system.alive()), (8, 0));
}

#[test]
fn a_system_has_as_many_workers_as_its_runtime_has_threads() {
    let workers = |runtime: Runtime| start(&runtime).workers().get();
    assert_eq!(workers(tokio_runtime()), 2);
    let four = Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    assert_eq!(workers(four), 4);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let one = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    assert_eq!(workers(one), cores.min(2));
    assert_eq!(workers(Builder::new_current_thread().enable_time().build().unwrap()), 1);
}

/// The neighbours have started and are idle when the blocking handler schedules them, so they are in its worker's queue and LIFO
/// slot. The handler returns only after all of them have run.
#[test]
fn neighbours_of_a_blocked_handler_are_run_by_another_worker() {
    let runtime = tokio_runtime();
    let system = start(&runtime);
    for count in 1..6 {
        let dropped = Arc::default();
        let neighbours: Vec<_> = (0..count).map(|_| system.spawn(&guest(&dropped)).unwrap()).collect();
        let blocker = system.spawn(&guest(&dropped)).unwrap();
        for neighbour in &neighbours {
            assert_eq!(block_on(neighbour.ask(GuestMsg::Answer)), Ok(1));
        }
        let (report, reports) = mpsc::channel();
        let (release, until) = mpsc::channel();
        blocker.tell(GuestMsg::TellAndBlock(neighbours, report, until));
        for _ in 0..count {
            assert_eq!(
                reports.recv_timeout(CASE_MAX),
                Ok(()),
                "{count} neighbours wait for the blocked handler"
            );
        }
        drop(release);
    }
}
