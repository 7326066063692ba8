//! Actors and other units whose heap is measured, at the moment of [`mark_peak`].

use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::time::Duration;

use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, Context, Flow, HandlerResult, MailboxOptions, Props, Repeat,
    StopMode, TimerId,
};

use super::{CostCase, CostKind, Count, Counter, CounterMessage, Rig};

/// With this count and with twice as many, vectors that double are full, and the registry has as many vacant slots.
const ACTORS: u32 = 8_192;

pub(super) const CASES: &[CostCase] = &[
    memory("idle", ACTORS, "idle actor with a state of 40 bytes", idle),
    memory("after-message", ACTORS, "after its first message", after_message),
    memory("ready", ACTORS, "waiting to run, with one message", ready),
    memory("timer", ACTORS, "with a timer", timer),
    memory("receive-timeout", ACTORS, "with a receive timeout", receive_timeout),
    memory("child", ACTORS, "with a child, both counted", child),
    memory("watch", ACTORS, "watching another actor", watch),
    memory("stash", ACTORS, "with one stashed message", stash),
    memory("await", ACTORS, "awaiting a future without state", await_future),
    memory("name", ACTORS, "with a name of 8 bytes", name),
    memory("dead-letter", ACTORS, "stored dead letter, without its message", dead_letter),
    memory("label", ACTORS, "possible label of actors, with one worker", label),
    memory("label-2-workers", ACTORS, "possible label of actors, with two workers", label_on_two_workers),
    memory("worker", 64, "running worker with its queue, 256 possible labels", worker),
    memory("system", 64, "system without actors: one of 64 possible workers, 256 possible labels", system),
];

const fn memory(name: &'static str, count: u32, about: &'static str, run: fn(u32)) -> CostCase {
    CostCase { kind: CostKind::Memory, name, count, about, run }
}

/// Exceeds the heap of every case, so that the peak is at [`mark_peak`].
const MARKER_BYTES: usize = 1 << 30;

/// Marks the moment to measure: massif records the heap at its peak, just before memory is freed.
///
/// The block is never written to, so it takes no memory of the machine.
#[inline(never)]
fn mark_peak() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(MARKER_BYTES)));
}

fn idle(actors: u32) {
    let rig = Rig::new();
    spawn_all(&rig, actors, || Counter::new(&Count::default()), |_| {});
    mark_peak();
}

fn after_message(actors: u32) {
    let rig = Rig::new();
    spawn_all(&rig, actors, || Counter::new(&Count::default()), |actor| actor.tell(CounterMessage::Add));
    mark_peak();
}

fn spawn_all<A: Actor>(rig: &Rig, actors: u32, make: impl Fn() -> A, each: impl Fn(&ActorRef<A::Msg>)) {
    let props = Props::of_values().build();
    for _ in 0..actors {
        let actor = rig.spawn_with(make(), &props);
        each(&actor);
        rig.run();
    }
    assert_eq!(rig.system.alive(), u64::from(actors));
}

fn ready(actors: u32) {
    let rig = Rig::new();
    let props = Props::of_values().build();
    for _ in 0..actors {
        let actor = rig.system.spawn_value(Counter::new(&Count::default()), &props).expect("the system runs");
        actor.tell(CounterMessage::Add);
    }
    mark_peak();
}

/// Calls a function when it starts, and stashes every message; 40 bytes, like [`Counter`].
struct Scripted {
    started: fn(&Self, &mut Context<'_, Self>) -> Flow<u64>,
    watched: Option<ActorRef<u64>>,
    _state: [u64; 2],
}

impl Scripted {
    fn new(started: fn(&Self, &mut Context<'_, Self>) -> Flow<u64>) -> Self {
        Self { started, watched: None, _state: [0; 2] }
    }
}

impl Actor for Scripted {
    type Msg = u64;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<u64> {
        Ok((self.started)(self, ctx))
    }

    fn receive(&mut self, message: u64, ctx: &mut Context<'_, Self>) -> HandlerResult<u64> {
        ctx.stash(message);
        Ok(Flow::Continue)
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

fn timer(actors: u32) {
    let rig = Rig::new();
    let started = |_: &Scripted, ctx: &mut Context<'_, Scripted>| {
        assert!(ctx.set_timer(TimerId(0), HOUR, Repeat::Once), "the timing wheel has room");
        Flow::Continue
    };
    spawn_all(&rig, actors, || Scripted::new(started), |_| {});
    mark_peak();
}

fn receive_timeout(actors: u32) {
    let rig = Rig::new();
    let started = |_: &Scripted, ctx: &mut Context<'_, Scripted>| {
        assert!(ctx.set_receive_timeout(Some(HOUR)), "the timing wheel has room");
        Flow::Continue
    };
    spawn_all(&rig, actors, || Scripted::new(started), |_| {});
    mark_peak();
}

fn child(parents: u32) {
    /// Shared, because the props of an actor are not a part of its cell.
    static CHILDREN: LazyLock<Props<Scripted>> = LazyLock::new(|| Props::of_values().build());
    let rig = Rig::new();
    let started = |_: &Scripted, ctx: &mut Context<'_, Scripted>| {
        let child = ctx.spawn_value(Scripted::new(|_, _| Flow::Continue), &CHILDREN);
        child.expect("the actor limit is not reached");
        Flow::Continue
    };
    let props = Props::of_values().build();
    for _ in 0..parents {
        rig.spawn_with(Scripted::new(started), &props);
    }
    assert_eq!(rig.system.alive(), 2 * u64::from(parents));
    mark_peak();
}

fn watch(actors: u32) {
    let rig = Rig::new();
    let watched = rig.spawn(Scripted::new(|_, _| Flow::Continue));
    let started = |this: &Scripted, ctx: &mut Context<'_, Scripted>| {
        assert!(this.watched.as_ref().is_some_and(|watched| ctx.watch(watched)), "room for another watch");
        Flow::Continue
    };
    let props = Props::of_values().build();
    for _ in 0..actors {
        rig.spawn_with(Scripted { watched: Some(watched.clone()), ..Scripted::new(started) }, &props);
    }
    mark_peak();
}

fn stash(actors: u32) {
    let rig = Rig::new();
    spawn_all(&rig, actors, || Scripted::new(|_, _| Flow::Continue), |actor| actor.tell(0));
    assert_eq!(rig.system.dead_letters_total(), 0);
    mark_peak();
}

fn await_future(actors: u32) {
    let rig = Rig::new();
    spawn_all(&rig, actors, || Scripted::new(|_, _| Flow::wait(pending())), |_| {});
    mark_peak();
}

fn name(actors: u32) {
    let rig = Rig::new();
    let props = Props::of_values().build();
    for number in 0..actors {
        let actor = rig.spawn_with(Counter::new(&Count::default()), &props);
        rig.system.names().register(&format!("{number:08}"), &actor).expect("the name is free");
    }
    mark_peak();
}

fn dead_letter(messages: u32) {
    let dead_letters_max = messages as usize;
    let config = ActorSystemConfig { dead_letters_max, ..ActorSystemConfig::with_workers(NonZeroUsize::MIN) };
    let rig = Rig::with(config);
    // Its messages contain a reply channel, so they are not kept.
    let actor = rig.counter(&Count::default(), MailboxOptions::default());
    actor.stop(StopMode::Now);
    rig.run();
    (0..messages).for_each(|_| actor.tell(CounterMessage::Add));
    assert_eq!(rig.system.dead_letters_total(), u64::from(messages));
    mark_peak();
}

fn label(labels: u32) {
    start_with_labels(labels, NonZeroUsize::MIN);
}

fn label_on_two_workers(labels: u32) {
    start_with_labels(labels, NonZeroUsize::MIN.saturating_add(1));
}

fn start_with_labels(labels: u32, workers: NonZeroUsize) {
    let labels_max = u16::try_from(labels).expect("few labels");
    let rig = Rig::with(ActorSystemConfig { labels_max, ..ActorSystemConfig::with_workers(workers) });
    mark_peak();
    drop(rig);
}

fn worker(workers: u32) {
    let workers = NonZeroUsize::new(workers as usize).expect("at least one worker");
    let rig = Rig::with(ActorSystemConfig::with_workers(workers));
    mark_peak();
    drop(rig);
}

fn system(systems: u32) {
    let rigs: Vec<_> = (0..systems).map(|_| Rig::new()).collect();
    mark_peak();
    drop(rigs);
}
