//! Access to queues: the queues that a caller sees, and the operations that it may perform on them.
//!
//! A name is looked up among the caller's own queues, then among the shared ones. A queue that the caller may not use
//! is not found, exactly like a queue that does not exist.

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::{Namespace, Queue};
use evenkeel_server::tenant::{Caller, QUEUES_MAX};

use crate::api::SqsApi;
use crate::arn::QueueRef;
use crate::operation::Operation;

/// Returns the namespace in which a caller creates queues.
pub(crate) fn home_of(caller: &Caller) -> Namespace {
    match caller {
        Caller::Tenant(tenant) => tenant.settings.account.map_or(Namespace::Shared, Namespace::Account),
        Caller::Admin | Caller::Public => Namespace::Shared,
    }
}

/// Returns the name of a caller that is stored with the messages it sends.
pub(crate) fn sender_of(caller: &Caller) -> &str {
    match caller {
        Caller::Tenant(tenant) => &tenant.settings.name,
        Caller::Admin => "admin",
        Caller::Public => "",
    }
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
            None => find_in(home_of(caller)).or_else(|| find_in(Namespace::Shared)),
        }
    }

    /// Reports whether a caller may perform an operation on a queue.
    pub(crate) fn allows(&self, caller: &Caller, queue: &Queue, _operation: Operation) -> bool {
        let namespace = queue.descriptor().namespace;
        match caller {
            Caller::Admin => true,
            Caller::Tenant(_) => namespace == home_of(caller) || namespace == Namespace::Shared,
            Caller::Public => false,
        }
    }

    /// Reports whether a caller finds a queue by its name and sees it in lists.
    pub(crate) fn sees(&self, caller: &Caller, queue: &Queue) -> bool {
        let namespace = queue.descriptor().namespace;
        match caller {
            Caller::Admin => true,
            Caller::Tenant(_) => namespace == home_of(caller) || namespace == Namespace::Shared,
            Caller::Public => false,
        }
    }

    /// Returns the name of a queue's owner, or its account number if no tenant has it; `None` for a shared queue.
    pub(crate) fn owner_name(&self, namespace: Namespace) -> Option<String> {
        let Namespace::Account(account) = namespace else { return None };
        let tenants = self.auth.tenants();
        let name = tenants.with_account(account).map(|tenant| tenant.settings.name.clone());
        Some(name.unwrap_or_else(|| account.to_string()))
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
