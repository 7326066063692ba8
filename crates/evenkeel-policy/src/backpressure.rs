//! backpressure
