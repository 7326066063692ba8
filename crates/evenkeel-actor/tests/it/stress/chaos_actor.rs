//! An actor that does, in random order, everything that could lose a message.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_actor::*;
use tokio::sync::mpsc;

use super::Random;
use super::ledger::Ledger;

/// A message: who sent it to whom, its number among theirs, and what it makes the actor do.
pub(crate) struct Note {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) number: u64,
    pub(crate) task: Task,
}

pub(crate) enum Task {
    Nothing,
    Answer(Reply<u64>),
    Yield,
    Fail,
    Panic,
    /// Suspends until somebody signals.
    Suspend,
    /// Suspends for a moment.
    Pause,
    Await,
    /// Has the system say something a moment later.
    Alarm,
    /// What a future that was waited for says; nobody sent it.
    Woken,
    Relay,
}

/// Where an actor says what it waits for.
pub(crate) type Keys = mpsc::UnboundedSender<(ActorRef<Note>, SignalKey)>;

pub(crate) struct Clerk {
    id: usize,
    ledger: Arc<Ledger>,
    keys: Keys,
    next: Option<ActorRef<Note>>,
}

impl Clerk {
    pub(crate) fn new(id: usize, ledger: Arc<Ledger>, keys: Keys, next: Option<ActorRef<Note>>) -> Self {
        Self { id, ledger, keys, next }
    }

    /// Passes a message on; when there is no room, waits until there is.
    fn relay(&self, ctx: &mut Context<'_, Self>) -> Flow<Note> {
        let Some(next) = &self.next else { return Flow::Continue };
        let to = self.id - 1;
        let (from, number) = self.ledger.next_relay(self.id);
        match ctx.try_tell(next, Note { to, from, number, task: Task::Nothing }) {
            Ok(_) => self.ledger.accepted(to, from, number),
            Err(SendError::Closed(_)) => {}
            Err(SendError::Full(_)) => {
                return Flow::Suspend(SuspendReason::Backpressure, ResumeCondition::WhenCapacityAvailable);
            }
        }
        Flow::Continue
    }

    fn suspend(&self, ctx: &mut Context<'_, Self>) -> Flow<Note> {
        let key = ctx.signal_key();
        // The other end outlives the actors.
        drop(self.keys.send((ctx.me(), key)));
        Flow::Suspend(SuspendReason::UserDefined, ResumeCondition::ExternalSignal(key))
    }

    fn wait(&self) -> Flow<Note> {
        self.ledger.awaited(self.id);
        let to = self.id;
        let from = self.id;
        Flow::wait(async move {
            tokio::task::yield_now().await;
            Note { to, from, number: 0, task: Task::Woken }
        })
    }
}

impl Actor for Clerk {
    type Msg = Note;

    fn receive(&mut self, note: Note, ctx: &mut Context<'_, Self>) -> HandlerResult<Note> {
        if let Task::Woken = note.task {
            self.ledger.woken(self.id);
            return Ok(Flow::Continue);
        }
        assert_eq!(note.to, self.id, "reached another");
        self.ledger.handled(self.id, note.from, note.number);
        Ok(match note.task {
            Task::Nothing | Task::Woken => Flow::Continue,
            Task::Answer(reply) => {
                let _late = reply.send(note.number);
                Flow::Continue
            }
            Task::Yield => Flow::Yield,
            Task::Fail => return Err(ActorError::new("on purpose")),
            // A panic that prints nothing.
            Task::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Task::Suspend => self.suspend(ctx),
            Task::Pause => {
                let after = ResumeCondition::After(Duration::from_micros(100));
                Flow::Suspend(SuspendReason::RateLimit, after)
            }
            Task::Await => self.wait(),
            Task::Alarm => {
                ctx.set_timer(TimerId(note.number), Duration::from_micros(50), Repeat::Once);
                Flow::Continue
            }
            Task::Relay => self.relay(ctx),
        })
    }

    /// Ends the run in the middle of what the system has to say.
    fn signal(&mut self, _signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Note> {
        Ok(Flow::Yield)
    }

    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {
        self.ledger.stopped(self.id);
    }
}

/// A mailbox of a random size that overflows in a random way.
pub(crate) fn mailbox(random: &mut Random) -> MailboxOptions {
    let places = random.pick(&[1, 2, 8, 64, 4096]);
    let overflow = random.pick(&[
        OverflowStrategy::DropOldest,
        OverflowStrategy::DropNewest,
        OverflowStrategy::BlockProducer,
        OverflowStrategy::Reject,
        OverflowStrategy::DeadLetter,
    ]);
    let capacity = NonZeroUsize::new(places).expect("at least one");
    MailboxOptions {
        capacity,
        overflow,
        reserve_for_system: 0,
        high_watermark: places,
        low_watermark: random.below(places),
        middleware: None,
    }
}

/// Signals what actors wait for, sooner or later and not in their order.
pub(crate) fn signaller(mut random: Random) -> (Keys, tokio::task::JoinHandle<()>) {
    let (keys, mut asked) = mpsc::unbounded_channel::<(ActorRef<Note>, SignalKey)>();
    let signalling = async move {
        while let Some((actor, key)) = asked.recv().await {
            for _ in 0..random.below(4) {
                // A key of nobody's wait ends none.
                actor.signal(SignalKey(key.0 ^ (1 << 63)));
                tokio::task::yield_now().await;
            }
            actor.signal(key);
        }
    };
    (keys, tokio::spawn(signalling))
}
