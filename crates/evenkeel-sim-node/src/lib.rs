//! A simulated OpenAI-compatible model server with slots, a queue, the token latencies of continuous batching, and
//! fault injection.
//!
//! Life of a request: `connection` → `engine` (routes it and applies the fault) → `request` (parses it) → `completion`
//! (plans the whole text) → `slots` → `generate` (sends it at the `pace` of the batch, in the `response_format` of its API).

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
#[cfg(feature = "testing")]
pub mod testing;

pub use fault::{Fault, FaultKind};
pub use options::{
    BadSetting, CONNECTIONS_MAX, CONTEXT_MAX, FIRST_TOKEN_MAX, MODELS_MAX, QUEUE_MAX, SLOTS_MAX, SimOptions,
    TOKENS_PER_SECOND_MAX,
};
pub use slots::Load;

use engine::Engine;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running simulated node. Dropping it closes the listener and all connections.
#[derive(Debug)]
pub struct SimNode {
    address: SocketAddr,
    engine: Arc<Engine>,
    accepting: JoinHandle<()>,
}

/// Error when starting a simulated node.
#[derive(Debug, Error)]
pub enum SimError {
    #[error(transparent)]
    Setting(#[from] BadSetting),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
}

impl SimNode {
    /// Starts a node on the current Tokio runtime: binds the listener and serves requests in the background.
    pub async fn bind(options: SimOptions) -> Result<Self, SimError> {
        options.check()?;
        let listen_error = |error| SimError::Listen(options.listen, error);
        let listener = TcpListener::bind(options.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let connections_max = options.connections_max;
        let engine = Engine::new(options);
        let accepting = tokio::spawn(connection::accept(engine.clone(), listener, connections_max));
        Ok(Self { address, engine, accepting })
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Watches the number of running and waiting requests.
    pub fn load(&self) -> watch::Receiver<Load> {
        self.engine.slots.watch()
    }

    /// Returns the largest number of requests that ran or waited at once since the start.
    pub fn peak(&self) -> u32 {
        self.engine.slots.peak()
    }

    /// Watches the number of open connections.
    pub fn connections(&self) -> watch::Receiver<u32> {
        self.engine.connections.subscribe()
    }

    /// Replaces the fault and resets its request counter.
    pub fn set_fault(&self, fault: Option<Fault>) -> Result<(), BadSetting> {
        fault.as_ref().map_or(Ok(()), Fault::check)?;
        self.engine.faults().set(fault);
        Ok(())
    }

    /// Stops the node. On return the port is free and every connection is closed.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // The result is a cancellation error, because the task was aborted.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for SimNode {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
