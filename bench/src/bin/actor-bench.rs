//! Runs one workload on one runtime, with the system allocator.

use std::process::ExitCode;

fn main() -> ExitCode {
    actor_bench::cli::main("actor-bench", None)
}
