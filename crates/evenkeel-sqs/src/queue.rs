//! Operations on queues: create, find, list, get and set attributes, purge, delete.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_queue::queues::{CreateError, ListPosition};
use evenkeel_queue::{DeliveryOrder, Namespace, Queue, QueueSettings};
use evenkeel_server::tenant::Caller;
use serde::{Deserialize, Serialize};

use crate::access::own_namespace;
use crate::api::{EmptyResponse, RequestContext, SqsApi};
use crate::arn::QueueRef;
use crate::base64;
use crate::error::SqsError;
use crate::fifo;
use crate::limit::PAGE;
use crate::operation::Operation;
use crate::protocol::list;
use crate::queue_metadata::QueueMetadata;
use crate::reason;
use crate::settings::{AttributeName, Attributes, QueueSpec};
use crate::tag::{Tags, check_tags};

const NAME_MAX: usize = 80;
/// Minimum time between two purges of a queue.
const PURGE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CreateQueue {
    queue_name: Option<String>,
    attributes: Option<Attributes>,
    /// Lower case in the JSON protocol only.
    #[serde(rename = "tags", alias = "Tags")]
    tags: Option<Tags>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetQueueUrl {
    queue_name: Option<String>,
    #[serde(rename = "QueueOwnerAWSAccountId")]
    owner: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueRequest {
    queue_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetAttributes {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "list")]
    attribute_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SetAttributes {
    queue_url: Option<String>,
    attributes: Option<Attributes>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListQueues {
    queue_name_prefix: Option<String>,
    next_token: Option<String>,
    max_results: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrlResponse {
    queue_url: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListQueuesResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AttributesResponse {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'static str, String>,
}

impl SqsApi {
    pub(crate) async fn create_queue(
        &self,
        context: &RequestContext,
        request: CreateQueue,
    ) -> Result<QueueUrlResponse, SqsError> {
        let name = queue_name(request.queue_name.as_deref())?;
        let attributes = request.attributes.unwrap_or_default();
        check_name(name, &attributes)?;
        let tags = request.tags.unwrap_or_default();
        check_tags(name, &tags)?;
        let _changing = self.changing.lock().await;
        if let Some(queue) = self.find(&context.caller, QueueRef::by_name(name), context.operation) {
            self.check_same(&context.caller, &queue, &attributes)?;
            return Ok(QueueUrlResponse { queue_url: self.url_of(context, &queue) });
        }
        if !self.auth.is_current(&context.caller) {
            return Err(SqsError::NoQueue);
        }
        let mut spec = self.new_spec(own_namespace(&context.caller), name);
        self.apply(&context.caller, &mut spec, &attributes)?;
        spec.metadata.tags = tags;
        let queue = self.create(spec).await?;
        Ok(QueueUrlResponse { queue_url: self.url_of(context, &queue) })
    }

    /// Creates a queue that does not exist, unless its owner has too many; the caller holds the lock for changes.
    pub(crate) async fn create(&self, spec: QueueSpec) -> Result<Queue, CreateError> {
        let QueueSpec { namespace, name, settings, metadata, .. } = spec;
        if let Some(max) = self.queues_max_of(namespace) {
            self.queues.check_room(namespace, max)?;
        }
        let created = self.queues.create(namespace, &name, settings, metadata.to_json()).await?;
        let queue = created.queue();
        self.link_sources(&queue).await;
        Ok(queue)
    }

    pub(crate) fn new_spec(&self, namespace: Namespace, name: &str) -> QueueSpec {
        let order = if name.ends_with(fifo::SUFFIX) { DeliveryOrder::Fifo } else { DeliveryOrder::Fair };
        QueueSpec {
            id: None,
            namespace,
            name: name.to_owned(),
            settings: QueueSettings { order, ..self.options.defaults.clone() },
            // AWS's default.
            metadata: QueueMetadata { managed_sse: true, ..QueueMetadata::default() },
        }
    }

    /// Rejects the creation of an existing queue with other attributes, if the caller may read them.
    fn check_same(&self, caller: &Caller, queue: &Queue, attributes: &Attributes) -> Result<(), SqsError> {
        if !self.allows(caller, queue, Operation::GetQueueAttributes) {
            return Ok(());
        }
        let before = QueueSpec::of(queue);
        let mut after = before.clone();
        self.apply(caller, &mut after, attributes)?;
        for name in attributes.keys() {
            let name = AttributeName::parse(name)?;
            if self.setting(&before, name) != self.setting(&after, name) {
                return Err(SqsError::QueueExists { attribute: name.as_str() });
            }
        }
        Ok(())
    }

    pub(crate) fn queue_url(
        &self,
        context: &RequestContext,
        request: &GetQueueUrl,
    ) -> Result<QueueUrlResponse, SqsError> {
        let name = queue_name(request.queue_name.as_deref())?;
        let namespace = match request.owner.as_deref() {
            None => None,
            Some(owner) => {
                let account = owner.parse().map_err(|_| SqsError::NoQueue)?;
                Some(self.options.namespace_of(account))
            }
        };
        let queue = self.find(&context.caller, QueueRef { namespace, name }, context.operation);
        Ok(QueueUrlResponse { queue_url: self.url_of(context, &queue.ok_or(SqsError::NoQueue)?) })
    }

    pub(crate) fn list_queues(
        &self,
        context: &RequestContext,
        request: &ListQueues,
    ) -> Result<ListQueuesResponse, SqsError> {
        let page = page_of(request.max_results, request.next_token.as_deref())?;
        let prefix = request.queue_name_prefix.as_deref().unwrap_or_default();
        let after = page.after.as_ref().map(PagePosition::as_list_position);
        let is_visible = |queue: &Queue| self.sees(&context.caller, queue);
        let mut found = self.queues.list(prefix, after, page.max + 1, is_visible);
        // Without a page size there are no further pages, as documented by AWS.
        let next_token = request.max_results.and_then(|_| self.next_page(&page, &found));
        found.truncate(page.max);
        let queue_urls = found.iter().map(|queue| self.url_of(context, queue)).collect();
        Ok(ListQueuesResponse { queue_urls, next_token })
    }

    pub(crate) async fn queue_attributes(
        &self,
        context: &RequestContext,
        request: &GetAttributes,
    ) -> Result<AttributesResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let descriptor = queue.descriptor();
        let spec = QueueSpec::of(&queue);
        let is_all = request.attribute_names.iter().any(|name| name == "All");
        let named = request
            .attribute_names
            .iter()
            .filter(|name| *name != "All")
            .map(|name| AttributeName::parse(name));
        let named = named.collect::<Result<Vec<AttributeName>, SqsError>>()?;
        let names = if is_all { AttributeName::ALL } else { &named };
        let has_counts = names.iter().any(|name| name.is_count());
        // Programs, and tests above all, compare the counts right after they sent or received.
        let totals = if has_counts { queue.settled_totals().await } else { queue.totals() };
        let attributes = names.iter().filter_map(|&name| {
            let value = self.attribute(&totals, &descriptor, &spec, name)?;
            Some((name.as_str(), value))
        });
        Ok(AttributesResponse { attributes: attributes.collect() })
    }

    pub(crate) async fn set_queue_attributes(
        &self,
        context: &RequestContext,
        request: SetAttributes,
    ) -> Result<EmptyResponse, SqsError> {
        self.change(context, request.queue_url.as_deref(), |spec| {
            let missing = SqsError::Missing { name: "Attribute.Name" };
            let attributes = request.attributes.filter(|named| !named.is_empty()).ok_or(missing)?;
            self.apply(&context.caller, spec, &attributes)
        })
        .await
    }

    pub(crate) async fn purge_queue(
        &self,
        context: &RequestContext,
        request: &QueueRequest,
    ) -> Result<EmptyResponse, SqsError> {
        let lock = self.lock_changes().await;
        let queue = lock.queue(context, request.queue_url.as_deref())?;
        {
            let mut purged = self.purged.lock();
            let now = Instant::now();
            purged.retain(|_, purged_at| now.duration_since(*purged_at) < PURGE_INTERVAL);
            if purged.contains_key(&queue.id()) {
                return Err(SqsError::PurgeInProgress { queue: queue.descriptor().name.clone() });
            }
            purged.insert(queue.id(), now);
        }
        let result = queue.purge().await;
        if result.is_err() {
            self.purged.lock().remove(&queue.id());
        }
        Ok(result.map(|()| EmptyResponse {})?)
    }

    pub(crate) async fn delete_queue(
        &self,
        context: &RequestContext,
        request: &QueueRequest,
    ) -> Result<EmptyResponse, SqsError> {
        let lock = self.lock_changes().await;
        let queue = lock.queue(context, request.queue_url.as_deref())?;
        lock.delete(&queue).await?;
        Ok(EmptyResponse {})
    }
}

fn queue_name(name: Option<&str>) -> Result<&str, SqsError> {
    name.filter(|name| !name.is_empty()).ok_or_else(|| SqsError::invalid(reason::NO_QUEUE_NAME))
}

fn check_name(name: &str, attributes: &Attributes) -> Result<(), SqsError> {
    let is_fifo = attributes
        .get(AttributeName::FifoQueue.as_str())
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let (stem, reason) = match is_fifo {
        true => (name.strip_suffix(fifo::SUFFIX).unwrap_or_default(), reason::FIFO_QUEUE_NAME),
        false => (name, reason::QUEUE_NAME),
    };
    let is_plain =
        !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_plain && name.len() <= NAME_MAX { Ok(()) } else { Err(SqsError::invalid(reason)) }
}

/// A page of a list.
pub(crate) struct Page {
    pub(crate) max: usize,
    /// Last queue of the previous page.
    pub(crate) after: Option<PagePosition>,
}

/// Position in a list of queues, encoded in the token of the next page.
pub(crate) struct PagePosition {
    pub(crate) name: String,
    /// `None` in tokens of versions without owners.
    namespace: Option<Namespace>,
}

impl PagePosition {
    fn as_list_position(&self) -> ListPosition<'_> {
        ListPosition { name: &self.name, namespace: self.namespace }
    }
}

/// Parses the paging parameters of a request.
pub(crate) fn page_of(max: Option<i64>, token: Option<&str>) -> Result<Page, SqsError> {
    let max = max.unwrap_or(*PAGE.end());
    if !PAGE.contains(&max) {
        return Err(SqsError::invalid(reason::PAGE));
    }
    let after = token.map(|token| {
        let text = base64::decode(token).and_then(|bytes| String::from_utf8(bytes).ok());
        text.as_deref().and_then(read_position).ok_or_else(|| SqsError::invalid(reason::NEXT_TOKEN))
    });
    Ok(Page { max: usize::try_from(max).unwrap_or(1), after: after.transpose()? })
}

/// Parses `name`, `name/` for a shared queue, or `name/account`.
fn read_position(text: &str) -> Option<PagePosition> {
    let (name, account) = text.split_once('/').map_or((text, None), |(name, account)| (name, Some(account)));
    let namespace = match account {
        None => None,
        Some("") => Some(Namespace::Shared),
        Some(account) => Some(Namespace::Account(account.parse().ok()?)),
    };
    Some(PagePosition { name: name.to_owned(), namespace })
}

impl SqsApi {
    /// Returns the token of the next page, if `found` has more queues than this page.
    pub(crate) fn next_page(&self, page: &Page, found: &[Queue]) -> Option<String> {
        let last = found.get(page.max.checked_sub(1)?).filter(|_| page.max < found.len())?.descriptor();
        let position = match last.namespace {
            Namespace::Shared => format!("{}/", last.name),
            Namespace::Account(account) => format!("{}/{account}", last.name),
        };
        Some(base64::encode(position.as_bytes()))
    }
}
