//! Permission checks against a change of ownership, policy or tenants at the same time.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Namespace, Queue, QueueSettings, Queues};
use evenkeel_server::access_key::MasterKey;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::tenant::{
    AdminKey, Authenticator, Caller, Exposure, InsecurePolicy, TenantSettings, TenantState, Tenants,
};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_telemetry::Registry;
use serde_json::{Value, json};

use crate::api::RequestContext;
use crate::error::SqsError;
use crate::operation::Operation;
use crate::protocol::{Parameters, Protocol};
use crate::queue_metadata::QueueMetadata;
use crate::{SqsApi, SqsOptions};

const ACME: &str = "111111111111";
const MALLORY: &str = "222222222222";

/// An API with the tenants `acme` and `mallory`.
struct Gateway {
    sqs: Arc<SqsApi>,
    auth: Arc<Authenticator>,
}

fn tenant(name: &str, account: &str) -> TenantSettings {
    let keys = vec![TenantKey::unnamed(KeyHash::of(&format!("ek-{name}")))];
    let account = Some(account.parse().unwrap());
    TenantSettings { name: name.to_owned(), keys, account, ..TenantSettings::default() }
}

impl Gateway {
    async fn start() -> Self {
        let tenants = vec![tenant("acme", ACME), tenant("mallory", MALLORY)];
        let tenants = Tenants::new(tenants, Vec::new()).unwrap();
        let auth = Authenticator::new(tenants, Exposure::Loopback, InsecurePolicy::default()).unwrap();
        let auth = Arc::new(auth);
        let queues = Queues::open(Arc::new(MemoryStore::new()), 100).await.unwrap();
        let master = MasterKey::parse(MasterKey::draw().unwrap().expose()).unwrap();
        let sqs = SqsApi::new(SqsOptions::default(), queues, auth.clone(), master, &Registry::new()).unwrap();
        Self { sqs, auth }
    }

    async fn create(&self, name: &str, metadata: &QueueMetadata) -> Queue {
        let created =
            self.sqs.queues.create(Namespace::Shared, name, QueueSettings::default(), metadata.to_json());
        created.await.unwrap().queue()
    }

    fn caller(&self, tenant: &str) -> Caller {
        Caller::Tenant(self.auth.tenants().get(tenant).unwrap().clone())
    }

    /// Performs an operation as `mallory`.
    async fn call(&self, operation: Operation, body: Value) -> Result<Vec<u8>, SqsError> {
        self.call_as("mallory", operation, body).await
    }

    async fn call_as(&self, tenant: &str, operation: Operation, body: Value) -> Result<Vec<u8>, SqsError> {
        let context = RequestContext {
            host: "localhost".to_owned(),
            operation,
            protocol: Protocol::Json,
            request_id: "req-1".to_owned(),
            caller: self.caller(tenant),
            trace: None,
            disconnect: Disconnect::default(),
        };
        self.sqs.run(&context, Parameters::Json(body.to_string().as_bytes())).await
    }
}

/// Polls a future once, which must not finish.
async fn start<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "the request does not wait");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_request_that_waits_while_the_queue_is_assigned_has_no_effect_on_it() {
    let gateway = Gateway::start().await;
    let shared = "arn:aws:sqs:us-east-1:000000000000:";
    for operation in [
        Operation::SetQueueAttributes,
        Operation::DeleteQueue,
        Operation::AddPermission,
        Operation::RemovePermission,
        Operation::TagQueue,
        Operation::UntagQueue,
        Operation::PurgeQueue,
        Operation::StartMessageMoveTask,
    ] {
        let name = operation.name();
        let statement = json!({"Sid": "old"});
        let policy = json!({"Statement": [statement]}).to_string();
        let tags = [("team".to_owned(), "a".to_owned())].into();
        let metadata = QueueMetadata { policy: Some(policy), tags, ..QueueMetadata::default() };
        let queue = gateway.create(name, &metadata).await;
        let source = gateway.create(&format!("{name}-source"), &QueueMetadata::default()).await;
        let redrive = RedrivePolicy { to: queue.id(), attempts_max: 1 };
        let settings = QueueSettings { redrive: Some(redrive), ..QueueSettings::default() };
        gateway.sqs.queues.change(&source, settings, String::new()).await.unwrap();
        let lock = gateway.sqs.changing.lock().await;
        let body = json!({
            "QueueUrl": format!("http://localhost/000000000000/{name}"), "SourceArn": format!("{shared}{name}"),
            "Attributes": {"Policy": "{}"}, "Label": if operation == Operation::RemovePermission { "old" } else { "new" },
            "AWSAccountIds": [MALLORY], "Actions": ["*"], "Tags": {"team": "b"}, "TagKeys": ["team"],
        });
        let mut waiting = pin!(gateway.call(operation, body));
        start(waiting.as_mut()).await;
        let acme = Namespace::Account(ACME.parse().unwrap());
        let before = queue.descriptor();
        let assigned =
            gateway.sqs.queues.assign(&queue, acme, before.settings.clone(), before.metadata.clone());
        assigned.await.unwrap();
        drop(lock);
        let result = waiting.await;
        let is_not_found = matches!(result, Err(SqsError::NoQueue | SqsError::NoResource { .. }));
        assert!(is_not_found, "{name}: {:?}", result.map(|text| String::from_utf8(text).unwrap()));
        let found = gateway.sqs.queues.get(acme, name).expect(name);
        assert_eq!(QueueMetadata::read(&found.descriptor().metadata), metadata, "{name}");
    }
}

#[tokio::test]
async fn a_redrive_policy_does_not_reveal_or_reach_a_queue_that_the_tenant_may_not_use() {
    let gateway = Gateway::start().await;
    gateway.create("jobs", &QueueMetadata::default()).await;
    let policy = r#"{"Statement": []}"#.to_owned();
    let closed = QueueMetadata { policy: Some(policy), policy_enforced: true, ..QueueMetadata::default() };
    gateway.create("closed", &closed).await;
    gateway.create("open", &QueueMetadata::default()).await;
    let mut replies = Vec::new();
    for target in ["closed", "absent", "open"] {
        let arn = format!("arn:aws:sqs:us-east-1:000000000000:{target}");
        let redrive = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
        let body = json!({"QueueUrl": "jobs", "Attributes": {"RedrivePolicy": redrive}});
        let result = gateway.call(Operation::SetQueueAttributes, body).await;
        replies.push(result.map(drop).map_err(|error| error.to_string().replace(target, "TARGET")));
    }
    assert!(replies[0].as_ref().unwrap_err().contains("does not exist"), "{replies:?}");
    assert_eq!(replies[0], replies[1]);
    assert_eq!(replies[2], Ok(()));
}

#[tokio::test]
async fn a_long_poll_of_a_removed_tenant_gets_no_message() {
    let gateway = Gateway::start().await;
    let queue = gateway.create("jobs", &QueueMetadata::default()).await;
    let mallory = gateway.caller("mallory");
    let options = ReceiveOptions { max: 1, lease: None, wait: Duration::from_secs(20) };
    let mut waiting = pin!(gateway.sqs.receive(&mallory, &queue, options));
    start(waiting.as_mut()).await;
    gateway.auth.reload(vec![tenant("acme", ACME)], Vec::new()).unwrap();
    let message = json!({"QueueUrl": "jobs", "MessageBody": "of acme"});
    gateway.call_as("acme", Operation::SendMessage, message).await.unwrap();
    assert!(waiting.await.unwrap().is_empty());
    let request = json!({"QueueUrl": "jobs", "WaitTimeSeconds": 20});
    let received = gateway.call_as("acme", Operation::ReceiveMessage, request).await.unwrap();
    assert!(String::from_utf8(received).unwrap().contains("of acme"));
}

#[tokio::test]
async fn a_caller_is_valid_while_its_tenant_is_active_with_its_account_and_keys() {
    let gateway = Gateway::start().await;
    let mallory = gateway.caller("mallory");
    let is_current_with = |tenants: Vec<TenantSettings>| {
        gateway.auth.reload(tenants, Vec::new()).unwrap();
        gateway.auth.is_current(&mallory)
    };
    let same = tenant("mallory", MALLORY);
    let another_key = KeyHash::of("ek-another");
    assert!(is_current_with(vec![TenantSettings { rpm: Some(1), ..same.clone() }]));
    let mut with_another_key = same.clone();
    with_another_key.keys.push(TenantKey::unnamed(another_key));
    assert!(is_current_with(vec![with_another_key]));
    assert!(!is_current_with(vec![TenantSettings {
        keys: vec![TenantKey::unnamed(another_key)],
        ..same.clone()
    }]));
    assert!(!is_current_with(vec![TenantSettings { state: TenantState::Disabled, ..same.clone() }]));
    assert!(!is_current_with(vec![tenant("mallory", ACME)]));
    assert!(!is_current_with(vec![tenant("acme", ACME)]));
    assert!(!is_current_with(Vec::new()));
    let open = Caller::Tenant(gateway.auth.tenant_with_key("any").unwrap());
    assert!(gateway.auth.is_current(&open));
    gateway.auth.reload(vec![same], Vec::new()).unwrap();
    assert!(!gateway.auth.is_current(&open));
}

#[tokio::test]
async fn the_kind_of_a_shared_queue_decides_what_every_tenant_may_do_with_it() {
    let gateway = Gateway::start().await;
    let mallory = gateway.caller("mallory");
    let upgraded = gateway.create("upgraded", &QueueMetadata::default()).await;
    let on_purpose = QueueMetadata { shared_on_purpose: true, ..QueueMetadata::default() };
    let exchange = gateway.create("exchange", &on_purpose).await;
    let jobs = gateway.create("jobs", &QueueMetadata::default()).await;
    let dispatch = serde_json::from_value(json!({"target": "/v1/chat/completions"})).unwrap();
    let settings = QueueSettings { dispatch: Some(dispatch), ..QueueSettings::default() };
    gateway.sqs.queues.change(&jobs, settings, String::new()).await.unwrap();
    let is_listed = |operation| matches!(operation, Operation::CreateQueue | Operation::ListQueues);
    for &operation in Operation::ALL {
        let name = operation.name();
        let allows = |queue: &Queue| gateway.sqs.allows(&mallory, queue, operation);
        assert!(allows(&upgraded), "{name}");
        let is_exchange = Operation::GRANTABLE.contains(&operation) && operation != Operation::PurgeQueue;
        assert_eq!(allows(&exchange), is_exchange || is_listed(operation), "{name}");
        assert_eq!(allows(&jobs), Operation::SENDING.contains(&operation) || is_listed(operation), "{name}");
        for queue in [&upgraded, &exchange, &jobs] {
            assert!(
                gateway.sqs.allows(
                    &Caller::Admin(AdminKey { hash: KeyHash::of("ek-root") }),
                    queue,
                    operation
                ),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn creating_a_queue_again_does_not_reveal_attributes_that_the_tenant_may_not_read() {
    let gateway = Gateway::start().await;
    let policy = json!({"Statement": {
        "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*",
    }});
    let policy = Some(policy.to_string());
    let limited = QueueMetadata { policy, policy_enforced: true, ..QueueMetadata::default() };
    gateway.create("limited", &limited).await;
    gateway.create("open", &QueueMetadata::default()).await;
    let create = async |name: &str, timeout: &str| {
        let body = json!({"QueueName": name, "Attributes": {"VisibilityTimeout": timeout}});
        gateway.call(Operation::CreateQueue, body).await.is_ok()
    };
    assert!(create("limited", "30").await && create("limited", "31").await);
    assert!(create("open", "30").await && !create("open", "31").await);
}

#[tokio::test]
async fn move_tasks_of_the_previous_owner_are_not_listed() {
    let gateway = Gateway::start().await;
    let dead = gateway.create("dead", &QueueMetadata::default()).await;
    let source = gateway.create("source", &QueueMetadata::default()).await;
    let redrive = RedrivePolicy { to: dead.id(), attempts_max: 1 };
    let settings = QueueSettings { redrive: Some(redrive), ..QueueSettings::default() };
    gateway.sqs.queues.change(&source, settings, String::new()).await.unwrap();
    let list = async |account: &str| {
        let body = json!({"SourceArn": format!("arn:aws:sqs:us-east-1:{account}:dead")});
        let listed = gateway.call(Operation::ListMessageMoveTasks, body).await.unwrap();
        serde_json::from_slice::<Value>(&listed).unwrap()["Results"].as_array().unwrap().len()
    };
    let body = json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:dead"});
    gateway.call(Operation::StartMessageMoveTask, body).await.unwrap();
    while gateway.sqs.moves.is_active(dead.id()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(list("000000000000").await, 1);
    let namespace = Namespace::Account(MALLORY.parse().unwrap());
    let before = dead.descriptor();
    let assigned =
        gateway.sqs.queues.assign(&dead, namespace, before.settings.clone(), before.metadata.clone());
    assigned.await.unwrap();
    assert_eq!(list(MALLORY).await, 0);
}
