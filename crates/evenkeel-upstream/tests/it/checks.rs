//! Invariants that must hold for arbitrary input: checked on random bytes, on the corpus, and by the fuzz target in
//! `fuzz/`.

pub(crate) mod response;
