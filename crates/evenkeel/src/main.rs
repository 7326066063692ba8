//! The `evenkeel` binary.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    disable_huge_pages();
    cli::run()
}

/// Keeps the kernel from using huge pages, which refill the gaps that the allocator has returned: a drained queue then
/// keeps half as much memory again.
#[cfg(target_os = "linux")]
fn disable_huge_pages() {
    // Without support in the kernel there is nothing to disable.
    rustix::thread::disable_transparent_huge_pages(true).ok();
}
