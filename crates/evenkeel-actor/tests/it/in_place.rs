//! An actor that is asked by another runs in its place when it would be the next anyway: what that must not change.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;
use tokio::sync::oneshot;
use tokio::time::timeout;

const CASE_MAX: Duration = Duration::from_secs(30);
const QUESTIONS: u64 = 10_000;

/// Adds up what it is told and says so when asked; asks the next one, if it has one, before it answers.
struct Link {
    sum: u64,
    next: Option<ActorRef<Told>>,
}

enum Told {
    Add(u64),
    Read(Reply<u64>),
    Answered(Reply<u64>, u64),
    Panic(Reply<u64>),
    Keep(Reply<u64>),
    /// Waits for the channel to close, on its worker's thread.
    Block(std::sync::mpsc::Receiver<()>, Reply<u64>),
}

impl Actor for Link {
    type Msg = Told;

    fn receive(&mut self, told: Told, ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        match told {
            Told::Add(number) => self.sum += number,
            Told::Read(reply) => match self.next.clone() {
                None => drop(reply.send(self.sum)),
                Some(next) => {
                    return Ok(Flow::wait(async move {
                        let answer = next.ask(Told::Read).await;
                        Told::Answered(reply, answer.unwrap_or(u64::MAX))
                    }));
                }
            },
            Told::Answered(reply, answer) => drop(reply.send(answer + 1)),
            Told::Panic(_reply) => panic!("on purpose"),
            Told::Keep(reply) => {
                let me = ctx.me();
                return Ok(Flow::wait(async move {
                    std::future::pending::<()>().await;
                    drop(me);
                    Told::Answered(reply, 0)
                }));
            }
            Told::Block(until, reply) => {
                let _closed = until.recv();
                let _late = reply.send(0);
            }
        }
        Ok(Flow::Continue)
    }
}

fn system(workers: usize) -> ReadyQueueScheduler {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(workers).unwrap());
    ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap()
}

fn link(system: &ReadyQueueScheduler, next: Option<ActorRef<Told>>) -> ActorRef<Told> {
    system.spawn_value(Link { sum: 0, next }, &Props::of_values().build()).unwrap()
}

/// Runs a task among the actors; tells what it came to and how often it was polled.
async fn among_actors<T: Send + 'static>(
    system: &ReadyQueueScheduler,
    task: impl Future<Output = T> + Send + 'static,
) -> (T, u64) {
    let (tell, told) = oneshot::channel();
    let polls = Arc::new(AtomicU64::new(0));
    let counted = polls.clone();
    let task = async move {
        let mut task = pin!(task);
        let done = std::future::poll_fn(|cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            task.as_mut().poll(cx)
        });
        drop(tell.send(done.await));
    };
    system.spawn_task(task).unwrap();
    let done = timeout(CASE_MAX, told).await.expect("done in time").unwrap();
    (done, polls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn most_asks_are_answered_without_waiting_and_all_correctly() {
    let system = system(1);
    let actor = link(&system, None);
    let asked = actor.clone();
    let (sum, polls) = among_actors(&system, async move {
        let mut sum = 0;
        for number in 0..QUESTIONS {
            asked.tell(Told::Add(1));
            sum = asked.ask(Told::Read).await.unwrap();
            assert_eq!(sum, number + 1);
        }
        sum
    })
    .await;
    assert_eq!(sum, QUESTIONS);
    assert!(polls < QUESTIONS / 2, "polled {polls} times");
}

#[tokio::test]
async fn a_task_that_asks_continuously_does_not_starve_others() {
    let system = system(1);
    let asked = link(&system, None);
    let other = link(&system, None);
    let stop = Arc::new(AtomicU64::new(0));
    let stopped = stop.clone();
    let asking = system.spawn_task(async move {
        while stopped.load(Ordering::Relaxed) == 0 {
            asked.ask(Told::Read).await.unwrap();
        }
    });
    asking.unwrap();
    for number in 1..=100 {
        other.tell(Told::Add(1));
        let read = timeout(CASE_MAX, other.ask(Told::Read)).await.expect("served in time");
        assert_eq!(read, Ok(number));
    }
    stop.store(1, Ordering::Relaxed);
}

#[tokio::test]
async fn a_chain_of_asks_of_any_length_is_answered() {
    const LINKS: u64 = 50_000;
    let system = system(1);
    let first = (0..LINKS).fold(link(&system, None), |next, _| link(&system, Some(next)));
    for _ in 0..3 {
        let first = first.clone();
        let (answer, _) = among_actors(&system, async move { first.ask(Told::Read).await }).await;
        assert_eq!(answer, Ok(LINKS));
    }
}

#[tokio::test]
async fn an_actor_that_panics_while_run_in_place_does_not_fail_its_asker() {
    let system = system(1);
    let actor = link(&system, None);
    let ((lost, after), _) = among_actors(&system, async move {
        warm_up(&actor).await;
        (actor.ask(Told::Panic).await, actor.ask(Told::Read).await)
    })
    .await;
    assert_eq!((lost, after.is_ok()), (Err(AskError::NoReply), false));
}

#[tokio::test]
async fn the_deadline_of_one_ask_holds_while_others_are_answered_in_place() {
    let system = system(1);
    let silent = link(&system, None);
    let quick = link(&system, None);
    let (answers, _) = among_actors(&system, async move {
        warm_up(&quick).await;
        let mut kept = pin!(silent.ask(Told::Keep).within(Duration::from_millis(50)));
        let mut read = pin!(quick.ask(Told::Read));
        let mut quickly = None;
        let late = std::future::poll_fn(|cx| {
            let late = kept.as_mut().poll(cx);
            if quickly.is_none()
                && let Poll::Ready(read) = read.as_mut().poll(cx)
            {
                quickly = Some(read);
            }
            late
        });
        (late.await, quickly)
    })
    .await;
    assert_eq!(answers, (Err(AskError::TimedOut), Some(Ok(0))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explicit_deadline_holds_although_the_handler_never_returns() {
    let system = system(2);
    let actor = link(&system, None);
    let (release, until) = std::sync::mpsc::channel();
    let (answer, _) = among_actors(&system, async move {
        warm_up(&actor).await;
        actor.ask(|reply| Told::Block(until, reply)).within(Duration::from_millis(20)).await
    })
    .await;
    assert_eq!(answer, Err(AskError::TimedOut));
    drop(release);
}

/// Asks until the worker knows that handlers are short.
async fn warm_up(actor: &ActorRef<Told>) {
    for _ in 0..1_000 {
        actor.ask(Told::Read).await.unwrap();
    }
}
