//! Middleware: what surrounds the messages of a run.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn before_hooks_run_in_order_and_after_hooks_in_reverse() {
    explore_batches(|world| {
        let log = world.log.clone();
        let chain = move || {
            let ring = |name| Ring::new(name, &log);
            CompositeMiddleware::new().with(ring("outer")).with(ring("middle")).with(ring("inner"))
        };
        let actor = world.spawn(world.puppet("a").middleware(chain));
        actor.tell(note(1));
        let expected = [
            "outer opens",
            "middle opens",
            "inner opens",
            "a 1",
            "inner closes",
            "middle closes",
            "outer closes",
        ];
        assert_eq!(world.lines(), expected);
    });
}

#[test]
fn break_delays_messages_and_loses_none() {
    explore_batches(|world| {
        let gate = Gate::default();
        let actor = world.spawn(gate.guard(world.puppet("a")));
        gate.close();
        (1..=3).for_each(|number| actor.tell(note(number)));
        world.pass(20);
        actor.tell(note(4));
        world.pass(20);
        assert_eq!(world.lines(), [""; 0]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 4));
        gate.open();
        world.pass(2);
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3", "a 4"]);
    });
}

#[test]
fn middleware_is_asked_again_every_millisecond_after_a_break() {
    explore(|world| {
        let gate = Gate::default();
        let actor = world.spawn(gate.guard(world.puppet("a")));
        gate.close();
        actor.tell(note(1));
        world.pass(50);
        let asked = gate.asked();
        assert!((48..=52).contains(&asked), "asked {asked} times in 50 ms");
    });
}

#[test]
fn system_messages_pass_a_break_and_user_messages_do_not() {
    explore(|world| {
        let gate = Gate::default();
        let actor = world.spawn(gate.guard(world.puppet("a")));
        actor.tell(go(|_, ctx| ctx.set_timer(TimerId(7), MS * 5, Repeat::Once)));
        world.run();
        gate.close();
        actor.tell(note(1));
        world.pass(10);
        assert_eq!(world.lines(), ["a hears timer 7"]);
        actor.stop(StopMode::Now);
        assert_eq!(world.lines(), [""; 0]);
        assert_eq!(actor.state(), ActorState::Stopped, "a stop passes too");
        assert_eq!(world.letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn a_break_runs_after_hooks_only_of_middleware_whose_before_hook_ran() {
    explore(|world| {
        let gate = Gate::default();
        let log = world.log.clone();
        let shut = gate.clone();
        let chain = move || {
            let outer = Ring::new("outer", &log);
            let inner = Ring::new("inner", &log);
            CompositeMiddleware::new().with(outer).with(shut.clone()).with(inner)
        };
        let actor = world.spawn(world.puppet("a").middleware(chain));
        gate.close();
        actor.tell(note(1));
        assert_eq!(world.lines(), ["outer opens", "outer closes"]);
        gate.open();
        world.pass(2);
        assert_eq!(world.lines(), ["outer opens", "inner opens", "a 1", "inner closes", "outer closes"]);
    });
}

#[test]
fn after_receives_the_number_of_handled_messages_and_the_result() {
    explore_batches(|world| {
        let log = world.log.clone();
        let chain = move || CompositeMiddleware::new().with(Count::new(&log));
        let actor = world.spawn(world.puppet("a").middleware(chain));
        (0..3).for_each(|number| actor.tell(note(number)));
        assert_eq!(
            world.lines(),
            ["3 wait", "a 0", "a 1", "a 2", "3 handled: Completed { ready_hint: false }"]
        );
        actor.tell(fail("broken"));
        let ended = world.lines();
        assert_eq!(ended[0], "1 wait");
        assert!(ended[1].starts_with("1 handled: Failed { error: ActorError"), "{}", ended[1]);
        world.pass(20);
        actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(MS)))));
        actor.tell(act(|_, _| Ok(Flow::Stop)));
        world.pass(2);
        let expected = [
            "2 wait",
            "1 handled: Suspended { reason: RateLimit, resume_on: After(1ms) }",
            "1 wait",
            "1 handled: Stopped",
        ];
        assert_eq!(world.lines(), expected);
    });
}

#[test]
fn each_actor_has_its_own_middleware() {
    explore_batches(|world| {
        let log = world.log.clone();
        let props = world
            .puppet("a")
            .middleware(move || CompositeMiddleware::new().with(Runs { log: log.clone(), runs: 0 }))
            .props();
        let [left, right] = [(); 2].map(|()| world.system.spawn(&props).unwrap());
        for actor in [&left, &left, &right] {
            actor.tell(note(0));
            world.run();
        }
        assert_eq!(world.lines(), ["a 0", "run 1", "a 0", "run 2", "a 0", "run 1"]);
    });
}

#[test]
fn middleware_wraps_the_output_of_a_future_like_any_message() {
    explore(|world| {
        let gate = Gate::default();
        let actor = world.spawn(gate.guard(world.puppet("a")));
        actor.tell(world.wait_until_ms(10, 1));
        actor.tell(note(2));
        world.run();
        gate.close();
        world.pass(20);
        assert_eq!(world.lines(), [""; 0]);
        gate.open();
        world.pass(2);
        assert_eq!(world.lines(), ["a 1", "a 2"], "held back, and still first");
    });
}

#[test]
fn every_before_hook_that_continues_has_one_after_hook() {
    explore(|world| {
        let opened = Arc::new(AtomicU32::new(0));
        let balance = opened.clone();
        let chain = move || CompositeMiddleware::new().with(Balance(balance.clone()));
        let actor = world.spawn(world.puppet("a").middleware(chain));
        for number in 0..20 {
            actor.tell(note(number));
            actor.tell(go(|_, ctx| ctx.set_timer(TimerId(1), MS, Repeat::Once)));
            actor.tell(fail("broken"));
            world.pass(u64::from(number) % 4);
        }
        actor.stop(StopMode::Drained);
        world.pass(100_000);
        assert_eq!((actor.state(), opened.load(Ordering::Relaxed)), (ActorState::Stopped, 0));
    });
}

#[test]
fn middleware_that_panics_fails_the_actor_and_not_its_worker() {
    explore(|world| {
        let props = world.puppet("a").loud().middleware(|| CompositeMiddleware::new().with(Bomb));
        let actor = world.spawn(props);
        let other = world.noter("b");
        actor.tell(note(1));
        other.tell(note(2));
        world.pass(100_000);
        assert!(world.lines().contains(&"b 2".to_owned()));
        assert_eq!(actor.state(), ActorState::Stopped, "its restarts are used up");
    });
}

/// Notes when it opens and closes.
struct Ring {
    name: &'static str,
    log: Log,
}

impl Ring {
    fn new(name: &'static str, log: &Log) -> Self {
        Self { name, log: log.clone() }
    }
}

impl MiddlewareChain for Ring {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.log.note(format!("{} opens", self.name));
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        self.log.note(format!("{} closes", self.name));
    }
}

/// Holds everything back while it is closed.
#[derive(Clone, Default)]
struct Gate {
    closed: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
}

impl Gate {
    fn guard(&self, puppet: PuppetBuilder) -> PuppetBuilder {
        let gate = self.clone();
        puppet.middleware(move || CompositeMiddleware::new().with(gate.clone()))
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl MiddlewareChain for Gate {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.closed.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}

/// Notes what it is told about a run.
struct Count(Log);

impl Count {
    fn new(log: &Log) -> Self {
        Self(log.clone())
    }
}

impl MiddlewareChain for Count {
    fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.0.note(format!("{} wait", ctx.messages));
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult) {
        self.0.note(format!("{} handled: {result:?}", ctx.messages));
    }
}

/// Counts the runs of its actor.
struct Runs {
    log: Log,
    runs: u32,
}

impl MiddlewareChain for Runs {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.runs += 1;
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        self.log.note(format!("run {}", self.runs));
    }
}

/// Counts what is open; never below zero, never two.
struct Balance(Arc<AtomicU32>);

impl MiddlewareChain for Balance {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0);
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        assert_eq!(self.0.fetch_sub(1, Ordering::Relaxed), 1);
    }
}

struct Bomb;

impl MiddlewareChain for Bomb {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        panic!("the middleware is broken")
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}
