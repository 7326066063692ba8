//! What any bytes are held to; fuzzing calls the same functions (see `fuzz/`).

pub(crate) mod config;
