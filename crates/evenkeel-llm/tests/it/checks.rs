//! Properties of any input bytes: run on random bytes, on the corpora, and by the fuzz targets in `fuzz/`.

pub(crate) mod request;
pub(crate) mod sse;
