//! Messages, timers and other units whose instructions are counted, with those of their producer.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::{
    Actor, ActorError, ActorRef, ActorSystemConfig, Context, Flow, HandlerResult, MailboxOptions,
    OverflowStrategy, Props, Repeat, Signal, StopMode, TimerId,
};

use super::{CostCase, CostKind, Count, CounterMessage, Rig, yield_now};

pub(super) const CASES: &[CostCase] = &[
    instructions("tell", 8_192, "tell between two actors in turn, one message per run", tell),
    instructions("tell-burst", 8_192, "tell from a task, 64 messages per run", tell_burst),
    instructions("tell-fan", 8_192, "tell from a task, one message to each of 64 actors", tell_fan),
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
    instructions("spawn-stop", 4_096, "spawn, start and stop", spawn_stop),
    instructions("child", 4_096, "spawn, start and stop of a child, with the signal to its parent", child),
    instructions("restart", 4_096, "message, failure and restart", restart),
    instructions("dead-letter", 4_096, "tell to a stopped actor", dead_letter),
];

const fn instructions(name: &'static str, count: u32, about: &'static str, run: fn(u32)) -> CostCase {
    CostCase { kind: CostKind::Instructions, name, count, about, run }
}

const BURST: u32 = 64;

/// Answers each message with a message.
struct Player {
    count: Count,
    left: u32,
}

/// A message with the address of its sender.
struct Ball(ActorRef<Ball>);

impl Actor for Player {
    type Msg = Ball;

    fn receive(&mut self, message: Ball, ctx: &mut Context<'_, Self>) -> HandlerResult<Ball> {
        self.count.add_one();
        self.left -= 1;
        if self.left != 0 {
            message.0.tell(Ball(ctx.me()));
        }
        Ok(Flow::Continue)
    }
}

fn tell(messages: u32) {
    let rig = Rig::new();
    let count = Count::default();
    // Each handles half of the messages, and the second does not answer the last one.
    let left = messages / 2;
    let first = rig.spawn(Player { count: count.clone(), left: left + 1 });
    let second = rig.spawn(Player { count: count.clone(), left });
    first.tell(Ball(second));
    rig.run();
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

fn spawn_stop(actors: u32) {
    let rig = Rig::new();
    let count = Count::default();
    let system = rig.system.clone();
    let spawned = count.clone();
    rig.run_task(async move {
        let props = Props::of_values().build();
        for _ in 0..actors / BURST {
            for _ in 0..BURST {
                system.spawn_value(ShortLived, &props).expect("the system runs");
                spawned.add_one();
            }
            yield_now().await;
        }
    });
    count.assert(actors);
    assert_eq!(rig.system.alive(), 0);
}

/// Spawns one child after another.
struct Parent {
    count: Count,
    left: u32,
    children: Props<ShortLived>,
}

impl Parent {
    fn spawn_child(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.left -= 1;
        let child = ctx.spawn_value(ShortLived, &self.children);
        child.map(|_| Flow::Continue).map_err(|error| ActorError::new(error.to_string()))
    }
}

impl Actor for Parent {
    type Msg = ();

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.spawn_child(ctx)
    }

    fn receive(&mut self, _: (), _: &mut Context<'_, Self>) -> HandlerResult<()> {
        Ok(Flow::Continue)
    }

    fn signal(&mut self, _: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<()> {
        self.count.add_one();
        if self.left == 0 { Ok(Flow::Continue) } else { self.spawn_child(ctx) }
    }
}

fn child(children: u32) {
    let rig = Rig::new();
    let count = Count::default();
    rig.spawn(Parent { count: count.clone(), left: children, children: Props::of_values().build() });
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
        let failures = FAILURES.min(failures - sent);
        rig.run_task(async move { (0..failures).for_each(|_| actor.tell(())) });
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
