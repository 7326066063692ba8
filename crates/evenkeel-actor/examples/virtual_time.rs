//! A test of an actor whose timers take hours: in virtual time, in no time, and the same every time.

use std::error::Error;
use std::time::Duration;

use evenkeel_actor::runtime::test::{Probe, TestRuntime};
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props, Repeat,
    Signal, TimerId,
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// Tells somebody once an hour that it is still there, and gives up a day after the last word from them.
struct Keeper {
    of: ActorRef<&'static str>,
}

impl Actor for Keeper {
    type Msg = &'static str;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        ctx.set_timer(TimerId(1), HOUR, Repeat::Every(HOUR));
        ctx.set_receive_timeout(Some(24 * HOUR));
        Ok(Flow::Continue)
    }

    fn receive(&mut self, _word: Self::Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        match signal {
            Signal::ReceiveTimeout => return Ok(Flow::Stop),
            _ => self.of.tell("still here"),
        }
        Ok(Flow::Continue)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    for seed in 0..100 {
        let runtime = TestRuntime::new(seed);
        let system = ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime.handle())?;
        let probe = Probe::new(&runtime, &system)?;
        let of = probe.actor().clone();
        let keeper = system.spawn(&Props::new(move || Keeper { of: of.clone() }).build())?;
        probe.watch(&keeper);

        probe.expect_nothing(HOUR - MINUTE);
        probe.expect_eq(&"still here", MINUTE);
        runtime.advance(12 * HOUR);
        assert_eq!(probe.messages().len(), 12);

        keeper.tell("are you there?");
        runtime.advance(24 * HOUR - MINUTE);
        assert_eq!(probe.messages().len(), 23);
        probe.expect_terminated(&keeper, 2 * MINUTE);
    }
    println!("a hundred keepers kept watch for 37 hours each");
    Ok(())
}
