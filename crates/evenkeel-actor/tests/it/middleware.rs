//! Middleware: hooks before and after each run.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn before_hooks_run_in_order_and_after_hooks_in_reverse() {
    explore_batches(|harness| {
        let log = harness.log.clone();
        let chain = move || {
            let layer = |name| OpenClose::new(name, &log);
            CompositeMiddleware::new().with(layer("outer")).with(layer("middle")).with(layer("inner"))
        };
        let actor = harness.spawn(harness.puppet("a").middleware(chain));
        actor.tell(record(1));
        let expected = [
            "outer opens",
            "middle opens",
            "inner opens",
            "a 1",
            "inner closes",
            "middle closes",
            "outer closes",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn break_delays_messages_and_loses_none() {
    explore_batches(|harness| {
        let gate = Gate::default();
        let actor = harness.spawn(gate.guard(harness.puppet("a")));
        gate.close();
        (1..=3).for_each(|number| actor.tell(record(number)));
        harness.advance_ms(20);
        actor.tell(record(4));
        harness.advance_ms(20);
        assert_eq!(harness.lines(), [""; 0]);
        assert_eq!((actor.state(), actor.depth()), (ActorState::Suspended, 4));
        gate.open();
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3", "a 4"]);
    });
}

#[test]
fn middleware_is_called_again_every_millisecond_after_a_break() {
    explore(|harness| {
        let gate = Gate::default();
        let actor = harness.spawn(gate.guard(harness.puppet("a")));
        gate.close();
        actor.tell(record(1));
        harness.advance_ms(50);
        let calls = gate.calls();
        assert!((48..=52).contains(&calls), "called {calls} times in 50 ms");
    });
}

#[test]
fn system_messages_pass_a_break_and_user_messages_do_not() {
    explore(|harness| {
        let gate = Gate::default();
        let actor = harness.spawn(gate.guard(harness.puppet("a")));
        actor.tell(run(|_, ctx| ctx.set_timer(TimerId(7), MS * 5, Repeat::Once)));
        harness.run();
        gate.close();
        actor.tell(record(1));
        harness.advance_ms(10);
        assert_eq!(harness.lines(), ["a timer 7"]);
        actor.stop(StopMode::Now);
        assert_eq!(harness.lines(), [""; 0]);
        assert_eq!(actor.state(), ActorState::Stopped, "a stop passes the break too");
        assert_eq!(harness.dead_letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn a_break_runs_after_hooks_only_of_middleware_whose_before_hook_continued() {
    explore(|harness| {
        let gate = Gate::default();
        let log = harness.log.clone();
        let shut = gate.clone();
        let chain = move || {
            let outer = OpenClose::new("outer", &log);
            let inner = OpenClose::new("inner", &log);
            CompositeMiddleware::new().with(outer).with(shut.clone()).with(inner)
        };
        let actor = harness.spawn(harness.puppet("a").middleware(chain));
        gate.close();
        actor.tell(record(1));
        assert_eq!(harness.lines(), ["outer opens", "outer closes"]);
        gate.open();
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["outer opens", "inner opens", "a 1", "inner closes", "outer closes"]);
    });
}

#[test]
fn after_receives_the_number_of_handled_messages_and_the_result() {
    explore_batches(|harness| {
        let log = harness.log.clone();
        let chain = move || CompositeMiddleware::new().with(MessageCounts::new(&log));
        let actor = harness.spawn(harness.puppet("a").middleware(chain));
        (0..3).for_each(|number| actor.tell(record(number)));
        assert_eq!(
            harness.lines(),
            ["3 wait", "a 0", "a 1", "a 2", "3 handled: Completed { ready_hint: false }"]
        );
        actor.tell(fail("broken"));
        let lines = harness.lines();
        assert_eq!(lines[0], "1 wait");
        assert!(lines[1].starts_with("1 handled: Failed { error: ActorError"), "{}", lines[1]);
        harness.advance_ms(20);
        actor.tell(act(|_, _| Ok(Flow::Suspend(SuspendReason::RateLimit, ResumeCondition::After(MS)))));
        actor.tell(act(|_, _| Ok(Flow::Stop)));
        harness.advance_ms(2);
        let expected = [
            "2 wait",
            "1 handled: Suspended { reason: RateLimit, resume_on: After(1ms) }",
            "1 wait",
            "1 handled: Stopped",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn each_actor_has_its_own_middleware() {
    explore_batches(|harness| {
        let log = harness.log.clone();
        let props = harness
            .puppet("a")
            .middleware(move || CompositeMiddleware::new().with(RunCounter { log: log.clone(), runs: 0 }))
            .props();
        let [left, right] = [(); 2].map(|()| harness.system.spawn(&props).unwrap());
        for actor in [&left, &left, &right] {
            actor.tell(record(0));
            harness.run();
        }
        assert_eq!(harness.lines(), ["a 0", "run 1", "a 0", "run 2", "a 0", "run 1"]);
    });
}

#[test]
fn middleware_wraps_the_output_of_a_future_like_any_message() {
    explore(|harness| {
        let gate = Gate::default();
        let actor = harness.spawn(gate.guard(harness.puppet("a")));
        actor.tell(harness.wait_until_ms(10, 1));
        actor.tell(record(2));
        harness.run();
        gate.close();
        harness.advance_ms(20);
        assert_eq!(harness.lines(), [""; 0]);
        gate.open();
        harness.advance_ms(2);
        assert_eq!(harness.lines(), ["a 1", "a 2"], "the output was delayed and is still handled first");
    });
}

#[test]
fn every_before_hook_that_continues_has_one_after_hook() {
    explore(|harness| {
        let opened = Arc::new(AtomicU32::new(0));
        let balance = opened.clone();
        let chain = move || CompositeMiddleware::new().with(BalanceCheck(balance.clone()));
        let actor = harness.spawn(harness.puppet("a").middleware(chain));
        for number in 0..20 {
            actor.tell(record(number));
            actor.tell(run(|_, ctx| ctx.set_timer(TimerId(1), MS, Repeat::Once)));
            actor.tell(fail("broken"));
            harness.advance_ms(u64::from(number) % 4);
        }
        actor.stop(StopMode::Drained);
        harness.advance_ms(100_000);
        assert_eq!((actor.state(), opened.load(Ordering::Relaxed)), (ActorState::Stopped, 0));
    });
}

#[test]
fn middleware_that_panics_fails_the_actor_but_not_its_worker() {
    explore(|harness| {
        let props = harness
            .puppet("a")
            .log_hooks()
            .middleware(|| CompositeMiddleware::new().with(PanickingMiddleware));
        let actor = harness.spawn(props);
        let other = harness.recorder("b");
        actor.tell(record(1));
        other.tell(record(2));
        harness.advance_ms(100_000);
        assert!(harness.lines().contains(&"b 2".to_owned()));
        assert_eq!(actor.state(), ActorState::Stopped, "the restart limit is reached");
    });
}

/// Records "opens" in its before hook and "closes" in its after hook.
struct OpenClose {
    name: &'static str,
    log: Log,
}

impl OpenClose {
    fn new(name: &'static str, log: &Log) -> Self {
        Self { name, log: log.clone() }
    }
}

impl MiddlewareChain for OpenClose {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.log.record(format!("{} opens", self.name));
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        self.log.record(format!("{} closes", self.name));
    }
}

/// Delays user messages while it is closed.
#[derive(Clone, Default)]
struct Gate {
    closed: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
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

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl MiddlewareChain for Gate {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.closed.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}

/// Records the message counts and the result of each run.
struct MessageCounts(Log);

impl MessageCounts {
    fn new(log: &Log) -> Self {
        Self(log.clone())
    }
}

impl MiddlewareChain for MessageCounts {
    fn before_invoke(&mut self, ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.0.record(format!("{} wait", ctx.messages));
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, ctx: &InvokeContext<'_>, result: &InvokeResult) {
        self.0.record(format!("{} handled: {result:?}", ctx.messages));
    }
}

/// Counts the runs of its actor.
struct RunCounter {
    log: Log,
    runs: u32,
}

impl MiddlewareChain for RunCounter {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        self.runs += 1;
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        self.log.record(format!("run {}", self.runs));
    }
}

/// Asserts that each before hook is followed by its after hook.
struct BalanceCheck(Arc<AtomicU32>);

impl MiddlewareChain for BalanceCheck {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0);
        ControlFlow::Continue(())
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {
        assert_eq!(self.0.fetch_sub(1, Ordering::Relaxed), 1);
    }
}

struct PanickingMiddleware;

impl MiddlewareChain for PanickingMiddleware {
    fn before_invoke(&mut self, _ctx: &InvokeContext<'_>) -> ControlFlow<(), ()> {
        panic!("the middleware is broken")
    }

    fn after_invoke(&mut self, _ctx: &InvokeContext<'_>, _result: &InvokeResult) {}
}
