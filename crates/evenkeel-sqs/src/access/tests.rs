//! Permission checks against a change of ownership, policy or tenants at the same time.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use std::sync::Arc;

use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Namespace, Queue, QueueSettings, Queues};
use evenkeel_server::access_key::MasterKey;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::tenant::{Authenticator, Caller, Exposure, InsecurePolicy, TenantSettings, Tenants};
use evenkeel_telemetry::Registry;
use serde_json::{Value, json};

use crate::api::RequestContext;
use crate::error::SqsError;
use crate::operation::Operation;
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
    let key_hashes = vec![KeyHash::of(&format!("ek-{name}"))];
    let account = Some(account.parse().unwrap());
    TenantSettings { name: name.to_owned(), key_hashes, account, ..TenantSettings::default() }
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
        let context = RequestContext {
            host: "localhost".to_owned(),
            operation,
            caller: self.caller("mallory"),
            trace: None,
            disconnect: Disconnect::default(),
        };
        self.sqs.run(operation, &context, body.to_string().as_bytes()).await
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
        let redrive = evenkeel_queue::settings::RedrivePolicy { to: queue.id(), attempts_max: 1 };
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
