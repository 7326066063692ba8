//! `cargo xtask deep fuzz`: fuzzes every parser of untrusted bytes.

use crate::error::TaskError;
use crate::process::Cmd;
use crate::tools::{self, Tool};
use std::fs;

/// A fuzz target and the directory of its seed corpus.
struct FuzzTarget {
    name: &'static str,
    corpus: &'static str,
}

const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "config", corpus: "crates/evenkeel/tests/corpus/config" },
    FuzzTarget { name: "link_frames", corpus: "crates/evenkeel-link/tests/corpus/link_frames" },
    FuzzTarget { name: "relay_setup", corpus: "crates/evenkeel-link/tests/corpus/relay_setup" },
    FuzzTarget { name: "request", corpus: "crates/evenkeel-llm/tests/corpus/request" },
    FuzzTarget { name: "response", corpus: "crates/evenkeel-upstream/tests/corpus/response" },
    FuzzTarget { name: "sse", corpus: "crates/evenkeel-llm/tests/corpus/sse" },
];

/// Default duration per target; an environment variable overrides it.
const SECS_DEFAULT: u64 = 60;
const SECS_VARIABLE: &str = "EVENKEEL_FUZZ_SECS";
/// Maximum input length. Longer inputs are slower and reach no new code; other tests cover the length limits.
const INPUT_BYTES_MAX: u32 = 2_048;
/// Directory of the inputs that reached new code, kept between runs.
const FOUND_DIRECTORY: &str = "target/fuzz-corpus";

const TOOLS: &[Tool] = &[
    Tool::Nightly,
    Tool::CargoInstall { subcommand: "fuzz", package: "cargo-fuzz" },
    Tool::DebianPackage { program: "c++", package: "g++" },
];

/// Fuzzes every target, even after one fails.
pub(crate) fn run_targets() -> Result<(), TaskError> {
    let secs = secs(std::env::var(SECS_VARIABLE).ok().as_deref())?;
    tools::ensure(TOOLS)?;
    let mut failed = Vec::new();
    for target in TARGETS {
        let found = format!("{FOUND_DIRECTORY}/{}", target.name);
        fs::create_dir_all(&found).map_err(|error| TaskError::new(format!("{found}: {error}")))?;
        if let Err(error) = call(target, found, secs).run() {
            failed.push(error.to_string());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(TaskError::new(failed.join("; "))) }
}

fn secs(value: Option<&str>) -> Result<u64, TaskError> {
    let Some(value) = value else { return Ok(SECS_DEFAULT) };
    value
        .parse()
        .map_err(|_| TaskError::new(format!("{SECS_VARIABLE} is {value:?}, expected a number of seconds")))
}

/// Runs one target, without a sanitizer: it would be slower, and code without `unsafe` can only panic.
fn call(target: &FuzzTarget, found: String, secs: u64) -> Cmd {
    Cmd::new("rustup", "run nightly cargo fuzz run --fuzz-dir fuzz --target-dir target/fuzz --sanitizer none")
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
        for FuzzTarget { name, corpus } in TARGETS {
            let first = fs::read_dir(root.join(corpus)).unwrap().next();
            assert!(first.is_some(), "{corpus} is empty");
            assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
        }
    }

    #[test]
    fn found_inputs_are_kept_apart_from_the_corpus() {
        let target = TARGETS.iter().find(|target| target.name == "request").unwrap();
        let line = call(target, "found".to_owned(), 7).to_string();
        assert!(line.contains(" request found crates/evenkeel-llm/tests/corpus/request -- "), "{line}");
        assert!(line.contains("-max_total_time=7 "), "{line}");
    }

    #[test]
    fn an_invalid_duration_is_rejected() {
        assert_eq!((secs(None), secs(Some("5"))), (Ok(SECS_DEFAULT), Ok(5)));
        let error = secs(Some("soon")).unwrap_err().to_string();
        assert_eq!(error, "EVENKEEL_FUZZ_SECS is \"soon\", expected a number of seconds");
    }
}
