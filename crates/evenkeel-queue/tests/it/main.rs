//! Queues from end to end, in memory and on disk.

mod crash;
mod delivery;
mod drr_delivery;
mod fairness;
mod history;
mod life;
mod powercut;
mod restart;
mod rig;
