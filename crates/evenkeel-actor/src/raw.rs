//! The one address of `unsafe`: memory that outlives its owner's patience, and what only the holder of
//! the run right may touch.
//!
//! Who may touch which field: everything in a [`slab::Slot`] but its occupant is atomic; the occupant
//! is written before the first reference exists and only read while one does. What sits in an
//! [`run::Owned`] belongs to whoever holds the cell's run right (`SCHEDULED` in [`state::CellState`]),
//! and the run right is a value, [`run::Ready`], that cannot be copied.

#![allow(unsafe_code, reason = "this folder is where unsafe code lives")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test"))]

#[cfg(all(not(loom), feature = "std"))]
pub(crate) mod current;
#[cfg(all(not(loom), feature = "std"))]
mod free_list;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
pub(crate) mod mailbox_ref;
pub(crate) mod oneshot;
#[cfg(not(loom))]
pub(crate) mod run_permit;
pub(crate) mod slab;
pub(crate) mod state;
#[cfg(not(loom))]
pub(crate) mod waker;
