//! Inline runs: a worker runs the asked actor within the run of the asking one if it would run next anyway. The results
//! must be the same as without inline runs.

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
const ASKS: u64 = 10_000;

/// Adds up numbers and reports the sum; a link with a successor asks the successor before it replies.
struct Link {
    sum: u64,
    next: Option<ActorRef<LinkMsg>>,
}

enum LinkMsg {
    Add(u64),
    Read(Reply<u64>),
    Answered(Reply<u64>, u64),
    Panic(Reply<u64>),
    Keep(Reply<u64>),
    /// Blocks the worker's thread until the channel closes.
    Block(std::sync::mpsc::Receiver<()>, Reply<u64>),
}

impl Actor for Link {
    type Msg = LinkMsg;

    fn receive(&mut self, message: LinkMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<LinkMsg> {
        match message {
            LinkMsg::Add(number) => self.sum += number,
            LinkMsg::Read(reply) => match self.next.clone() {
                None => drop(reply.send(self.sum)),
                Some(next) => {
                    return Ok(Flow::wait(async move {
                        let answer = next.ask(LinkMsg::Read).await;
                        LinkMsg::Answered(reply, answer.unwrap_or(u64::MAX))
                    }));
                }
            },
            LinkMsg::Answered(reply, answer) => drop(reply.send(answer + 1)),
            LinkMsg::Panic(_reply) => panic!("on purpose"),
            LinkMsg::Keep(reply) => {
                let me = ctx.me();
                return Ok(Flow::wait(async move {
                    std::future::pending::<()>().await;
                    drop(me);
                    LinkMsg::Answered(reply, 0)
                }));
            }
            LinkMsg::Block(until, reply) => {
                let _closed = until.recv();
                let _ = reply.send(0);
            }
        }
        Ok(Flow::Continue)
    }
}

fn system(workers: usize) -> ReadyQueueScheduler {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(workers).unwrap());
    ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap()
}

fn link(system: &ReadyQueueScheduler, next: Option<ActorRef<LinkMsg>>) -> ActorRef<LinkMsg> {
    system.spawn_value(Link { sum: 0, next }, &Props::of_values().build()).unwrap()
}

/// Runs a task on the workers; returns its output and the number of polls.
async fn run_as_task<T: Send + 'static>(
    system: &ReadyQueueScheduler,
    task: impl Future<Output = T> + Send + 'static,
) -> (T, u64) {
    let (sender, receiver) = oneshot::channel();
    let polls = Arc::new(AtomicU64::new(0));
    let counted = polls.clone();
    let task = async move {
        let mut task = pin!(task);
        let done = std::future::poll_fn(|cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            task.as_mut().poll(cx)
        });
        drop(sender.send(done.await));
    };
    system.spawn_task(task).unwrap();
    let done = timeout(CASE_MAX, receiver).await.expect("done in time").unwrap();
    (done, polls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn most_asks_are_answered_without_waiting_and_all_correctly() {
    let system = system(1);
    let actor = link(&system, None);
    let target = actor.clone();
    let (sum, polls) = run_as_task(&system, async move {
        let mut sum = 0;
        for number in 0..ASKS {
            target.tell(LinkMsg::Add(1));
            sum = target.ask(LinkMsg::Read).await.unwrap();
            assert_eq!(sum, number + 1);
        }
        sum
    })
    .await;
    assert_eq!(sum, ASKS);
    assert!(polls < ASKS / 2, "polled {polls} times");
}

#[tokio::test]
async fn a_task_that_asks_continuously_does_not_starve_others() {
    let system = system(1);
    let target = link(&system, None);
    let other = link(&system, None);
    let stop = Arc::new(AtomicU64::new(0));
    let stopped = stop.clone();
    let asking = system.spawn_task(async move {
        while stopped.load(Ordering::Relaxed) == 0 {
            target.ask(LinkMsg::Read).await.unwrap();
        }
    });
    asking.unwrap();
    for number in 1..=100 {
        other.tell(LinkMsg::Add(1));
        let read = timeout(CASE_MAX, other.ask(LinkMsg::Read)).await.expect("served in time");
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
        let (answer, _) = run_as_task(&system, async move { first.ask(LinkMsg::Read).await }).await;
        assert_eq!(answer, Ok(LINKS));
    }
}

#[tokio::test]
async fn an_actor_that_panics_in_an_inline_run_does_not_fail_its_asker() {
    let system = system(1);
    let actor = link(&system, None);
    let ((lost, after), _) = run_as_task(&system, async move {
        warm_up(&actor).await;
        (actor.ask(LinkMsg::Panic).await, actor.ask(LinkMsg::Read).await)
    })
    .await;
    assert_eq!((lost, after.is_ok()), (Err(AskError::NoReply), false));
}

#[tokio::test]
async fn the_deadline_of_one_ask_holds_while_others_are_answered_inline() {
    let system = system(1);
    let silent = link(&system, None);
    let quick = link(&system, None);
    let (answers, _) = run_as_task(&system, async move {
        warm_up(&quick).await;
        let mut unanswered = pin!(silent.ask(LinkMsg::Keep).within(Duration::from_millis(50)));
        let mut read = pin!(quick.ask(LinkMsg::Read));
        let mut quickly = None;
        let late = std::future::poll_fn(|cx| {
            let late = unanswered.as_mut().poll(cx);
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
async fn an_explicit_deadline_holds_even_if_the_handler_never_returns() {
    let system = system(2);
    let actor = link(&system, None);
    let (release, until) = std::sync::mpsc::channel();
    let (answer, _) = run_as_task(&system, async move {
        warm_up(&actor).await;
        actor.ask(|reply| LinkMsg::Block(until, reply)).within(Duration::from_millis(20)).await
    })
    .await;
    assert_eq!(answer, Err(AskError::TimedOut));
    drop(release);
}

/// Asks until the worker has measured that handlers are short.
async fn warm_up(actor: &ActorRef<LinkMsg>) {
    for _ in 0..1_000 {
        actor.ask(LinkMsg::Read).await.unwrap();
    }
}
