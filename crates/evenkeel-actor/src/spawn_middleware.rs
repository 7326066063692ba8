//! Spawn middleware: observes or rejects every spawn of a system.

use alloc::boxed::Box;
use alloc::vec::Vec;

use evenkeel_policy::time::Instant;

use crate::guardian::ActorError;
use crate::index::MailboxIndex;
use crate::mailbox::MailboxOptions;
use crate::panic::catch_panic;
use crate::system::SpawnError;

/// Description of the actor about to be spawned, passed to the hooks of a [`SpawnMiddleware`].
#[derive(Clone, Copy, Debug)]
pub struct SpawnContext<'a> {
    /// The actor's metric label.
    pub label: &'a str,
    /// The parent, if the actor will be a child.
    pub parent: Option<MailboxIndex>,
    /// The options of the actor's mailbox.
    pub mailbox: &'a MailboxOptions,
    /// The time of the spawn.
    pub now: Instant,
}

/// A hook around every spawn of a system, including children, routees and tasks.
///
/// It runs on the spawning thread, possibly inside a handler, so it should be fast. Restarts are not spawns.
pub trait SpawnMiddleware: Send + Sync {
    /// Runs before the actor is created; an error or a panic rejects the spawn.
    fn before_spawn(&self, ctx: &SpawnContext<'_>) -> Result<(), ActorError>;

    /// Runs after the spawn with its result, once for each spawn that this middleware accepted.
    ///
    /// The actor may already be running, or have stopped.
    fn after_spawn(&self, _ctx: &SpawnContext<'_>, _spawned: Result<MailboxIndex, &SpawnError>) {}
}

/// The spawn middleware of a system: `before_spawn` in order, `after_spawn` in reverse.
#[derive(Default)]
pub(crate) struct SpawnChain(Vec<Box<dyn SpawnMiddleware>>);

impl SpawnChain {
    pub(crate) fn push(&mut self, middleware: Box<dyn SpawnMiddleware>) {
        self.0.push(middleware);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Spawns between the `before_spawn` and `after_spawn` hooks.
    pub(crate) fn spawn_with_hooks<T>(
        &self,
        ctx: &SpawnContext<'_>,
        spawn: impl FnOnce() -> Result<T, SpawnError>,
        index_of: impl Fn(&T) -> MailboxIndex,
    ) -> Result<T, SpawnError> {
        for (index, middleware) in self.0.iter().enumerate() {
            if let Err(error) = catch_panic(|| middleware.before_spawn(ctx)).flatten() {
                let rejected = SpawnError::Refused(error);
                after_spawn(&self.0[..index], ctx, Err(&rejected));
                return Err(rejected);
            }
        }
        let spawned = spawn();
        after_spawn(&self.0, ctx, spawned.as_ref().map(index_of));
        spawned
    }
}

fn after_spawn(
    accepted: &[Box<dyn SpawnMiddleware>],
    ctx: &SpawnContext<'_>,
    spawned: Result<MailboxIndex, &SpawnError>,
) {
    for middleware in accepted.iter().rev() {
        // A panicking middleware does not change the result of the spawn.
        drop(catch_panic(|| middleware.after_spawn(ctx, spawned)));
    }
}
