//! Scripted callbacks: losses, application limits, and what the session sees of them.

mod gate;
mod script;
mod signals;
