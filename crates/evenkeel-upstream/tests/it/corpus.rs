//! Replays responses found by hand or by fuzzing as regression tests.

use std::fs;
use std::path::Path;

use crate::checks::response::check_cuts;

#[test]
fn every_response_of_the_corpus_passes_its_checks() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/response");
    let mut paths: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        check_cuts(&fs::read(&path).unwrap(), 1);
    }
}
