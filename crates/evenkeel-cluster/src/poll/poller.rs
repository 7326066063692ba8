//! Actor that polls one peer, one request at a time.

use evenkeel_actor::{Actor, ActorError, Context, Flow, HandlerResult, Repeat, Signal, TimerId};
use evenkeel_policy::time::Duration;
use tokio::time::Instant;

use super::PollClient;
use crate::key::draw;

const NEXT: TimerId = TimerId(0);

pub(crate) struct Poller {
    pub(crate) client: PollClient,
    /// Mean time between the starts of two polls.
    pub(crate) interval: Duration,
}

/// A completed poll.
pub(crate) struct PollDone {
    started_at: Instant,
}

impl Poller {
    fn start_poll(&self) -> HandlerResult<PollDone> {
        let client = self.client.clone();
        Ok(Flow::wait(async move {
            let started_at = Instant::now();
            client.poll().await;
            PollDone { started_at }
        }))
    }
}

impl Actor for Poller {
    type Msg = PollDone;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<PollDone> {
        self.start_poll()
    }

    fn receive(&mut self, done: PollDone, ctx: &mut Context<'_, Self>) -> HandlerResult<PollDone> {
        let random = draw().map_or(u32::MAX / 2, u32::from_be_bytes);
        let pause = jitter(self.interval, random).saturating_sub(done.started_at.elapsed());
        // After a poll that took longer than the interval, the next one starts at once, but other actors run first.
        if ctx.set_timer(NEXT, pause.max(Duration::from_millis(1)), Repeat::Once) {
            return Ok(Flow::Continue);
        }
        Err(ActorError::new("no timer left for the actor"))
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<PollDone> {
        if signal == Signal::Timer(NEXT) { self.start_poll() } else { Ok(Flow::Continue) }
    }
}

/// Returns three to five quarters of an interval, so that nodes that start together do not poll together for long.
fn jitter(interval: Duration, random: u32) -> Duration {
    interval.mul_f64(0.75 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_a_quarter_of_the_interval_at_most() {
        let interval = Duration::from_millis(400);
        assert_eq!(jitter(interval, 0), Duration::from_millis(300));
        assert_eq!(jitter(interval, u32::MAX), Duration::from_millis(500));
        let middle = jitter(interval, u32::MAX / 2);
        assert!(middle.abs_diff(interval) < Duration::from_millis(1), "{middle:?}");
    }
}
