//! What must hold for any bytes at all: called with random ones, with the corpora, and by the fuzz targets in `fuzz/`.

pub(crate) mod request;
pub(crate) mod sse;
