//! Metrics of the SQS API and of queues.
//!
//! Limits: for queues beyond `queues_max`, sent, received and deleted messages are counted as `other`; their other
//! metrics are not exported. The label `owner` is empty for shared queues. Operations and error codes are fixed sets.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_queue::{Queue, QueueId, Queues};
use evenkeel_telemetry::{
    Counter, DURATION_BOUNDS, Family, Gauge, Histogram, Label, MetricDesc, OTHER, RegisterError, Registry,
};
use parking_lot::{Mutex, RwLock};

use crate::api::SqsApi;
use crate::operation::Operation;

const QUEUE_MESSAGES: MetricDesc = MetricDesc::new(
    "evenkeel_queue_messages",
    "messages that are pending, in flight or delayed, by queue and state",
);
const QUEUE_BYTES: MetricDesc = MetricDesc::new("evenkeel_queue_bytes", "bytes of a queue's messages");
const QUEUE_SENT_TOTAL: MetricDesc = MetricDesc::new("evenkeel_queue_sent_total", "messages sent, by queue");
const QUEUE_RECEIVED_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_queue_received_total", "deliveries of messages, by queue");
const QUEUE_DELETED_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_queue_deleted_total", "messages acknowledged, by queue");
const QUEUE_EXPIRED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_queue_expired_total",
    "messages removed because their time to live or the queue's retention expired, by queue",
);
const QUEUE_ACTOR_RESTARTS_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_queue_actor_restarts_total",
    "restarts of a queue's actor after it stopped unexpectedly, by queue",
);
const SQS_WAITING: MetricDesc =
    MetricDesc::new("evenkeel_sqs_waiting", "receives that wait for a message (long polling)");
const SQS_REQUESTS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_sqs_requests_total", "requests in the SQS protocol, by operation and code");
const SQS_REQUEST_SECONDS: MetricDesc = MetricDesc::new(
    "evenkeel_sqs_request_seconds",
    "duration of successful requests in the SQS protocol, long polling included, by operation",
);

/// Code of a successful request.
const OK: &str = "OK";
/// Maximum number of values of the label `code`.
const CODES_MAX: usize = 64;

pub(crate) struct SqsMetrics {
    waiting: Gauge,
    requests: Family<Counter, 2>,
    /// One per [`Operation`].
    operations: Vec<OperationMetrics>,
    families: Families,
    counters_by_queue: RwLock<HashMap<QueueId, QueueCounters>>,
    queues_max: usize,
    /// Metrics read from the queues; the gauges of deleted queues are set to zero.
    polled: Mutex<BTreeMap<QueueLabels, PolledQueueMetrics>>,
    /// Queues that have their own series.
    metered: Mutex<BTreeSet<QueueLabels>>,
}

/// Labels of a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueLabels {
    pub(crate) queue: String,
    /// Empty for a shared queue.
    pub(crate) owner: String,
}

impl QueueLabels {
    fn values(&self) -> [&str; 2] {
        [&self.queue, &self.owner]
    }
}

/// Metrics of an operation's successful requests.
struct OperationMetrics {
    requests: Counter,
    seconds: Histogram,
}

struct Families {
    sent: Family<Counter, 2>,
    received: Family<Counter, 2>,
    deleted: Family<Counter, 2>,
    expired: Family<Counter, 2>,
    actor_restarts: Family<Counter, 2>,
    messages: Family<Gauge, 3>,
    bytes: Family<Gauge, 2>,
}

#[derive(Clone)]
pub(crate) struct QueueCounters {
    sent: Counter,
    received: Counter,
    deleted: Counter,
}

#[derive(Clone)]
struct PolledQueueMetrics {
    pending: Gauge,
    in_flight: Gauge,
    delayed: Gauge,
    bytes: Gauge,
    expired: Counter,
    actor_restarts: Counter,
}

impl SqsMetrics {
    pub(crate) fn new(registry: &Registry, queues_max: usize) -> Result<Self, RegisterError> {
        let operation = Label { name: "operation", values_max: Operation::ALL.len() };
        let code = Label { name: "code", values_max: CODES_MAX };
        let queue = Label { name: "queue", values_max: queues_max };
        let owner = Label { name: "owner", values_max: queues_max };
        let state = Label { name: "state", values_max: 3 };
        let requests = registry.counters(SQS_REQUESTS_TOTAL, [operation, code])?;
        let seconds = registry.histograms(SQS_REQUEST_SECONDS, [operation], DURATION_BOUNDS)?;
        let operations = Operation::ALL.iter().map(|operation| OperationMetrics {
            requests: requests.with([operation.name(), OK]),
            seconds: seconds.with([operation.name()]),
        });
        Ok(Self {
            waiting: registry.gauge(SQS_WAITING)?,
            operations: operations.collect(),
            requests,
            families: Families {
                sent: registry.counters(QUEUE_SENT_TOTAL, [queue, owner])?,
                received: registry.counters(QUEUE_RECEIVED_TOTAL, [queue, owner])?,
                deleted: registry.counters(QUEUE_DELETED_TOTAL, [queue, owner])?,
                expired: registry.counters(QUEUE_EXPIRED_TOTAL, [queue, owner])?,
                actor_restarts: registry.counters(QUEUE_ACTOR_RESTARTS_TOTAL, [queue, owner])?,
                messages: registry.gauges(QUEUE_MESSAGES, [queue, owner, state])?,
                bytes: registry.gauges(QUEUE_BYTES, [queue, owner])?,
            },
            counters_by_queue: RwLock::default(),
            queues_max,
            polled: Mutex::default(),
            metered: Mutex::default(),
        })
    }

    /// Counts a successful request.
    pub(crate) fn succeeded(&self, operation: Operation, duration: Duration) {
        let OperationMetrics { requests, seconds } = &self.operations[operation as usize];
        requests.count();
        seconds.record(duration);
    }

    /// Counts a failed request.
    pub(crate) fn failed(&self, operation: Option<Operation>, code: &'static str) {
        self.requests.with([operation.map_or(OTHER, Operation::name), code]).count();
    }

    /// Counts a receive as waiting until the guard is dropped.
    pub(crate) fn waiting(&self) -> WaitingGuard<'_> {
        self.waiting.add(1);
        WaitingGuard(&self.waiting)
    }

    /// Returns the counters of a queue; `labels` is called for a queue that is not cached.
    pub(crate) fn counters(&self, queue: QueueId, labels: impl FnOnce() -> QueueLabels) -> QueueCounters {
        if let Some(counters) = self.counters_by_queue.read().get(&queue) {
            return counters.clone();
        }
        let labels = self.metered(labels());
        let mut cached = self.counters_by_queue.write();
        // This is a cache: cleared when full, because entries of deleted queues would accumulate (ids are not reused).
        if cached.len() >= self.queues_max {
            cached.clear();
        }
        let counters = QueueCounters {
            sent: self.families.sent.with(labels.values()),
            received: self.families.received.with(labels.values()),
            deleted: self.families.deleted.with(labels.values()),
        };
        cached.insert(queue, counters.clone());
        counters
    }

    /// Forgets the counters of a queue whose labels have changed.
    pub(crate) fn forget(&self, queue: QueueId) {
        self.counters_by_queue.write().remove(&queue);
    }

    /// Returns the labels of a queue, or `other` if too many queues have their own series.
    fn metered(&self, labels: QueueLabels) -> QueueLabels {
        let mut metered = self.metered.lock();
        if metered.len() < self.queues_max {
            metered.insert(labels.clone());
        }
        if metered.contains(&labels) {
            return labels;
        }
        QueueLabels { queue: OTHER.to_owned(), owner: OTHER.to_owned() }
    }

    /// Updates the metrics that are read from the queues: gauges, expired messages and actor restarts.
    pub(crate) fn publish_queue_totals(&self, queues: &Queues, labels: impl Fn(&Queue) -> QueueLabels) {
        let mut published = self.polled.lock();
        for metrics in published.values() {
            metrics.set_gauges([0; 4]);
        }
        // Queues beyond the limit are skipped: as `other` they would overwrite each other's gauges.
        for queue in queues.list("", None, self.queues_max, |_| true) {
            let labels = labels(&queue);
            let totals = queue.totals();
            let exceeds_limit = published.len() >= self.queues_max && !published.contains_key(&labels);
            if exceeds_limit {
                continue;
            }
            let metrics = published.entry(labels).or_insert_with_key(|labels| self.families.polled(labels));
            metrics.set_gauges([totals.pending, totals.in_flight, totals.delayed, totals.bytes]);
            metrics.expired.advance_to(totals.expired);
            metrics.actor_restarts.advance_to(queue.actor_restarts());
        }
    }
}

impl SqsApi {
    pub(crate) fn count_sent(&self, queue: &Queue, count: u64) {
        self.counters(queue).sent.add(count);
    }

    pub(crate) fn count_received(&self, queue: &Queue, count: u64) {
        self.counters(queue).received.add(count);
    }

    pub(crate) fn count_deleted(&self, queue: &Queue, count: u64) {
        self.counters(queue).deleted.add(count);
    }

    fn counters(&self, queue: &Queue) -> QueueCounters {
        self.metrics.counters(queue.id(), || self.labels(queue))
    }

    /// Returns the labels of a queue in metrics.
    pub(crate) fn labels(&self, queue: &Queue) -> QueueLabels {
        let descriptor = queue.descriptor();
        let owner = self.owner_name(descriptor.namespace).unwrap_or_default();
        QueueLabels { queue: descriptor.name.clone(), owner }
    }
}

/// Decrements the gauge of waiting receives when dropped.
pub(crate) struct WaitingGuard<'a>(&'a Gauge);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Families {
    fn polled(&self, labels: &QueueLabels) -> PolledQueueMetrics {
        let QueueLabels { queue, owner } = labels;
        PolledQueueMetrics {
            pending: self.messages.with([queue, owner, "pending"]),
            in_flight: self.messages.with([queue, owner, "in_flight"]),
            delayed: self.messages.with([queue, owner, "delayed"]),
            bytes: self.bytes.with(labels.values()),
            expired: self.expired.with(labels.values()),
            actor_restarts: self.actor_restarts.with(labels.values()),
        }
    }
}

impl PolledQueueMetrics {
    fn set_gauges(&self, [pending, in_flight, delayed, bytes]: [u64; 4]) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.pending.set(number(pending));
        self.in_flight.set(number(in_flight));
        self.delayed.set(number(delayed));
        self.bytes.set(number(bytes));
    }
}
