//! `POST /api/queues/{queue}/assign`: gives queues an owner, or shares them.

use evenkeel_queue::{Namespace, Queue, QueueId};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::json::create_error;
use super::{Native, check_admin, json_response, read};
use crate::SqsApi;
use crate::operation::Operation;
use crate::settings::QueueSpec;

/// Maximum number of queues per call.
const QUEUES_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AssignBody {
    /// Name of the new owner; `null` shares the queue.
    owner: Value,
    /// Other queues to assign at the same time.
    #[serde(default)]
    with: Vec<String>,
}

impl Native {
    pub(super) async fn assign(&self, request: &mut ServerRequest, name: &str) -> Result<Response, ApiError> {
        check_admin(request)?;
        let AssignBody { owner, with } = read(request).await?;
        let namespace = self.owner(&owner)?;
        if QUEUES_MAX <= with.len() {
            return Err(ApiError::invalid(format!("at most {QUEUES_MAX} queues are assigned together")));
        }
        let caller = &request.caller;
        let find = |name: &str| self.queue(caller, name, Operation::SetQueueAttributes);
        let mut queues = vec![find(name)?];
        for other in &with {
            let queue = find(other)?;
            if !queues.iter().any(|known| known.id() == queue.id()) {
                queues.push(queue);
            }
        }
        let _changing = self.sqs.changing.lock().await;
        self.sqs.check_assignment(&queues, namespace)?;
        self.sqs.assign(&queues, namespace).await?;
        json_response(StatusCode::OK, &self.to_json(&queues[0])?)
    }

    fn owner(&self, owner: &Value) -> Result<Namespace, ApiError> {
        let not_found = |owner: &str| ApiError::NotFound { what: format!("tenant {owner:?}") };
        match owner {
            Value::Null => Ok(Namespace::Shared),
            Value::String(owner) => {
                let tenants = self.sqs.auth.tenants();
                let account = tenants.get(owner).and_then(|tenant| tenant.settings.account);
                account.map(Namespace::Account).ok_or_else(|| not_found(owner))
            }
            _ => Err(ApiError::invalid("owner must be the name of a tenant, or null to share the queue")),
        }
    }
}

impl SqsApi {
    /// Checks that an assignment separates no queue from its dead-letter queue, and that the new owner has room for it.
    fn check_assignment(&self, queues: &[Queue], namespace: Namespace) -> Result<(), ApiError> {
        let conflict = |message: String| Err(ApiError::Conflict { message });
        let is_assigned = |id: QueueId| queues.iter().any(|queue| queue.id() == id);
        let mut moved = 0;
        for queue in queues {
            let descriptor = queue.descriptor();
            let name = &descriptor.name;
            if descriptor.namespace == namespace {
                continue;
            }
            moved += 1;
            if self.queues.get(namespace, name).is_some() {
                return conflict(format!("the new owner has another queue {name:?}"));
            }
            if self.moves.is_active(queue.id()) {
                return conflict(format!("a message move task from or to queue {name:?} is running"));
            }
            let target = descriptor.settings.redrive.and_then(|redrive| self.queues.by_id(redrive.to));
            let linked = self.sources_of(queue.id()).into_iter().chain(target);
            if let Some(other) = linked.into_iter().find(|other| !is_assigned(other.id())) {
                let other = &other.descriptor().name;
                return conflict(format!(
                    "queue {name:?} and queue {other:?} are a queue and its dead-letter queue, which have the same owner; \
                     assign both at the same time"
                ));
            }
        }
        let names: Vec<String> = queues.iter().map(|queue| queue.descriptor().name.clone()).collect();
        if let Some(name) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return conflict(format!("two of the queues are named {:?}", name.1));
        }
        match self.queues_max_of(namespace).filter(|_| moved > 0) {
            Some(max) => {
                let room = max.saturating_sub(moved - 1);
                self.queues.check_room(namespace, room).map_err(create_error)
            }
            None => Ok(()),
        }
    }

    /// Moves queues to another namespace; the caller holds the lock for changes.
    ///
    /// A queue loses its policy, because the previous owner wrote it. The links to dead-letter queues are removed first and
    /// restored last, so that a crash leaves no link between two owners; assigning the queues again then restores the links.
    async fn assign(&self, queues: &[Queue], namespace: Namespace) -> Result<(), ApiError> {
        for queue in queues {
            let mut spec = QueueSpec::of(queue);
            if spec.namespace != namespace && spec.settings.redrive.take().is_some() {
                let changed = self.queues.change(queue, spec.settings, spec.metadata.to_json()).await;
                changed.map_err(create_error)?;
            }
        }
        for queue in queues {
            let mut spec = QueueSpec::of(queue);
            spec.metadata.shared_on_purpose = namespace == Namespace::Shared;
            if spec.namespace != namespace {
                spec.metadata.policy = None;
                spec.metadata.policy_enforced = false;
                let old_account = format!(":{}:", self.options.account_of(spec.namespace));
                let new_account = format!(":{}:", self.options.account_of(namespace));
                let renamed = |arn: &str| arn.replace(&old_account, &new_account);
                if let Some(target) = &mut spec.metadata.dead_letters {
                    target.arn = renamed(&target.arn);
                }
                spec.metadata.redrive_allow = spec.metadata.redrive_allow.as_deref().map(renamed);
            }
            let assigned = self.queues.assign(queue, namespace, spec.settings, spec.metadata.to_json()).await;
            assigned.map_err(create_error)?;
            self.metrics.forget(queue.id());
        }
        for queue in queues {
            self.link_sources(queue).await;
        }
        Ok(())
    }
}
