//! Two actors send a ball back and forth; the one that hits it last replies.

use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props, Reply,
};

struct Player {
    hits: u32,
}

struct Ball {
    hits_left: u32,
    other: ActorRef<Ball>,
    done: Reply<u32>,
}

impl Actor for Player {
    type Msg = Ball;

    fn receive(&mut self, ball: Ball, ctx: &mut Context<'_, Self>) -> HandlerResult<Ball> {
        self.hits += 1;
        match ball.hits_left.checked_sub(1) {
            Some(hits_left) => ball.other.tell(Ball { hits_left, other: ctx.me(), done: ball.done }),
            None => {
                // Fails if the asker no longer waits.
                let _ = ball.done.send(self.hits);
            }
        }
        Ok(Flow::Continue)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let workers = NonZeroUsize::new(2).ok_or("the number of workers is zero")?;
    let runtime = TokioRuntime::current().ok_or("no current Tokio runtime")?;
    let system = ActorSystemRunner::new(ActorSystemConfig::with_workers(workers)).start(runtime)?;

    let props = Props::new(|| Player { hits: 0 }).build();
    let ping = system.spawn(&props)?;
    let pong = system.spawn(&props)?;
    let hits = ping.ask(|done| Ball { hits_left: 99_999, other: pong, done }).await?;
    println!("the ball was hit 100000 times, {hits} of them by the last player");

    let report = system.graceful_shutdown(Duration::from_secs(1)).await;
    println!("all messages were handled: {}", report.drained);
    Ok(())
}
