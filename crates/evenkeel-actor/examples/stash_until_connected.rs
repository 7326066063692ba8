//! Combines stash, `Behaviour`, name registry and router: a client that is looked up by name stashes requests until it
//! is connected, then forwards them to a pool of workers.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorSystemConfig, ActorSystemRunner, Behaviour, Context, Flow, HandlerResult, Props, Reply,
    Router, RouterOptions,
};

/// Squares numbers.
struct Worker;

struct Job(u64, Reply<u64>);

impl Actor for Worker {
    type Msg = Job;

    fn receive(&mut self, Job(number, reply): Job, _ctx: &mut Context<'_, Self>) -> HandlerResult<Job> {
        // Fails if the caller has dropped its `ask` future.
        let _ = reply.send(number * number);
        Ok(Flow::Continue)
    }
}

/// Forwards requests once it is connected.
struct Client {
    behaviour: Behaviour<Self>,
    workers: Router<Job>,
}

enum Msg {
    Connect,
    Connected,
    Disconnected,
    Request(Job),
}

impl Client {
    fn connecting(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            // Stands in for a handshake.
            Msg::Connect => return Ok(Flow::wait(async { Msg::Connected })),
            Msg::Connected => {
                println!("connected, {} stashed requests", ctx.unstash_all());
                self.behaviour.replace(Self::connected);
            }
            Msg::Disconnected => {}
            request @ Msg::Request(_) => ctx.stash(request),
        }
        Ok(Flow::Continue)
    }

    fn connected(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            Msg::Request(job) => self.workers.tell(job),
            Msg::Disconnected => self.behaviour.replace(Self::connecting),
            Msg::Connect | Msg::Connected => {}
        }
        Ok(Flow::Continue)
    }
}

impl Actor for Client {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        let receive = self.behaviour.current();
        receive(self, message, ctx)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let worker_count = NonZeroUsize::new(2).ok_or("the number of workers is zero")?;
    let runtime = TokioRuntime::current().ok_or("no current Tokio runtime")?;
    let system = ActorSystemRunner::new(ActorSystemConfig::with_workers(worker_count)).start(runtime)?;

    let workers =
        system.spawn_router(&Props::new(|| Worker).build(), RouterOptions::least_mailbox(worker_count))?;
    let client = Props::new(move || Client {
        behaviour: Behaviour::new(Client::connecting),
        workers: workers.clone(),
    });
    system.names().register("squares", &system.spawn(&client.build())?)?;

    let squares = system.names().find::<Msg>("squares")?;
    let early = squares.ask(|reply| Msg::Request(Job(3, reply)));
    squares.tell(Msg::Connect);
    assert_eq!(early.await?, 9);
    assert_eq!(squares.ask(|reply| Msg::Request(Job(4, reply))).await?, 16);
    squares.tell(Msg::Disconnected);

    system.graceful_shutdown(Duration::from_secs(1)).await;
    Ok(())
}
