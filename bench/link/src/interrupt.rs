//! SIGINT and SIGTERM end a run between two samples, so that its namespaces and processes are removed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench_support::RunError;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Set by a signal.
pub(crate) struct InterruptFlag(Arc<AtomicBool>);

impl InterruptFlag {
    /// Handles the signals from now on.
    pub(crate) fn register() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Fails after a signal.
    pub(crate) fn check(&self) -> Result<(), RunError> {
        if self.0.load(Ordering::Relaxed) {
            return Err(RunError("interrupted".to_owned()));
        }
        Ok(())
    }
}
