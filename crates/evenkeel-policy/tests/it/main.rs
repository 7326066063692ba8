//! The bounds each module of `evenkeel-policy` states, held against random inputs.

mod swrr;
