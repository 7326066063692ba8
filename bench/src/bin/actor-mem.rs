//! Runs one workload on one runtime, with an allocator that counts bytes; for the workload `heap`.

use std::alloc::System;
use std::process::ExitCode;

use cap::Cap;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    actor_bench::cli::main("actor-mem", Some(|| HEAP.allocated()))
}
