//! drr
