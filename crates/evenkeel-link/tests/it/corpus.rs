//! Inputs that fuzzing found, or that show each kind of frame and error.

use proptest::prelude::*;

use crate::checks::link_frames;

#[test]
fn every_input_of_the_corpus_passes_the_check() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/link_frames");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        link_frames::check(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 10, "{count} inputs");
}

proptest! {
    #[test]
    fn random_bytes_pass_the_check(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        link_frames::check(&input);
    }

    /// Small numbers are more often valid types, lengths and flows.
    #[test]
    fn small_bytes_pass_the_check(input in proptest::collection::vec(0_u8..20, 0..300)) {
        link_frames::check(&input);
    }
}
