//! Opens the queue store and the queue APIs (SQS and native).

use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use evenkeel_queue::Queues;
use evenkeel_queue::queues::OpenError;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore, FatalHandler};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::store::{Store, StoreError};
use evenkeel_server::tenant::Authenticator;
use evenkeel_sqs::{SqsApi, SqsOptions, TargetCheck};
use evenkeel_telemetry::Registry;

use super::StartError;
use super::dispatch::check_target;
use crate::config::{Config, ConfigErrors, QueueConfig, StoreKind};
use crate::data_dir::DataDir;
use crate::sqs_key::master_key;

/// Directory of the queue store within the data directory.
const QUEUES_DIR: &str = "queues";

/// Queues and the APIs that serve them.
pub(super) struct QueueApi {
    pub(super) queues: Arc<Queues>,
    pub(super) sqs: Arc<SqsApi>,
}

impl QueueApi {
    /// Opens the store and recovers its queues.
    pub(super) async fn open(
        config: &Config,
        data_dir: &DataDir,
        auth: Arc<Authenticator>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let store = open_store(&config.queue, data_dir.path().join(QUEUES_DIR)).await?;
        let QueueConfig { queues_max, defaults, region, account, .. } = config.queue.clone();
        if let Some(tenant) = auth.tenants().with_account(account) {
            let name = &tenant.settings.name;
            let message = format!("[queue.sqs] account {account} is the account number of tenant {name:?}");
            return Err(ConfigErrors::without_origin(message).into());
        }
        let queues = Queues::open_with(store, queues_max, config.actor).await?;
        let link_local = config.server.link_local;
        let options = SqsOptions {
            region,
            account,
            scheme: if config.server.tls.is_some() { "https" } else { "http" },
            defaults,
            queues_metered_max: config.telemetry.queues_max,
            check_target: TargetCheck(Arc::new(move |target| {
                check_target(target, link_local).map_err(|error| error.to_string())
            })),
        };
        let sqs = SqsApi::new(options, queues.clone(), auth, master_key(data_dir)?, registry)?;
        Ok(Self { queues, sqs })
    }
}

async fn open_store(config: &QueueConfig, path: PathBuf) -> Result<Arc<dyn Store>, OpenError> {
    match config.store {
        StoreKind::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreKind::Fjall => {
            if let Some(from) = config.reserve_raised_from {
                let to = config.reserve_bytes;
                tracing::warn!(target: "evenkeel", from, to, "raised [queue] reserve_bytes to the minimum, which background writes of the queue store need");
            }
            let options = DiskOptions {
                cache_bytes: config.cache_bytes,
                reserve_bytes: config.reserve_bytes,
                tenant_keys_max: config.tenant_keys_max,
                on_memory_freed: purge_allocator,
                fatal: FatalHandler(Arc::new(exit_after_disk_error)),
            };
            let opened = tokio::task::spawn_blocking(move || DiskStore::open(path, options)).await;
            let opened = opened.unwrap_or_else(|error| Err(StoreError::Io(error.to_string())));
            Ok(Arc::new(opened?))
        }
    }
}

/// Makes mimalloc return freed memory to the system, which it otherwise does when a thread allocates much.
///
/// It does so when a thread ends, for memory that was freed at least a second ago.
fn purge_allocator() {
    let spawned = std::thread::Builder::new().name("memory-purge".into()).spawn(|| {});
    if let Err(error) = spawned {
        tracing::debug!(target: "evenkeel", %error, "could not start a thread; freed memory is returned later");
    }
}

/// Exits the process, because after a failed fsync it is unknown which writes are durable.
fn exit_after_disk_error(error: &str) {
    tracing::error!(target: "evenkeel", error, "fsync failed, exiting: it is unknown which of the last writes are durable");
    process::exit(1);
}
