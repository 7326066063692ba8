//! Links of the gateway, over which it reaches nodes at other sites, and `GET /api/paths`.
//!
//! Guarantees: a link that is down prevents neither a start nor a reload. Requests in flight stay on a link that a reload
//! replaces or removes.
//!
//! Limits: such a link is closed after `drain_max`, also if requests are still in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_link::identity::{Fingerprint, Identity};
use evenkeel_link::session::SessionConfig;
use evenkeel_link::{ConnectorSettings, Link, LinkConnector, LinkStartError, RouteSettings};
use evenkeel_server::route::{RouteError, Routes, handler};
use evenkeel_server::tenant::Access;
use evenkeel_telemetry::PathMetrics;
use evenkeel_upstream::LinkTable;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Core;
use super::api::json_response;
use crate::config::{Config, ConfigErrors, LinkSettings};
use crate::link_page::describe_session;

/// Longest time for which requests use a link that a reload has replaced by one that is not up.
const TAKE_OVER_MAX: Duration = Duration::from_secs(10);

/// A configured link with its key pair.
#[derive(Debug)]
pub(super) struct LoadedLink {
    settings: LinkSettings,
    identity: Identity,
}

impl LoadedLink {
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Loads the key pairs of all configured links.
    pub(super) fn load_all(config: &Config) -> Result<Vec<Self>, ConfigErrors> {
        let mut loaded = Vec::new();
        let mut errors = Vec::new();
        for settings in &config.links {
            match Identity::load(&settings.keys) {
                Ok(identity) => loaded.push(Self { settings: settings.clone(), identity }),
                Err(error) => {
                    let message = format!("keys of link {:?}: {error}", settings.name);
                    errors.extend(ConfigErrors::at(settings.keys_origin.clone(), message).0);
                }
            }
        }
        if errors.is_empty() { Ok(loaded) } else { Err(ConfigErrors(errors)) }
    }
}

/// Error of a link of the configuration that cannot start.
#[derive(Debug, Error)]
#[error("link {name:?}: {error}")]
pub struct LinkError {
    name: String,
    #[source]
    error: LinkStartError,
}

/// The running links.
pub(super) struct GatewayLinks {
    table: LinkTable,
    metrics: PathMetrics,
    session: SessionConfig,
    /// Settings of routes, without relays.
    routes: RouteSettings,
    drain_max: Duration,
    running: Mutex<BTreeMap<String, RunningLink>>,
}

struct RunningLink {
    settings: LinkSettings,
    key: Fingerprint,
    connector: LinkConnector,
}

impl GatewayLinks {
    /// Creates the set of links, without any.
    pub(super) fn new(config: &Config, metrics: PathMetrics) -> Self {
        Self {
            table: LinkTable::default(),
            metrics,
            session: config.link.session.clone(),
            routes: config.link.routes.clone(),
            drain_max: config.server.limits.drain_max,
            running: Mutex::default(),
        }
    }

    /// Returns the table by which clients find the links.
    pub(super) fn table(&self) -> LinkTable {
        self.table.clone()
    }

    /// Starts a link, or replaces the one of its name; returns false if the same link runs already. Needs a Tokio runtime.
    pub(super) fn start(&self, LoadedLink { settings, identity }: LoadedLink) -> Result<bool, LinkError> {
        let key = identity.fingerprint();
        let mut running = self.running.lock();
        let current = running.get(&settings.name);
        if current.is_some_and(|link| link.settings.is_same(&settings) && link.key == key) {
            return Ok(false);
        }
        let connector = ConnectorSettings {
            name: settings.name.clone(),
            peer: settings.peer,
            paths: settings.paths.clone(),
            routes: RouteSettings { relays: settings.relays.clone(), ..self.routes.clone() },
            session: self.session.clone(),
        };
        let connector = LinkConnector::start(&identity, connector, self.metrics.clone());
        let connector = connector.map_err(|error| LinkError { name: settings.name.clone(), error })?;
        let link = connector.link();
        let name = settings.name.clone();
        match running.insert(name.clone(), RunningLink { settings, key, connector }) {
            Some(replaced) if replaced.connector.link().is_up() => {
                tokio::spawn(take_over(self.table.clone(), name, link, replaced.connector, self.drain_max));
            }
            replaced => {
                self.table.insert(&name, link);
                if let Some(replaced) = replaced {
                    tokio::spawn(drain(replaced.connector, self.drain_max));
                }
            }
        }
        Ok(true)
    }

    /// Removes the links that are not configured any more; returns their names. Needs a Tokio runtime.
    pub(super) fn remove_others(&self, configured: &[LinkSettings]) -> Vec<String> {
        let mut running = self.running.lock();
        let is_removed = |name: &String| configured.iter().all(|link| link.name != *name);
        let removed: Vec<String> = running.keys().filter(|name| is_removed(name)).cloned().collect();
        for name in &removed {
            self.table.remove(name);
            if let Some(link) = running.remove(name) {
                tokio::spawn(drain(link.connector, self.drain_max));
            }
        }
        removed
    }

    /// Describes all links, and brings their metrics up to date.
    pub(super) fn describe(&self) -> Vec<Value> {
        let running = self.running.lock();
        let describe = |(name, running): (&String, &RunningLink)| {
            let link = running.connector.link();
            let mut description = describe_session(&link.status());
            description["name"] = json!(name);
            description["peer"] = json!(running.settings.peer.to_string());
            description["up"] = json!(link.is_up());
            description
        };
        running.iter().map(describe).collect()
    }

    /// Closes all links.
    pub(super) async fn close(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        let closing: JoinSet<()> = running.into_values().map(|link| link.connector.close()).collect();
        closing.join_all().await;
    }
}

/// Replaces a link that is up: requests use the new one as soon as it is up, at the latest after [`TAKE_OVER_MAX`].
async fn take_over(table: LinkTable, name: String, link: Link, replaced: LinkConnector, drain_max: Duration) {
    link.wait_up(TAKE_OVER_MAX).await;
    table.replace(&name, &replaced.link(), link);
    drain(replaced, drain_max).await;
}

/// Closes a link once its requests have ended.
async fn drain(connector: LinkConnector, drain_max: Duration) {
    // After the limit, requests in flight are aborted.
    let _ = timeout(drain_max, connector.links().wait_idle()).await;
    connector.close().await;
}

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes) -> Result<(), RouteError> {
    let core = core.clone();
    let paths = handler(move |_| {
        let paths = json!({"links": core.links.describe(), "nodes": core.llm.describe_paths()});
        async move { Ok(json_response(StatusCode::OK, &paths)) }
    });
    routes.add(Method::GET, "/api/paths", Access::Admin, paths)
}
