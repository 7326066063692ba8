//! Where a workload plays: a started runtime, the echo server beside it if wanted, and the stopwatch.

use std::time::Instant;

use crate::clock::process_cpu;
use crate::echo::{Echo, EchoServer};
use crate::runtime::Runtime;
use crate::sample::{NoSample, Sample};
use crate::settings::{Settings, Switch};

/// A runtime that is ready to be measured.
pub struct Harness<R> {
    /// The runtime.
    pub runtime: R,
    echo: Option<EchoServer>,
}

/// A measurement that is under way.
pub struct Measurement {
    echo: Option<Echo>,
    cpu: std::time::Duration,
    wall: Instant,
}

impl<R: Runtime> Harness<R> {
    /// Starts the runtime, and the echo server where the settings want one.
    pub fn set(settings: &Settings) -> Result<Self, NoSample> {
        let runtime = R::start(settings)?;
        let echo = match (settings.echo, runtime.tokio()) {
            (Switch::Off, _) => None,
            (Switch::On, Some(tokio)) => Some(EchoServer::on(tokio)?),
            (Switch::On, None) => {
                return Err(NoSample::Unsupported("no tokio runtime to run an echo server on"));
            }
        };
        Ok(Self { runtime, echo })
    }

    /// Starts the stopwatch; from here on the echo server is asked, too.
    pub fn start(&mut self) -> Result<Measurement, NoSample> {
        let echo = self.echo.take().map(EchoServer::ask).transpose()?;
        Ok(Measurement { echo, cpu: process_cpu(), wall: Instant::now() })
    }

    /// Stops the stopwatch after `ops` operations.
    pub fn stop(self, take: Measurement, ops: u64) -> Result<Sample, NoSample> {
        let wall = take.wall.elapsed();
        let cpu = process_cpu().saturating_sub(take.cpu);
        let sample = Sample::new(ops, wall, cpu);
        let Some(echo) = take.echo else {
            self.leave();
            return Ok(sample);
        };
        let delays = echo.stop()?;
        self.leave();
        let asked = delays.len() as f64;
        Ok(sample.with_delays("echo_", delays).with("echo_count", asked))
    }

    /// Leaves the runtime to the end of the process: taking a million actors apart is no part of any figure.
    fn leave(self) {
        std::mem::forget(self.runtime);
    }
}
