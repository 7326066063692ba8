//! Names for actors, found by whoever knows the type of their messages.
//!
//! Bound: at most `names_max` names of at most [`NAME_LEN_MAX`] bytes. A name holds an index and no
//! reference: it keeps nobody alive, names nobody once its actor has ended, whoever is in the slot by
//! then, and is free from that moment. What such names occupy is given back before the table doubles.

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

/// The most bytes of a name.
pub const NAME_LEN_MAX: usize = 256;
/// Below this many names, those of ended actors are left until somebody asks for them.
const SWEEP_MIN: usize = 64;

/// The names of one system.
#[derive(Clone, Copy)]
pub struct NameRegistry<'a>(&'a Core);

impl ReadyQueueScheduler {
    /// Gives, finds and takes back names of actors.
    pub fn names(&self) -> NameRegistry<'_> {
        NameRegistry(self.core())
    }
}

impl<A: Actor> Context<'_, A> {
    /// Gives, finds and takes back names of actors.
    ///
    /// An actor that registers [`Context::me`] in [`Actor::started`] has its name before its first
    /// message, and fails with the refusal if the name is taken.
    pub fn names(&self) -> NameRegistry<'_> {
        NameRegistry(self.local.core())
    }
}

impl NameRegistry<'_> {
    /// Gives an actor a name, until it ends or the name is taken back; it may have several.
    pub fn register<M: Send + 'static>(&self, name: &str, actor: &ActorRef<M>) -> Result<(), RegisterError> {
        if !(1..=NAME_LEN_MAX).contains(&name.len()) {
            return Err(RegisterError::Length { len: name.len() });
        }
        if !core::ptr::eq(self.0, actor.cell().core()) {
            return Err(RegisterError::OtherSystem);
        }
        if actor.state() == ActorState::Stopped {
            return Err(RegisterError::Ended);
        }
        self.sweep();
        let who = actor.index();
        match self.0.names.with(|names| names.claim(name, who)) {
            ClaimResult::Granted => Ok(()),
            ClaimResult::Full { names_max } => Err(RegisterError::Full { names_max }),
            ClaimResult::Held(by) if self.living(by).is_some() => Err(RegisterError::Taken { by }),
            ClaimResult::Held(ended) => self
                .0
                .names
                .with(|names| names.inherit(name, ended, who))
                .map_err(|by| RegisterError::Taken { by }),
        }
    }

    /// Finds the actor with this name, for messages of type `M`.
    pub fn find<M: Send + 'static>(&self, name: &str) -> Result<ActorRef<M>, FindError> {
        let who = self.0.names.with(|names| names.get(name)).ok_or(FindError::NoSuchName)?;
        let Some(cell) = self.living(who) else {
            self.0.names.with(|names| names.forget(name, who));
            return Err(FindError::NoSuchName);
        };
        let lane = MailboxRef::typed(cell).map_err(|takes| FindError::OtherMessages { takes })?;
        Ok(ActorRef::new(lane))
    }

    /// Takes a name back; tells who had it.
    pub fn unregister(&self, name: &str) -> Option<MailboxIndex> {
        let who = self.0.names.with(|names| names.remove(name))?;
        self.living(who).map(|_| who)
    }

    fn living(&self, index: MailboxIndex) -> Option<CellRef> {
        let cell = self.0.slab.find(index.slot, index.generation)?;
        (cell.state() != ActorState::Stopped).then_some(cell)
    }

    /// Forgets the names of ended actors, if there may be many.
    fn sweep(&self) {
        let Some(holders) = self.0.names.with(|names| names.holders_to_sweep()) else { return };
        // Outside of the lock: the last reference to a cell may be dropped here.
        let mut ended: Vec<_> = holders.into_iter().filter(|who| self.living(*who).is_none()).collect();
        ended.sort_unstable();
        self.0.names.with(|names| names.sweep(&ended));
    }
}

impl fmt::Debug for NameRegistry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// Who has which name, as far as the table knows: holders may have ended.
#[derive(Debug)]
pub(crate) struct NameTable {
    holders: BTreeMap<String, MailboxIndex>,
    names_max: usize,
    /// At this many names, those of ended actors are looked for.
    sweep_at: usize,
}

/// What became of a claim to a name.
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

    fn claim(&mut self, name: &str, who: MailboxIndex) -> ClaimResult {
        if let Some(by) = self.get(name) {
            return ClaimResult::Held(by);
        }
        if self.names_max <= self.holders.len() {
            return ClaimResult::Full { names_max: self.names_max };
        }
        self.holders.insert(name.into(), who);
        ClaimResult::Granted
    }

    /// Hands the name of somebody who has ended to another; `Err` names who was faster.
    fn inherit(&mut self, name: &str, ended: MailboxIndex, who: MailboxIndex) -> Result<(), MailboxIndex> {
        match self.get(name) {
            Some(by) if by != ended => Err(by),
            _ => {
                self.holders.insert(name.into(), who);
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

    /// Forgets a name unless somebody else has it by now.
    fn forget(&mut self, name: &str, ended: MailboxIndex) {
        if self.get(name) == Some(ended) {
            self.holders.remove(name);
        }
    }

    /// Names every holder, when it is time to look for those who have ended.
    fn holders_to_sweep(&self) -> Option<Vec<MailboxIndex>> {
        (self.sweep_at <= self.holders.len()).then(|| self.holders.values().copied().collect())
    }

    fn sweep(&mut self, ended: &[MailboxIndex]) {
        self.holders.retain(|_, who| ended.binary_search(who).is_err());
        self.sweep_at = (2 * self.holders.len()).max(SWEEP_MIN).min(self.names_max);
    }
}

/// Why an actor did not get a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Another has it, or the same actor already.
    Taken {
        /// Who.
        by: MailboxIndex,
    },
    /// There are as many names as there may be.
    Full {
        /// How many there may be.
        names_max: usize,
    },
    /// The name is empty, or longer than [`NAME_LEN_MAX`] bytes.
    Length {
        /// Its bytes.
        len: usize,
    },
    /// The actor has ended.
    Ended,
    /// The actor belongs to another system.
    OtherSystem,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { by } => write!(f, "actor {by} has that name"),
            Self::Full { names_max } => write!(f, "there are {names_max} names already"),
            Self::Length { len } => write!(f, "a name has 1 to {NAME_LEN_MAX} bytes, not {len}"),
            Self::Ended => f.write_str("the actor has ended"),
            Self::OtherSystem => f.write_str("the actor belongs to another system"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// Why a name led to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindError {
    /// Nobody has it, or its actor has ended.
    NoSuchName,
    /// Its actor takes messages of another type.
    OtherMessages {
        /// That type.
        takes: &'static str,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchName => f.write_str("no actor has that name"),
            Self::OtherMessages { takes } => write!(f, "the actor of that name takes {takes}"),
        }
    }
}

impl core::error::Error for FindError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_name_is_given_once() {
        let mut names = NameTable::new(8);
        assert_eq!(names.claim("a", index(1)), ClaimResult::Granted);
        assert_eq!(names.claim("a", index(2)), ClaimResult::Held(index(1)));
        assert_eq!(names.remove("a"), Some(index(1)));
        assert_eq!((names.claim("a", index(2)), names.get("a")), (ClaimResult::Granted, Some(index(2))));
    }

    #[test]
    fn a_full_table_refuses_another_name() {
        let mut names = NameTable::new(2);
        assert_eq!(
            (names.claim("a", index(1)), names.claim("b", index(1))),
            (ClaimResult::Granted, ClaimResult::Granted)
        );
        assert_eq!(names.claim("c", index(1)), ClaimResult::Full { names_max: 2 });
        assert_eq!(names.claim("a", index(2)), ClaimResult::Held(index(1)), "rather than full");
    }

    #[test]
    fn only_the_name_of_the_ended_is_inherited_or_forgotten() {
        let mut names = NameTable::new(8);
        names.claim("a", index(1));
        assert_eq!(names.inherit("a", index(1), index(2)), Ok(()));
        assert_eq!(names.inherit("a", index(1), index(3)), Err(index(2)), "another was faster");
        names.forget("a", index(1));
        assert_eq!(names.get("a"), Some(index(2)));
        names.forget("a", index(2));
        assert_eq!(names.inherit("a", index(2), index(3)), Ok(()), "forgotten meanwhile");
    }

    #[test]
    fn the_ended_are_looked_for_each_time_the_table_has_doubled() {
        let mut names = NameTable::new(1_000);
        let mut sweeps = 0;
        for number in 0..1_000 {
            if let Some(holders) = names.holders_to_sweep() {
                sweeps += 1;
                let ended: Vec<_> = holders.into_iter().filter(|who| who.slot % 2 == 1).collect();
                names.sweep(&ended);
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
