//! Access to queues: the queues that a caller sees, and the operations that it may perform on them.
//!
//! A name is looked up among the caller's own queues, then among the shared ones. The owner of a queue may do everything
//! with it; others need a grant of the queue's policy. A queue that the caller may not use is not found, exactly like a
//! queue that does not exist.

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::{Namespace, Queue, QueueSettings};
use evenkeel_server::tenant::{Caller, QUEUES_MAX, Tenant, Tenants};

use crate::api::SqsApi;
use crate::arn::QueueRef;
use crate::operation::Operation;
use crate::policy::{self, PolicyRequest};
use crate::queue_metadata::QueueMetadata;

/// Returns the namespace in which a caller creates queues.
pub(crate) fn own_namespace(caller: &Caller) -> Namespace {
    match caller {
        Caller::Tenant(tenant) => tenant.settings.account.map_or(Namespace::Shared, Namespace::Account),
        Caller::Admin(_) | Caller::Public => Namespace::Shared,
    }
}

/// Returns the name of a caller that is stored with the messages it sends.
pub(crate) fn sender_name(caller: &Caller) -> &str {
    match caller {
        Caller::Tenant(tenant) => &tenant.settings.name,
        Caller::Admin(_) => "admin",
        Caller::Public => "",
    }
}

/// Returns the account number of a tenant.
pub(crate) fn account_of(caller: &Caller) -> Option<AccountNumber> {
    match caller {
        Caller::Tenant(tenant) => tenant.settings.account,
        Caller::Admin(_) | Caller::Public => None,
    }
}

/// Returns the name of a namespace's owner, or its account number if no tenant has it; `None` for the shared namespace.
pub fn owner_name(tenants: &Tenants, namespace: Namespace) -> Option<String> {
    let Namespace::Account(account) = namespace else { return None };
    let name = tenants.with_account(account).map(|tenant| tenant.settings.name.clone());
    Some(name.unwrap_or_else(|| account.to_string()))
}

/// Reports whether every tenant may perform an operation on a shared queue without a policy.
///
/// The administrator has shared a queue to exchange messages, not to give it away. The messages of a queue with dispatch
/// are jobs that the gateway runs for their senders. A queue that nobody decided to share is open to every operation, as
/// it was before there were owners.
fn is_open_to_all(settings: &QueueSettings, metadata: &QueueMetadata, operation: Operation) -> bool {
    if settings.dispatch.is_some() {
        return Operation::SENDING.contains(&operation);
    }
    let is_exchange = Operation::GRANTABLE.contains(&operation) && operation != Operation::PurgeQueue;
    is_exchange || !metadata.shared_on_purpose
}

impl SqsApi {
    /// Finds the queue that a caller names, if the caller may perform the operation on it.
    pub(crate) fn find(&self, caller: &Caller, queue: QueueRef<'_>, operation: Operation) -> Option<Queue> {
        let QueueRef { namespace, name } = queue;
        let find_in = |namespace| {
            let found = self.queues.get(namespace, name)?;
            self.allows(caller, &found, operation).then_some(found)
        };
        match namespace {
            Some(namespace) => find_in(namespace),
            None => find_in(own_namespace(caller)).or_else(|| find_in(Namespace::Shared)),
        }
    }

    /// Reports whether a caller may perform an operation on a queue.
    pub(crate) fn allows(&self, caller: &Caller, queue: &Queue, operation: Operation) -> bool {
        match (caller, operation) {
            (Caller::Admin(_), _) => true,
            (Caller::Public, _) => false,
            // A request may wait while the tenant is removed.
            (Caller::Tenant(tenant), _) if !self.auth.is_current(caller) => false,
            // Creating a queue that exists returns it to everyone who can use it.
            (Caller::Tenant(_), Operation::CreateQueue | Operation::ListQueues) => self.sees(caller, queue),
            (Caller::Tenant(tenant), _) => {
                self.owns(caller, queue) || self.grants(tenant, queue, &[operation])
            }
        }
    }

    /// Reports whether a caller is the owner of a queue; an administrator owns every queue.
    pub(crate) fn owns(&self, caller: &Caller, queue: &Queue) -> bool {
        match caller {
            Caller::Admin(_) => true,
            Caller::Public => false,
            Caller::Tenant(_) => queue.descriptor().namespace == own_namespace(caller),
        }
    }

    /// Reports whether `ListQueues` shows a queue to a caller.
    pub(crate) fn sees(&self, caller: &Caller, queue: &Queue) -> bool {
        match caller {
            _ if self.owns(caller, queue) => true,
            Caller::Tenant(tenant) => {
                queue.descriptor().namespace == Namespace::Shared
                    && self.grants(tenant, queue, &Operation::GRANTABLE)
            }
            Caller::Admin(_) | Caller::Public => false,
        }
    }

    /// Reports whether a tenant that does not own a queue may perform one of the operations on it.
    ///
    /// Without a policy of the administrator, the kind of a shared queue decides.
    fn grants(&self, tenant: &Tenant, queue: &Queue, operations: &[Operation]) -> bool {
        let descriptor = queue.descriptor();
        let metadata = QueueMetadata::read(&descriptor.metadata);
        if descriptor.namespace == Namespace::Shared && !metadata.policy_enforced {
            return operations
                .iter()
                .any(|&operation| is_open_to_all(&descriptor.settings, &metadata, operation));
        }
        let Some(policy) = metadata.policy else { return false };
        let Some(account) = tenant.settings.account else { return false };
        let arn = self.arn_of(queue);
        operations
            .iter()
            .any(|&operation| policy::grants(&policy, PolicyRequest { account, operation, arn: &arn }))
    }

    /// Returns the names of shared queues that every tenant may use although nobody decided so: they were created by a
    /// version without owners, or while there were no tenants.
    pub fn queues_without_owner(&self) -> Vec<String> {
        let is_without_owner = |queue: &Queue| {
            let descriptor = queue.descriptor();
            let metadata = QueueMetadata::read(&descriptor.metadata);
            descriptor.namespace == Namespace::Shared
                && !metadata.shared_on_purpose
                && !metadata.policy_enforced
        };
        let found = self.queues.list("", None, usize::MAX, is_without_owner);
        found.iter().map(|queue| queue.descriptor().name.clone()).collect()
    }

    /// Returns the name of a namespace's owner; `None` for the shared namespace.
    pub(crate) fn owner_name(&self, namespace: Namespace) -> Option<String> {
        owner_name(&self.auth.tenants(), namespace)
    }

    /// Returns the namespace of an owner, given by tenant name or account number.
    pub(crate) fn namespace_of_owner(&self, owner: &str) -> Option<Namespace> {
        let tenants = self.auth.tenants();
        let account = tenants.get(owner).and_then(|tenant| tenant.settings.account);
        let account: Option<AccountNumber> = account.or_else(|| owner.parse().ok());
        account.map(|account| self.options.namespace_of(account))
    }

    /// Returns the maximum number of queues of a namespace; `None` if it has no limit of its own.
    pub(crate) fn queues_max_of(&self, namespace: Namespace) -> Option<usize> {
        let Namespace::Account(account) = namespace else { return None };
        let tenants = self.auth.tenants();
        let max = tenants.with_account(account).and_then(|tenant| tenant.settings.queues_max);
        Some(max.unwrap_or(QUEUES_MAX) as usize)
    }
}

#[cfg(test)]
mod tests;
