//! `cargo xtask deep fuzz`: bytes that nobody thought of, against everything that reads bytes.

use crate::error::TaskError;
use crate::process::Call;
use crate::tools::{self, Tool};
use std::fs;

/// What is fuzzed, and where inputs are that it must have seen.
struct Target {
    name: &'static str,
    corpus: &'static str,
}

const TARGETS: &[Target] = &[
    Target { name: "answer", corpus: "crates/evenkeel-llm/tests/corpus/answer" },
    Target { name: "config", corpus: "crates/evenkeel/tests/corpus/config" },
    Target { name: "request", corpus: "crates/evenkeel-llm/tests/corpus/request" },
    Target { name: "sse", corpus: "crates/evenkeel-llm/tests/corpus/sse" },
];

/// How long each target is fuzzed unless the environment says otherwise.
const SECS: u64 = 60;
const SECS_NAME: &str = "EVENKEEL_FUZZ_SECS";
/// Longer inputs take longer and reach nothing new; limits on length have tests of their own.
const INPUT_BYTES_MAX: u32 = 2_048;
/// Where inputs are kept that reach new code, from one run to the next.
const FOUND: &str = "target/fuzz-corpus";

const NEEDED: &[Tool] = &[
    Tool::Nightly,
    Tool::Subcommand { name: "fuzz", package: "cargo-fuzz" },
    Tool::Debian { program: "c++", package: "g++" },
];

/// Fuzzes every target for its time, also after one fails.
pub(crate) fn run_targets() -> Result<(), TaskError> {
    let secs = secs(std::env::var(SECS_NAME).ok().as_deref())?;
    tools::ensure(NEEDED)?;
    let mut failed = Vec::new();
    for target in TARGETS {
        let found = format!("{FOUND}/{}", target.name);
        fs::create_dir_all(&found).map_err(|error| TaskError::new(format!("{found}: {error}")))?;
        if let Err(failure) = call(target, found, secs).run() {
            failed.push(failure.to_string());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(TaskError::new(failed.join("; "))) }
}

fn secs(given: Option<&str>) -> Result<u64, TaskError> {
    let Some(given) = given else { return Ok(SECS) };
    given
        .parse()
        .map_err(|_| TaskError::new(format!("{SECS_NAME} is {given:?}, which is no number of seconds")))
}

/// The code has no `unsafe`, so that panics are what is looked for, and no sanitizer slows it down.
fn call(target: &Target, found: String, secs: u64) -> Call {
    Call::new(
        "rustup",
        "run nightly cargo fuzz run --fuzz-dir fuzz --target-dir target/fuzz --sanitizer none",
    )
    .args([target.name.to_owned(), found, target.corpus.to_owned(), "--".to_owned()])
    .args([format!("-max_total_time={secs}"), format!("-max_len={INPUT_BYTES_MAX}")])
    .args(["-timeout=10"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_target_has_a_corpus_and_a_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for Target { name, corpus } in TARGETS {
            let first = fs::read_dir(root.join(corpus)).unwrap().next();
            assert!(first.is_some(), "{corpus} is empty");
            assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
        }
    }

    #[test]
    fn what_is_found_is_kept_apart_from_the_corpus() {
        let target = TARGETS.iter().find(|target| target.name == "request").unwrap();
        let line = call(target, "found".to_owned(), 7).to_string();
        assert!(line.contains(" request found crates/evenkeel-llm/tests/corpus/request -- "), "{line}");
        assert!(line.contains("-max_total_time=7 "), "{line}");
    }

    #[test]
    fn a_time_that_is_none_is_refused() {
        assert_eq!((secs(None), secs(Some("5"))), (Ok(SECS), Ok(5)));
        let refused = secs(Some("soon")).unwrap_err().to_string();
        assert_eq!(refused, "EVENKEEL_FUZZ_SECS is \"soon\", which is no number of seconds");
    }
}
