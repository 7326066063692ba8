//! Checks of arbitrary bytes, shared with the fuzz targets.

pub(crate) mod link_frames;
pub(crate) mod relay_setup;
