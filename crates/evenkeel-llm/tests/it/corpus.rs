//! Replays inputs written by hand or found by fuzzing as regression tests.

use std::fs;
use std::path::Path;

use crate::{checks, sse};

#[test]
fn every_request_of_the_corpus_passes_the_request_checks() {
    replay("request", checks::request::check);
}

#[test]
fn every_stream_of_the_corpus_passes_the_stream_checks() {
    replay("sse", sse::check_every_split);
}

fn replay(name: &str, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        check(&fs::read(&path).unwrap());
    }
}
