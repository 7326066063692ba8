//! Queues: where they live, who may sign for them, and their door.

use std::sync::Arc;

use evenkeel_door::tenant::Gate;
use evenkeel_queue::Queues;
use evenkeel_queue::store::Store;
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_sqs::{Sqs, SqsOptions};
use evenkeel_telemetry::Registry;

use super::StartError;
use crate::config::{Config, QueueConfig, StoreKind};
use crate::data_dir::DataDir;
use crate::sqs_key::master_key;

/// Queues and their door.
pub(super) struct QueueDoor {
    pub(super) queues: Arc<Queues>,
    pub(super) sqs: Arc<Sqs>,
}

impl QueueDoor {
    /// Opens every queue, and the door before them.
    pub(super) async fn open(
        config: &Config,
        folder: &DataDir,
        gate: Arc<Gate>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let QueueConfig { store, queues_max, defaults, region, account } = config.queue.clone();
        let store: Arc<dyn Store> = match store {
            StoreKind::Memory => Arc::new(MemoryStore::new()),
        };
        let queues = Queues::open(store, queues_max).await?;
        let options = SqsOptions {
            region,
            account,
            scheme: if config.server.tls.is_some() { "https" } else { "http" },
            defaults,
            queues_metered_max: config.telemetry.queues_max,
        };
        let sqs = Sqs::new(options, queues.clone(), gate, master_key(folder)?, registry)?;
        Ok(Self { queues, sqs })
    }
}
