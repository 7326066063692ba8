//! Properties that hold for any input; fuzzing calls the same functions (see `fuzz/`).

pub(crate) mod config;
