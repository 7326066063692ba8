//! Messages, timers and other units whose instructions are counted, with those of their producer.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::{
    Actor, ActorError, ActorSystemConfig, Context, Flow, HandlerResult, MailboxOptions, OverflowStrategy,
    Props, Repeat, Signal, StopMode, TimerId,
};

use super::{CostCase, CostKind, Count, Counter, CounterMessage, Rig, yield_now};

pub(super) const CASES: &[CostCase] = &[
    instructions("tell", 8_192, "tell, one message per run of the actor", tell),
    instructions("tell-burst", 8_192, "tell, 64 messages per run", tell_burst),
    instructions("tell-fan", 8_192, "tell, one message to each of 64 actors", tell_fan),
    instructions("ask", 8_192, "ask, from a task on the same worker", ask),
    instructions(
        "ask-outside",
        8_192,
        "ask, from outside the workers (with the test runtime's work)",
        ask_outside,
    ),
    instructions("send", 8_192, "send that waits for capacity, mailbox of 16", send),
    instructions("await", 8_192, "future that yields once, and the message that is its output", await_future),
    instructions("stash", 8_192, "message that is stashed and unstashed", stash),
    instructions("timer", 8_192, "timer of an actor, set and fired, 1024 per tick", timer),
    instructions("spawn-stop", 4_096, "spawn and stop", spawn_stop),
    instructions("child", 4_096, "spawn and stop of a child, with the signal to its parent", child),
    instructions("restart", 4_096, "failure and restart", restart),
    instructions("dead-letter", 4_096, "tell to a stopped actor", dead_letter),
];

const fn instructions(name: &'static str, count: u32, about: &'static str, run: fn(u32)) -> CostCase {
    CostCase { kind: CostKind::Instructions, name, count, about, run }
}

const BURST: u32 = 64;

fn tell(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.counter(&count, MailboxOptions::default());
    rig.run_task(async move {
        for _ in 0..messages {
            actor.tell(CounterMessage::Add);
            yield_now().await;
        }
    });
    count.assert(messages);
}

fn tell_burst(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.counter(&count, MailboxOptions::default());
    rig.run_task(async move {
        for _ in 0..messages / BURST {
            (0..BURST).for_each(|_| actor.tell(CounterMessage::Add));
            yield_now().await;
        }
    });
    count.assert(messages);
}

fn tell_fan(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actors: Vec<_> = (0..BURST).map(|_| rig.counter(&count, MailboxOptions::default())).collect();
    rig.run_task(async move {
        for _ in 0..messages / BURST {
            actors.iter().for_each(|actor| actor.tell(CounterMessage::Add));
            yield_now().await;
        }
    });
    count.assert(messages);
}

fn ask(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.counter(&count, MailboxOptions::default());
    rig.run_task(async move {
        for _ in 0..messages {
            actor.ask(CounterMessage::Get).await.expect("the actor replies");
        }
    });
    count.assert(messages);
}

fn ask_outside(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.counter(&count, MailboxOptions::default());
    rig.runtime.block_on(async move {
        for _ in 0..messages {
            actor.ask(CounterMessage::Get).await.expect("the actor replies");
        }
    });
    count.assert(messages);
}

fn send(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let capacity = NonZeroUsize::new(16).expect("16 is not zero");
    let options = MailboxOptions::bounded(capacity).overflow(OverflowStrategy::BlockProducer);
    let actor = rig.counter(&count, options);
    rig.run_task(async move {
        for _ in 0..messages {
            actor.send(CounterMessage::Add).await.expect("the actor runs");
        }
    });
    count.assert(messages);
}

/// Awaits one future after another; each yields once, and its output is the actor's next message.
struct Awaiting {
    count: Count,
    left: u32,
}

impl Actor for Awaiting {
    type Msg = ();

    fn started(&mut self, _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::wait(yield_now()))
    }

    fn receive(&mut self, _: (), _: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.count.add_one();
        self.left -= 1;
        Ok(if self.left == 0 { Flow::Continue } else { Flow::wait(yield_now()) })
    }
}

fn await_future(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    rig.spawn(Awaiting { count: count.clone(), left: messages });
    count.assert(messages);
}

/// Stashes a burst of messages, then handles them.
struct Stashing {
    count: Count,
    stashed: u32,
}

impl Actor for Stashing {
    type Msg = ();

    fn receive(&mut self, message: (), ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        if self.stashed < BURST {
            self.stashed += 1;
            ctx.stash(message);
            if self.stashed == BURST {
                ctx.unstash_all();
            }
            return Ok(Flow::Continue);
        }
        self.count.add_one();
        if ctx.stashed() == 0 && self.count.0.load(Ordering::Relaxed).is_multiple_of(BURST) {
            self.stashed = 0;
        }
        Ok(Flow::Continue)
    }
}

fn stash(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.spawn(Stashing { count: count.clone(), stashed: 0 });
    rig.run_task(async move {
        for _ in 0..messages / BURST {
            (0..BURST).for_each(|_| actor.tell(()));
            // Twice, because the unstashed messages may take another run.
            yield_now().await;
            yield_now().await;
        }
    });
    count.assert(messages);
}

/// Sets its timer again each time it fires, as often as it was told.
struct Ticking {
    count: Count,
    left: u32,
}

const TICK: Duration = Duration::from_millis(10);

impl Ticking {
    fn set_timer(&self, ctx: &mut Context<'_, Self>) {
        assert!(ctx.set_timer(TimerId(0), TICK, Repeat::Once), "the timing wheel has room");
    }
}

impl Actor for Ticking {
    type Msg = ();

    fn receive(&mut self, _: (), _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.set_timer(ctx);
        Ok(Flow::Continue)
    }

    fn signal(&mut self, _: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.count.add_one();
        self.left -= 1;
        if self.left != 0 {
            self.set_timer(ctx);
        }
        Ok(Flow::Continue)
    }
}

fn timer(firings: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actors = firings.min(1024);
    for _ in 0..actors {
        rig.spawn(Ticking { count: count.clone(), left: firings / actors });
    }
    rig.runtime.advance(TICK * (firings / actors));
    count.assert(firings);
}

fn spawn_stop(actors: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let system = rig.system.clone();
    let handled = count.clone();
    rig.run_task(async move {
        let props = Props::of_values().build();
        for _ in 0..actors {
            let actor = system.spawn_value(Counter::new(&handled), &props).expect("the system runs");
            yield_now().await;
            actor.stop(StopMode::Now);
            yield_now().await;
        }
    });
    assert_eq!(rig.system.alive(), 0);
    count.assert(0);
}

/// Spawns a child for each message.
struct Parent(Count, Props<ShortLived>);

/// Stops when it starts.
struct ShortLived;

impl Actor for ShortLived {
    type Msg = ();

    fn receive(&mut self, _: (), _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }

    fn started(&mut self, _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Stop)
    }
}

impl Actor for Parent {
    type Msg = ();

    fn receive(&mut self, _: (), ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        let child = ctx.spawn_value(ShortLived, &self.1);
        child.map(|_| Flow::Continue).map_err(|error| ActorError::new(error.to_string()))
    }

    fn signal(&mut self, signal: Signal, _: &mut Context<'_, Self>) -> HandlerResult<()> {
        if matches!(signal, Signal::Terminated { .. }) {
            self.0.add_one();
        }
        Ok(Flow::Continue)
    }
}

fn child(children: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let parent = rig.spawn(Parent(count.clone(), Props::of_values().build()));
    rig.run_task(async move {
        for _ in 0..children {
            parent.tell(());
            yield_now().await;
        }
    });
    count.assert(children);
}

/// Fails on each message.
struct Failing;

impl Actor for Failing {
    type Msg = ();

    fn receive(&mut self, _: (), _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Err(ActorError::new("as told"))
    }
}

/// Failures in one window of the supervision, which allows no more than a thousand restarts.
const FAILURES: u32 = 512;

fn restart(failures: u32) {
    let window = Duration::from_secs(1);
    let supervision = Supervision::default().with_backoff(Backoff::NONE).with_max_restarts(FAILURES, window);
    let supervision = supervision.expect("a valid limit");
    let config = ActorSystemConfig { supervision, ..ActorSystemConfig::with_workers(NonZeroUsize::MIN) };
    let rig = Rig::with(config);
    let count = Count::default();
    let created = count.clone();
    let props = Props::new(move || {
        created.add_one();
        Failing
    });
    let actor = rig.system.spawn(&props.build()).expect("the system runs");
    for sent in (0..failures).step_by(FAILURES as usize) {
        let actor = actor.clone();
        rig.run_task(async move {
            for _ in sent..failures.min(sent + FAILURES) {
                actor.tell(());
                yield_now().await;
            }
        });
        rig.runtime.advance(window * 2);
    }
    count.assert(failures + 1);
}

fn dead_letter(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let actor = rig.counter(&count, MailboxOptions::default());
    actor.stop(StopMode::Now);
    rig.run();
    rig.run_task(async move {
        for _ in 0..messages {
            actor.tell(CounterMessage::Add);
        }
    });
    count.assert(0);
    assert_eq!(rig.system.dead_letters_total(), u64::from(messages));
}
