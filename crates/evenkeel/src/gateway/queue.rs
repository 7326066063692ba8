//! Queues: where they live, who may sign for them, and their door.

use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use evenkeel_queue::Queues;
use evenkeel_queue::queues::OpenError;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::store::{Store, StoreError};
use evenkeel_server::tenant::Authenticator;
use evenkeel_sqs::{SqsApi, SqsOptions};
use evenkeel_telemetry::Registry;

use super::StartError;
use super::dispatch::check_target;
use crate::config::{Config, QueueConfig, StoreKind};
use crate::data_dir::DataDir;
use crate::sqs_key::master_key;

/// Where queues are, within the data folder.
const FOLDER: &str = "queues";

/// Queues and their door.
pub(super) struct QueueApi {
    pub(super) queues: Arc<Queues>,
    pub(super) sqs: Arc<SqsApi>,
}

impl QueueApi {
    /// Opens every queue, and the door before them.
    pub(super) async fn open(
        config: &Config,
        folder: &DataDir,
        gate: Arc<Authenticator>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let store = open_store(&config.queue, folder.path().join(FOLDER)).await?;
        let QueueConfig { queues_max, defaults, region, account, .. } = config.queue.clone();
        let queues = Queues::open(store, queues_max).await?;
        let options = SqsOptions {
            region,
            account,
            scheme: if config.server.tls.is_some() { "https" } else { "http" },
            defaults,
            queues_metered_max: config.telemetry.queues_max,
            check_target: |given| check_target(given).map_err(|why| why.to_string()),
        };
        let sqs = SqsApi::new(options, queues.clone(), gate, master_key(folder)?, registry)?;
        Ok(Self { queues, sqs })
    }
}

async fn open_store(config: &QueueConfig, path: PathBuf) -> Result<Arc<dyn Store>, OpenError> {
    match config.store {
        StoreKind::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreKind::Fjall => {
            let options = DiskOptions {
                cache_bytes: config.cache_bytes,
                reserve_bytes: config.reserve_bytes,
                fatal: FatalHandler(Arc::new(exit_after_disk_error)),
            };
            let opened = tokio::task::spawn_blocking(move || DiskStore::open(path, options)).await;
            let opened = opened.unwrap_or_else(|error| Err(StoreError::Io(error.to_string())));
            Ok(Arc::new(opened?))
        }
    }
}

/// Ends the server: what it would answer from here on might not be true.
fn exit_after_disk_error(why: &str) {
    tracing::error!(target: "evenkeel", why, "the disk did not confirm a write; ending, so that nothing false is said");
    process::exit(1);
}
