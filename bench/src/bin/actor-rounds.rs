//! Alternating rounds of all runtimes and workloads, as tables.

use std::process::ExitCode;

fn main() -> ExitCode {
    actor_bench::rounds::main()
}
