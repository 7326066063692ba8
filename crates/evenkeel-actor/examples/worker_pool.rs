//! A pool of workers that fail now and then: their parent restarts them, and later jobs are handled as usual.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorError, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props,
    Reply, Signal,
};

/// A number to be squared.
struct Job {
    number: u64,
    reply: Reply<u64>,
}

struct Worker;

impl Actor for Worker {
    type Msg = Job;

    fn receive(&mut self, job: Job, _ctx: &mut Context<'_, Self>) -> HandlerResult<Job> {
        assert!(!job.number.is_multiple_of(13), "thirteens are unlucky");
        if job.number.is_multiple_of(7) {
            return Err(ActorError::new("sevens are too hard"));
        }
        // Fails if the asker no longer waits.
        let _ = job.reply.send(job.number * job.number);
        Ok(Flow::Continue)
    }
}

/// Distributes jobs to its workers in turn.
struct Pool {
    workers: Vec<ActorRef<Job>>,
    next: usize,
}

impl Actor for Pool {
    type Msg = Job;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<Job> {
        let props = Props::new(|| Worker).build();
        for _ in 0..4 {
            let worker = ctx.spawn(&props).map_err(|error| ActorError::new(error.to_string()))?;
            self.workers.push(worker);
        }
        Ok(Flow::Continue)
    }

    fn receive(&mut self, job: Job, _ctx: &mut Context<'_, Self>) -> HandlerResult<Job> {
        self.workers[self.next].tell(job);
        self.next = (self.next + 1) % self.workers.len();
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Job> {
        if let Signal::ChildFailed(failure) = signal {
            println!("worker {}: {}", failure.child, failure.error);
        }
        Ok(Flow::Continue)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let worker_threads = NonZeroUsize::new(2).ok_or("the number of worker threads is zero")?;
    let runtime = TokioRuntime::current().ok_or("no current Tokio runtime")?;
    let system = ActorSystemRunner::new(ActorSystemConfig::with_workers(worker_threads)).start(runtime)?;

    let supervision =
        Supervision::default().with_backoff(Backoff::NONE).with_max_restarts(100, Duration::from_secs(1))?;
    // Applies to the pool's children, the workers.
    let pool_props = Props::new(|| Pool { workers: vec![], next: 0 }).supervise(supervision).build();
    let pool = system.spawn(&pool_props)?;

    let mut done = 0;
    let mut failed = 0;
    for number in 1..=100 {
        match pool.ask(|reply| Job { number, reply }).await {
            Ok(square) => {
                assert_eq!(square, number * number);
                done += 1;
            }
            Err(_no_reply) => failed += 1,
        }
    }
    println!("{done} jobs done, {failed} failed, {} actors alive", system.alive());

    system.graceful_shutdown(Duration::from_secs(1)).await;
    Ok(())
}
