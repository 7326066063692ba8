//! On disk.
