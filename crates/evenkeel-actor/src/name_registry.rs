//! Name registry: actors registered under a name and looked up by name and message type.
//!
//! Limits: at most `names_max` names of at most [`NAME_LEN_MAX`] bytes. Guarantees: a name stores a generational index,
//! not a reference, so it keeps no actor alive and never resolves to a later actor in the same slot. It is free again
//! once its actor has stopped; entries of stopped actors are removed whenever the table has doubled.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::actor::Actor;
use crate::actor_ref::ActorRef;
use crate::cell::CellRef;
use crate::context::Context;
use crate::index::MailboxIndex;
use crate::invoke::ActorState;
use crate::raw::mailbox_ref::MailboxRef;
use crate::system::{Core, ReadyQueueScheduler};

/// The maximum length of a name in bytes.
pub const NAME_LEN_MAX: usize = 256;
/// Below this number of names, the entry of a stopped actor is removed only when its name is used again.
const SWEEP_MIN: usize = 64;

/// The name registry of one system.
#[derive(Clone, Copy)]
pub struct NameRegistry<'a>(&'a Core);

impl ReadyQueueScheduler {
    /// Returns the name registry.
    pub fn names(&self) -> NameRegistry<'_> {
        NameRegistry(self.core())
    }
}

impl<A: Actor> Context<'_, A> {
    /// Returns the name registry.
    ///
    /// An actor that registers [`Context::me`] in [`Actor::started`] has its name before its first message, and can
    /// fail with the error if the name is taken.
    pub fn names(&self) -> NameRegistry<'_> {
        NameRegistry(self.local.core())
    }
}

impl NameRegistry<'_> {
    /// Registers an actor under a name until it stops or the name is unregistered; an actor may have several names.
    pub fn register<M: Send + 'static>(&self, name: &str, actor: &ActorRef<M>) -> Result<(), RegisterError> {
        if !(1..=NAME_LEN_MAX).contains(&name.len()) {
            return Err(RegisterError::Length { len: name.len() });
        }
        if !core::ptr::eq(self.0, actor.cell().core()) {
            return Err(RegisterError::OtherSystem);
        }
        if actor.state() == ActorState::Stopped {
            return Err(RegisterError::Stopped);
        }
        self.sweep();
        let index = actor.index();
        match self.0.names.with(|names| names.claim(name, index)) {
            ClaimResult::Granted => Ok(()),
            ClaimResult::Full { names_max } => Err(RegisterError::Full { names_max }),
            ClaimResult::Held(by) if self.find_alive(by).is_some() => Err(RegisterError::Taken { by }),
            ClaimResult::Held(stopped) => self
                .0
                .names
                .with(|names| names.replace_stopped(name, stopped, index))
                .map_err(|by| RegisterError::Taken { by }),
        }
    }

    /// Looks up the actor with this name; it must accept messages of type `M`.
    pub fn find<M: Send + 'static>(&self, name: &str) -> Result<ActorRef<M>, FindError> {
        let index = self.0.names.with(|names| names.get(name)).ok_or(FindError::NoSuchName)?;
        let Some(cell) = self.find_alive(index) else {
            self.0.names.with(|names| names.remove_stopped(name, index));
            return Err(FindError::NoSuchName);
        };
        let mailbox = MailboxRef::typed(cell).map_err(|accepts| FindError::WrongMessageType { accepts })?;
        Ok(ActorRef::new(mailbox))
    }

    /// Removes a name and returns the actor that had it, unless that actor has stopped.
    pub fn unregister(&self, name: &str) -> Option<MailboxIndex> {
        let index = self.0.names.with(|names| names.remove(name))?;
        self.find_alive(index).map(|_| index)
    }

    fn find_alive(&self, index: MailboxIndex) -> Option<CellRef> {
        let cell = self.0.slab.find(index.slot, index.generation)?;
        (cell.state() != ActorState::Stopped).then_some(cell)
    }

    /// Removes the names of stopped actors if the table has doubled since the last sweep.
    fn sweep(&self) {
        let Some(holders) = self.0.names.with(|names| names.holders_to_sweep()) else { return };
        // Outside the lock: the last reference to a cell may be dropped here.
        let mut stopped: Vec<_> =
            holders.into_iter().filter(|holder| self.find_alive(*holder).is_none()).collect();
        stopped.sort_unstable();
        self.0.names.with(|names| names.sweep(&stopped));
    }
}

impl fmt::Debug for NameRegistry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameRegistry")
    }
}

/// Names and their holders; a holder may have stopped since.
#[derive(Debug)]
pub(crate) struct NameTable {
    holders: BTreeMap<String, MailboxIndex>,
    names_max: usize,
    /// The number of names at which the next sweep runs.
    sweep_at: usize,
}

/// Result of [`NameTable::claim`].
#[derive(Debug, PartialEq, Eq)]
enum ClaimResult {
    Granted,
    Held(MailboxIndex),
    Full { names_max: usize },
}

impl NameTable {
    pub(crate) fn new(names_max: usize) -> Self {
        Self { holders: BTreeMap::new(), names_max, sweep_at: SWEEP_MIN.min(names_max) }
    }

    fn claim(&mut self, name: &str, claimant: MailboxIndex) -> ClaimResult {
        if let Some(by) = self.get(name) {
            return ClaimResult::Held(by);
        }
        if self.holders.len() >= self.names_max {
            return ClaimResult::Full { names_max: self.names_max };
        }
        self.holders.insert(name.into(), claimant);
        ClaimResult::Granted
    }

    /// Transfers the name of a stopped actor; returns the holder as an error if another claimant came first.
    fn replace_stopped(
        &mut self,
        name: &str,
        stopped: MailboxIndex,
        claimant: MailboxIndex,
    ) -> Result<(), MailboxIndex> {
        match self.get(name) {
            Some(holder) if holder != stopped => Err(holder),
            _ => {
                self.holders.insert(name.into(), claimant);
                Ok(())
            }
        }
    }

    fn get(&self, name: &str) -> Option<MailboxIndex> {
        self.holders.get(name).copied()
    }

    fn remove(&mut self, name: &str) -> Option<MailboxIndex> {
        self.holders.remove(name)
    }

    /// Removes a name if the stopped actor still holds it.
    fn remove_stopped(&mut self, name: &str, stopped: MailboxIndex) {
        if self.get(name) == Some(stopped) {
            self.holders.remove(name);
        }
    }

    /// Returns every holder if a sweep is due.
    fn holders_to_sweep(&self) -> Option<Vec<MailboxIndex>> {
        (self.sweep_at <= self.holders.len()).then(|| self.holders.values().copied().collect())
    }

    /// Removes the names of the actors in `stopped`, which is sorted.
    fn sweep(&mut self, stopped: &[MailboxIndex]) {
        self.holders.retain(|_, holder| stopped.binary_search(holder).is_err());
        self.sweep_at = (2 * self.holders.len()).max(SWEEP_MIN).min(self.names_max);
    }
}

/// Reason an actor could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another actor, or the same one, already has the name.
    #[error("the name is taken by actor {by}")]
    Taken {
        /// The holder.
        by: MailboxIndex,
    },
    /// The registry holds `names_max` names.
    #[error("the registry is full: {names_max} names")]
    Full {
        /// The limit.
        names_max: usize,
    },
    /// The name is empty, or longer than [`NAME_LEN_MAX`] bytes.
    #[error("a name has 1 to {NAME_LEN_MAX} bytes, not {len}")]
    Length {
        /// The length in bytes.
        len: usize,
    },
    /// The actor has stopped.
    #[error("the actor has stopped")]
    Stopped,
    /// The actor belongs to another system.
    #[error("the actor belongs to another system")]
    OtherSystem,
}

/// Reason a lookup by name failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// The name is not registered, or its actor has stopped.
    #[error("no actor has that name")]
    NoSuchName,
    /// The actor accepts messages of another type.
    #[error("the actor with that name accepts messages of type {accepts}")]
    WrongMessageType {
        /// The type that it accepts.
        accepts: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_name_is_registered_once() {
        let mut names = NameTable::new(8);
        assert_eq!(names.claim("a", index(1)), ClaimResult::Granted);
        assert_eq!(names.claim("a", index(2)), ClaimResult::Held(index(1)));
        assert_eq!(names.remove("a"), Some(index(1)));
        assert_eq!((names.claim("a", index(2)), names.get("a")), (ClaimResult::Granted, Some(index(2))));
    }

    #[test]
    fn a_full_table_rejects_another_name() {
        let mut names = NameTable::new(2);
        assert_eq!(
            (names.claim("a", index(1)), names.claim("b", index(1))),
            (ClaimResult::Granted, ClaimResult::Granted)
        );
        assert_eq!(names.claim("c", index(1)), ClaimResult::Full { names_max: 2 });
        assert_eq!(names.claim("a", index(2)), ClaimResult::Held(index(1)), "not `Full`");
    }

    #[test]
    fn only_the_name_of_a_stopped_actor_is_replaced_or_removed() {
        let mut names = NameTable::new(8);
        names.claim("a", index(1));
        assert_eq!(names.replace_stopped("a", index(1), index(2)), Ok(()));
        assert_eq!(
            names.replace_stopped("a", index(1), index(3)),
            Err(index(2)),
            "another claimant was faster"
        );
        names.remove_stopped("a", index(1));
        assert_eq!(names.get("a"), Some(index(2)));
        names.remove_stopped("a", index(2));
        assert_eq!(names.replace_stopped("a", index(2), index(3)), Ok(()), "removed meanwhile");
    }

    #[test]
    fn stopped_actors_are_swept_each_time_the_table_has_doubled() {
        let mut names = NameTable::new(1_000);
        let mut sweeps = 0;
        for number in 0..1_000 {
            if let Some(holders) = names.holders_to_sweep() {
                sweeps += 1;
                let stopped: Vec<_> = holders.into_iter().filter(|holder| holder.slot % 2 == 1).collect();
                names.sweep(&stopped);
            }
            assert_eq!(names.claim(&format!("n{number}"), index(number)), ClaimResult::Granted);
        }
        assert!((3..=8).contains(&sweeps), "{sweeps} sweeps");
        assert!(names.holders.len() < 800, "{} names", names.holders.len());
    }

    fn index(slot: u32) -> MailboxIndex {
        MailboxIndex { slot, generation: 0 }
    }
}
