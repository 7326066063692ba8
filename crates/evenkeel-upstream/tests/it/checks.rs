//! Properties of any input bytes: run on random bytes, on the corpus, and by the fuzz target in `fuzz/`.

pub(crate) mod response;
