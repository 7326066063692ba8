//! A test of an actor whose timers take hours: deterministic, in virtual time, done in milliseconds.

use std::error::Error;
use std::time::Duration;

use evenkeel_actor::runtime::test::{Probe, TestRuntime};
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props, Repeat,
    Signal, TimerId,
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// Sends a heartbeat once an hour, and stops a day after the last message from its peer.
struct Heartbeat {
    peer: ActorRef<&'static str>,
}

impl Actor for Heartbeat {
    type Msg = &'static str;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        ctx.set_timer(TimerId(1), HOUR, Repeat::Every(HOUR));
        ctx.set_receive_timeout(Some(24 * HOUR));
        Ok(Flow::Continue)
    }

    fn receive(&mut self, _message: Self::Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        match signal {
            Signal::ReceiveTimeout => return Ok(Flow::Stop),
            _ => self.peer.tell("alive"),
        }
        Ok(Flow::Continue)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    for seed in 0..100 {
        let runtime = TestRuntime::new(seed);
        let system = ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime.handle())?;
        let probe = Probe::new(&runtime, &system)?;
        let peer = probe.actor().clone();
        let heartbeat = system.spawn(&Props::new(move || Heartbeat { peer: peer.clone() }).build())?;
        probe.watch(&heartbeat);

        probe.expect_nothing(HOUR - MINUTE);
        probe.expect_eq(&"alive", MINUTE);
        runtime.advance(12 * HOUR);
        assert_eq!(probe.messages().len(), 12);

        heartbeat.tell("still there?");
        runtime.advance(24 * HOUR - MINUTE);
        assert_eq!(probe.messages().len(), 23);
        probe.expect_terminated(&heartbeat, 2 * MINUTE);
    }
    println!("100 seeds, 37 hours of virtual time each");
    Ok(())
}
