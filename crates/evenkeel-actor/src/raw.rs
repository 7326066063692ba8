//! All unsafe code of the crate: the slab that holds actor cells, the run permit, wakers and the oneshot.
//!
//! Access rules: every field of a [`slab::Slot`] except its occupant is atomic; the occupant is written
//! before the first reference exists and only read while one does. The contents of a `run_permit::PermitCell`
//! belong to the holder of the cell's run permit (`SCHEDULED` in [`state::CellState`]), and the permit is a
//! value, `run_permit::RunPermit`, that cannot be copied.

#![allow(unsafe_code, reason = "all unsafe code of the crate is in this module")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic"))]

pub(crate) mod clear_then_look;
#[cfg(all(not(loom), feature = "std"))]
pub(crate) mod current;
#[cfg(all(not(loom), feature = "std"))]
mod free_list;
#[cfg(any(loom, feature = "std"))]
mod lifo_slot;
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
