//! swrr
