//! Compares all runtimes in alternating rounds and prints tables.

use std::process::ExitCode;

fn main() -> ExitCode {
    actor_bench::rounds::main()
}
