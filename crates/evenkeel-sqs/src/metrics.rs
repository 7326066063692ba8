//! Metrics of the SQS API and of queues.
//!
//! Limits: for queues beyond `queues_max`, sent, received and deleted messages are counted as `other`; their other
//! metrics are not exported. Operations and error codes are fixed sets.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use evenkeel_queue::{Queue, QueueId, Queues};
use evenkeel_telemetry::{
    Counter, DURATION_BOUNDS, Family, Gauge, Histogram, Label, MetricDesc, OTHER, RegisterError, Registry,
};
use parking_lot::{Mutex, RwLock};

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
    /// Metrics read from the queues, by queue name; the gauges of deleted queues are set to zero.
    polled: Mutex<BTreeMap<String, PolledQueueMetrics>>,
}

/// Metrics of an operation's successful requests.
struct OperationMetrics {
    requests: Counter,
    seconds: Histogram,
}

struct Families {
    sent: Family<Counter, 1>,
    received: Family<Counter, 1>,
    deleted: Family<Counter, 1>,
    expired: Family<Counter, 1>,
    actor_restarts: Family<Counter, 1>,
    messages: Family<Gauge, 2>,
    bytes: Family<Gauge, 1>,
}

#[derive(Clone)]
struct QueueCounters {
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
                sent: registry.counters(QUEUE_SENT_TOTAL, [queue])?,
                received: registry.counters(QUEUE_RECEIVED_TOTAL, [queue])?,
                deleted: registry.counters(QUEUE_DELETED_TOTAL, [queue])?,
                expired: registry.counters(QUEUE_EXPIRED_TOTAL, [queue])?,
                actor_restarts: registry.counters(QUEUE_ACTOR_RESTARTS_TOTAL, [queue])?,
                messages: registry.gauges(QUEUE_MESSAGES, [queue, state])?,
                bytes: registry.gauges(QUEUE_BYTES, [queue])?,
            },
            counters_by_queue: RwLock::default(),
            queues_max,
            polled: Mutex::default(),
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

    pub(crate) fn sent(&self, queue: &Queue, count: u64) {
        self.counters(queue).sent.add(count);
    }

    pub(crate) fn received(&self, queue: &Queue, count: u64) {
        self.counters(queue).received.add(count);
    }

    pub(crate) fn deleted(&self, queue: &Queue, count: u64) {
        self.counters(queue).deleted.add(count);
    }

    fn counters(&self, queue: &Queue) -> QueueCounters {
        if let Some(counters) = self.counters_by_queue.read().get(&queue.id()) {
            return counters.clone();
        }
        let descriptor = queue.descriptor();
        let mut cached = self.counters_by_queue.write();
        // This is a cache: cleared when full, because entries of deleted queues would accumulate (ids are not reused).
        if cached.len() >= self.queues_max {
            cached.clear();
        }
        let name = [descriptor.name.as_str()];
        let counters = QueueCounters {
            sent: self.families.sent.with(name),
            received: self.families.received.with(name),
            deleted: self.families.deleted.with(name),
        };
        cached.insert(queue.id(), counters.clone());
        counters
    }

    /// Updates the metrics that are read from the queues: gauges, expired messages and actor restarts.
    pub(crate) fn publish_queue_totals(&self, queues: &Queues) {
        let mut published = self.polled.lock();
        for metrics in published.values() {
            metrics.set_gauges([0; 4]);
        }
        // Queues beyond the limit are skipped: as `other` they would overwrite each other's gauges.
        for queue in queues.list("", None, self.queues_max, |_| true) {
            let descriptor = queue.descriptor();
            let name = &descriptor.name;
            let totals = queue.totals();
            let exceeds_limit = published.len() >= self.queues_max && !published.contains_key(name);
            if exceeds_limit {
                continue;
            }
            let metrics = published.entry(name.clone()).or_insert_with(|| self.families.polled(name));
            metrics.set_gauges([totals.pending, totals.in_flight, totals.delayed, totals.bytes]);
            metrics.expired.advance_to(totals.expired);
            metrics.actor_restarts.advance_to(queue.actor_restarts());
        }
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
    fn polled(&self, name: &str) -> PolledQueueMetrics {
        PolledQueueMetrics {
            pending: self.messages.with([name, "pending"]),
            in_flight: self.messages.with([name, "in_flight"]),
            delayed: self.messages.with([name, "delayed"]),
            bytes: self.bytes.with([name]),
            expired: self.expired.with([name]),
            actor_restarts: self.actor_restarts.with([name]),
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
