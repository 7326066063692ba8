//! Measurement harness: a started runtime, the optional echo server, and the timer.

use std::time::Instant;

use crate::clock::process_cpu;
use crate::echo::{Echo, EchoServer};
use crate::runtime::Runtime;
use crate::sample::{Sample, SampleError};
use crate::settings::{Settings, Switch};

/// A started runtime.
pub struct Harness<R> {
    pub runtime: R,
    echo: Option<EchoServer>,
}

/// A running measurement.
pub struct Measurement {
    echo: Option<Echo>,
    cpu: std::time::Duration,
    wall: Instant,
}

impl<R: Runtime> Harness<R> {
    /// Starts the runtime, and the echo server if the settings ask for one.
    pub fn start(settings: &Settings) -> Result<Self, SampleError> {
        let runtime = R::start(settings)?;
        let echo = match (settings.echo, runtime.tokio()) {
            (Switch::Off, _) => None,
            (Switch::On, Some(tokio)) => Some(EchoServer::start(tokio)?),
            (Switch::On, None) => {
                return Err(SampleError::Unsupported("no tokio runtime to run an echo server on"));
            }
        };
        Ok(Self { runtime, echo })
    }

    /// Starts the timer and the echo client.
    pub fn begin(&mut self) -> Result<Measurement, SampleError> {
        let echo = self.echo.take().map(EchoServer::start_client).transpose()?;
        Ok(Measurement { echo, cpu: process_cpu(), wall: Instant::now() })
    }

    /// Stops the timer after `ops` operations and returns the sample.
    pub fn finish(self, measurement: Measurement, ops: u64) -> Result<Sample, SampleError> {
        let wall = measurement.wall.elapsed();
        let cpu = process_cpu().saturating_sub(measurement.cpu);
        let sample = Sample::new(ops, wall, cpu);
        let Some(echo) = measurement.echo else {
            self.leak();
            return Ok(sample);
        };
        let latencies = echo.stop()?;
        self.leak();
        let count = latencies.len() as f64;
        Ok(sample.with_latencies("echo_", latencies).with("echo_count", count))
    }

    /// Leaks the runtime: dropping a million actors would only delay the end of the process.
    fn leak(self) {
        std::mem::forget(self.runtime);
    }
}
