//! An actor that performs, in random order, every action that could lose a message.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_actor::*;
use tokio::sync::mpsc;

use super::Random;
use super::ledger::Ledger;

/// A message with its receiver, its sender, its sequence number between the two, and the action that it causes.
pub(crate) struct ChaosMsg {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) number: u64,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Nothing,
    Answer(Reply<u64>),
    Yield,
    Fail,
    Panic,
    /// Suspends until a signal.
    Suspend,
    /// Suspends for 100 µs.
    SuspendBriefly,
    Await,
    /// Sets a timer, which causes a system message.
    SetTimer,
    /// Output of an awaited future, which has no sender.
    Woken,
    Relay,
}

/// Channel to the signaller, with the keys that actors wait for.
pub(crate) type Keys = mpsc::UnboundedSender<(ActorRef<ChaosMsg>, SignalKey)>;

pub(crate) struct ChaosActor {
    id: usize,
    ledger: Arc<Ledger>,
    keys: Keys,
    next: Option<ActorRef<ChaosMsg>>,
}

impl ChaosActor {
    pub(crate) fn new(id: usize, ledger: Arc<Ledger>, keys: Keys, next: Option<ActorRef<ChaosMsg>>) -> Self {
        Self { id, ledger, keys, next }
    }

    /// Forwards a message; suspends until there is capacity when the mailbox is full.
    fn relay(&self, ctx: &mut Context<'_, Self>) -> Flow<ChaosMsg> {
        let Some(next) = &self.next else { return Flow::Continue };
        let to = self.id - 1;
        let (from, number) = self.ledger.next_relay(self.id);
        match ctx.try_tell(next, ChaosMsg { to, from, number, action: Action::Nothing }) {
            Ok(_) => self.ledger.accepted(to, from, number),
            Err(SendError::Closed(_) | SendError::HostGone(_) | SendError::MailboxFailed(_)) => {}
            Err(SendError::Full(_)) => {
                return Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable);
            }
        }
        Flow::Continue
    }

    fn suspend(&self, ctx: &mut Context<'_, Self>) -> Flow<ChaosMsg> {
        let key = ctx.signal_key();
        // The receiver outlives the actors.
        drop(self.keys.send((ctx.me(), key)));
        Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key))
    }

    fn wait(&self) -> Flow<ChaosMsg> {
        self.ledger.awaited(self.id);
        let to = self.id;
        let from = self.id;
        Flow::wait(async move {
            tokio::task::yield_now().await;
            ChaosMsg { to, from, number: 0, action: Action::Woken }
        })
    }
}

impl Actor for ChaosActor {
    type Msg = ChaosMsg;

    fn receive(&mut self, message: ChaosMsg, ctx: &mut Context<'_, Self>) -> HandlerResult<ChaosMsg> {
        if let Action::Woken = message.action {
            self.ledger.woken(self.id);
            return Ok(Flow::Continue);
        }
        assert_eq!(message.to, self.id, "the message reached another actor");
        self.ledger.handled(self.id, message.from, message.number);
        Ok(match message.action {
            Action::Nothing | Action::Woken => Flow::Continue,
            Action::Answer(reply) => {
                let _ = reply.send(message.number);
                Flow::Continue
            }
            Action::Yield => Flow::Yield,
            Action::Fail => return Err(ActorError::new("on purpose")),
            // Panics without printing a message.
            Action::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Action::Suspend => self.suspend(ctx),
            Action::SuspendBriefly => {
                let after = ResumeCondition::After(Duration::from_micros(100));
                Flow::Suspend(SuspendReason::RateLimit, after)
            }
            Action::Await => self.wait(),
            Action::SetTimer => {
                ctx.set_timer(TimerId(message.number), Duration::from_micros(50), Repeat::Once);
                Flow::Continue
            }
            Action::Relay => self.relay(ctx),
        })
    }

    /// Yields, so that the run ends between two system messages.
    fn signal(&mut self, _signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<ChaosMsg> {
        Ok(Flow::Yield)
    }

    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        self.ledger.stopped(self.id);
    }
}

/// Returns a mailbox with a random capacity and overflow strategy.
pub(crate) fn mailbox(random: &mut Random) -> MailboxOptions {
    let capacity = random.pick(&[1, 2, 8, 64, 4096]);
    let overflow = random.pick(&[
        OverflowStrategy::DropOldest,
        OverflowStrategy::DropNewest,
        OverflowStrategy::BlockProducer,
        OverflowStrategy::Reject,
        OverflowStrategy::DeadLetter,
    ]);
    MailboxOptions {
        capacity: NonZeroUsize::new(capacity).expect("at least one"),
        overflow,
        reserve_for_system: 0,
        high_watermark: capacity,
        low_watermark: random.below(capacity),
        middleware: None,
    }
}

/// Sends each awaited signal after a random delay, mixed with signals that no actor awaits.
pub(crate) fn signaller(mut random: Random) -> (Keys, tokio::task::JoinHandle<()>) {
    let (keys, mut suspended) = mpsc::unbounded_channel::<(ActorRef<ChaosMsg>, SignalKey)>();
    let signalling = async move {
        while let Some((actor, key)) = suspended.recv().await {
            for _ in 0..random.below(4) {
                // A key that no actor waits for must not end a wait.
                actor.signal(SignalKey(key.0 ^ (1 << 63)));
                tokio::task::yield_now().await;
            }
            actor.signal(key);
        }
    };
    (keys, tokio::spawn(signalling))
}
