use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;
use std::num::NonZeroUsize;
use std::time::Duration;

struct Counter(u64);
enum Msg {
    Inc(u64),
    Get(Reply<u64>),
}
impl Actor for Counter {
    type Msg = Msg;
    fn receive(&mut self, m: Msg, _: &mut Context<'_, Self>) -> Handled<Msg> {
        match m {
            Msg::Inc(v) => self.0 += v,
            Msg::Get(r) => drop(r.send(self.0)),
        }
        Ok(Flow::Continue)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_actor_counts() {
    let system = ActorSystemRunner::new(ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap()))
        .start(TokioRuntime::current().unwrap())
        .unwrap();
    let props = Props::new(|| Counter(0)).build();
    let actor = system.spawn(&props).unwrap();
    for _ in 0..10_000 {
        actor.send(Msg::Inc(1)).await.unwrap();
    }
    assert_eq!(actor.ask(Msg::Get).await, Ok(10_000));
    let end = system.graceful_shutdown(Duration::from_secs(5)).await;
    assert_eq!(end, Shutdown { drained: true, abandoned: 0 });
}
