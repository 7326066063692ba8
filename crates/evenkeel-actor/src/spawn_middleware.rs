//! What surrounds every spawn of a system.

use alloc::boxed::Box;
use alloc::vec::Vec;

use evenkeel_policy::time::Instant;

use crate::guardian::ActorError;
use crate::index::MailboxIndex;
use crate::mailbox::MailboxOptions;
use crate::panic::catch;
use crate::system::SpawnError;

/// What a spawn middleware knows about an actor that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct SpawnContext<'a> {
    /// What metrics call the actor.
    pub label: &'a str,
    /// Whose child it will be.
    pub parent: Option<MailboxIndex>,
    /// Its mailbox.
    pub mailbox: &'a MailboxOptions,
    /// The time.
    pub now: Instant,
}

/// Surrounds the making of every actor of a system: children, routees and tasks included.
///
/// It is called on the thread that spawns, inside handlers too, and should be short. A restart makes no
/// new actor, and is not surrounded.
pub trait SpawnMiddleware: Send + Sync {
    /// Looks at an actor before its factory is called; an error, or a panic, refuses it.
    fn before_spawn(&self, ctx: &SpawnContext<'_>) -> Result<(), ActorError>;

    /// Looks at what became of it; called once for each that was let through here.
    ///
    /// The actor may have begun to run, and may have ended.
    fn after_spawn(&self, _ctx: &SpawnContext<'_>, _spawned: Result<MailboxIndex, &SpawnError>) {}
}

/// Every spawn middleware of a system: before in order, after in reverse.
#[derive(Default)]
pub(crate) struct SpawnChain(Vec<Box<dyn SpawnMiddleware>>);

impl SpawnChain {
    pub(crate) fn push(&mut self, inner: Box<dyn SpawnMiddleware>) {
        self.0.push(inner);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks each in turn, spawns, and tells each that was asked and did not refuse.
    pub(crate) fn surround<T>(
        &self,
        ctx: &SpawnContext<'_>,
        spawn: impl FnOnce() -> Result<T, SpawnError>,
        index_of: impl Fn(&T) -> MailboxIndex,
    ) -> Result<T, SpawnError> {
        for (at, middleware) in self.0.iter().enumerate() {
            let asked = catch(|| middleware.before_spawn(ctx));
            if let Err(why) = asked.and_then(|answer| answer) {
                let refused = SpawnError::Refused(why);
                tell(&self.0[..at], ctx, Err(&refused));
                return Err(refused);
            }
        }
        let spawned = spawn();
        tell(&self.0, ctx, spawned.as_ref().map(index_of));
        spawned
    }
}

fn tell(
    told: &[Box<dyn SpawnMiddleware>],
    ctx: &SpawnContext<'_>,
    spawned: Result<MailboxIndex, &SpawnError>,
) {
    for middleware in told.iter().rev() {
        // What became of the spawn is settled, whatever its middleware makes of that.
        drop(catch(|| middleware.after_spawn(ctx, spawned)));
    }
}
