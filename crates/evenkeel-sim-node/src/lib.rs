//! A simulated OpenAI-compatible engine: slots, a queue, tokens paced as under continuous batching, and
//! faults on demand.
//!
//! One request's way: `wire` (a connection) → `engine` (where to, and which fault strikes) → `request`
//! (read once) → `answer` (what to say, decided at once) → `slots` → `generate` (said at the `pace` of the
//! batch, in OpenAI's `shape`).

mod api_error;
mod completion;
mod connection;
mod engine;
mod fault;
mod fault_api;
mod generate;
mod media;
mod metrics;
mod options;
mod pace;
mod request;
mod response_body;
mod response_format;
mod seeded_random;
mod slots;

pub use fault::{Fault, FaultKind};
pub use options::{
    BadSetting, CONNECTIONS_MAX, CONTEXT_MAX, FIRST_TOKEN_MAX, MODELS_MAX, QUEUE_MAX, SLOTS_MAX, SimOptions,
    TOKENS_PER_SECOND_MAX,
};
pub use slots::Load;

use engine::Engine;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running engine; dropping it ends it and all its connections.
#[derive(Debug)]
pub struct SimNode {
    address: SocketAddr,
    engine: Arc<Engine>,
    accepting: JoinHandle<()>,
}

/// Why an engine does not run.
#[derive(Debug)]
pub enum SimError {
    /// A setting is outside its range.
    Setting(BadSetting),
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(setting) => setting.fmt(f),
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl Error for SimError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Setting(setting) => Some(setting),
            Self::Listen(_, error) => Some(error),
        }
    }
}

impl SimNode {
    /// Starts an engine on the runtime this is called on.
    pub async fn bind(options: SimOptions) -> Result<Self, SimError> {
        options.check().map_err(SimError::Setting)?;
        let refused = |error| SimError::Listen(options.listen, error);
        let listener = TcpListener::bind(options.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let connections_max = options.connections_max;
        let engine = Engine::new(options);
        let accepting = tokio::spawn(connection::accept(engine.clone(), listener, connections_max));
        Ok(Self { address, engine, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets somebody see how many requests run and wait, and every change of it.
    pub fn load(&self) -> watch::Receiver<Load> {
        self.engine.slots.watch()
    }

    /// Lets somebody see how many connections are open, and every change of it.
    pub fn connections(&self) -> watch::Receiver<u32> {
        self.engine.connections.subscribe()
    }

    /// Replaces what is wrong with it, and counts its requests from 0 again.
    pub fn set_fault(&self, fault: Option<Fault>) -> Result<(), BadSetting> {
        fault.as_ref().map_or(Ok(()), Fault::check)?;
        self.engine.faults().set(fault);
        Ok(())
    }

    /// Ends it; when this returns, the port is free and every connection closed.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // It was told to end, so how it ended says nothing.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for SimNode {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
