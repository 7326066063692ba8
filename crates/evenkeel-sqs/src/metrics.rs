//! What the door counts, and what queues hold, as metrics.
//!
//! Bound: queues beyond the limit are `other`; operations and codes are as many as there are.

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
    "messages that wait, are in flight or are delayed, by queue and state",
);
const QUEUE_BYTES: MetricDesc = MetricDesc::new("evenkeel_queue_bytes", "bytes of the messages of a queue");
const QUEUE_SENT_TOTAL: MetricDesc = MetricDesc::new("evenkeel_queue_sent_total", "messages sent, by queue");
const QUEUE_RECEIVED_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_queue_received_total", "deliveries of messages, by queue");
const QUEUE_DELETED_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_queue_deleted_total", "messages acknowledged, by queue");
const QUEUE_EXPIRED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_queue_expired_total",
    "messages removed because their time to live or their queue's retention was over, by queue",
);
const QUEUE_KEEPERS_REPLACED_TOTAL: MetricDesc = MetricDesc::new(
    "evenkeel_queue_actor_restarts_total",
    "keepers of a queue that failed and were replaced, by queue",
);
const SQS_WAITING: MetricDesc = MetricDesc::new("evenkeel_sqs_waiting", "receives that wait for a message");
const SQS_REQUESTS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_sqs_requests_total", "requests in the SQS protocol, by operation and code");
const SQS_REQUEST_SECONDS: MetricDesc = MetricDesc::new(
    "evenkeel_sqs_request_seconds",
    "how long requests in the SQS protocol took that were done, waits included, by operation",
);

/// What a request is counted as that was done.
const OK: &str = "OK";
/// More than there are ways to fail.
const CODES_MAX: usize = 64;

pub(crate) struct SqsMetrics {
    waiting: Gauge,
    requests: Family<Counter, 2>,
    /// One per [`Operation`].
    done: Vec<OperationMetrics>,
    families: Families,
    queues: RwLock<HashMap<QueueId, QueueCounters>>,
    queues_max: usize,
    /// Names that have gauges, to put those of queues that are gone to zero.
    shown: Mutex<BTreeMap<String, QueueGauges>>,
}

/// What is counted of every operation that is done.
struct OperationMetrics {
    requests: Counter,
    seconds: Histogram,
}

struct Families {
    sent: Family<Counter, 1>,
    received: Family<Counter, 1>,
    deleted: Family<Counter, 1>,
    expired: Family<Counter, 1>,
    replaced: Family<Counter, 1>,
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
struct QueueGauges {
    pending: Gauge,
    in_flight: Gauge,
    delayed: Gauge,
    bytes: Gauge,
    expired: Counter,
    replaced: Counter,
}

impl SqsMetrics {
    pub(crate) fn new(registry: &Registry, queues_max: usize) -> Result<Self, RegisterError> {
        let operation = Label { name: "operation", values_max: Operation::ALL.len() };
        let code = Label { name: "code", values_max: CODES_MAX };
        let queue = Label { name: "queue", values_max: queues_max };
        let state = Label { name: "state", values_max: 3 };
        let requests = registry.counters(SQS_REQUESTS_TOTAL, [operation, code])?;
        let seconds = registry.histograms(SQS_REQUEST_SECONDS, [operation], DURATION_BOUNDS)?;
        let done = Operation::ALL.iter().map(|operation| OperationMetrics {
            requests: requests.with([operation.name(), OK]),
            seconds: seconds.with([operation.name()]),
        });
        Ok(Self {
            waiting: registry.gauge(SQS_WAITING)?,
            done: done.collect(),
            requests,
            families: Families {
                sent: registry.counters(QUEUE_SENT_TOTAL, [queue])?,
                received: registry.counters(QUEUE_RECEIVED_TOTAL, [queue])?,
                deleted: registry.counters(QUEUE_DELETED_TOTAL, [queue])?,
                expired: registry.counters(QUEUE_EXPIRED_TOTAL, [queue])?,
                replaced: registry.counters(QUEUE_KEEPERS_REPLACED_TOTAL, [queue])?,
                messages: registry.gauges(QUEUE_MESSAGES, [queue, state])?,
                bytes: registry.gauges(QUEUE_BYTES, [queue])?,
            },
            queues: RwLock::default(),
            queues_max,
            shown: Mutex::default(),
        })
    }

    /// Counts a request that was done.
    pub(crate) fn done(&self, operation: Operation, took: Duration) {
        let OperationMetrics { requests, seconds } = &self.done[operation as usize];
        requests.count();
        seconds.record(took);
    }

    /// Counts a request that was refused.
    pub(crate) fn refused(&self, operation: Option<Operation>, code: &'static str) {
        self.requests.with([operation.map_or(OTHER, Operation::name), code]).count();
    }

    /// Counts a receive as waiting, until what is returned is dropped.
    pub(crate) fn wait(&self) -> WaitingGuard<'_> {
        self.waiting.add(1);
        WaitingGuard(&self.waiting)
    }

    pub(crate) fn sent(&self, queue: &Queue, count: u64) {
        self.of(queue).sent.add(count);
    }

    pub(crate) fn received(&self, queue: &Queue, count: u64) {
        self.of(queue).received.add(count);
    }

    pub(crate) fn deleted(&self, queue: &Queue, count: u64) {
        self.of(queue).deleted.add(count);
    }

    fn of(&self, queue: &Queue) -> QueueCounters {
        if let Some(meters) = self.queues.read().get(&queue.id()) {
            return meters.clone();
        }
        let body = queue.descriptor();
        let mut queues = self.queues.write();
        // Ids are never given twice: those of queues long gone would pile up.
        if self.queues_max <= queues.len() {
            queues.clear();
        }
        let name = [body.name.as_str()];
        let meters = QueueCounters {
            sent: self.families.sent.with(name),
            received: self.families.received.with(name),
            deleted: self.families.deleted.with(name),
        };
        queues.insert(queue.id(), meters.clone());
        meters
    }

    /// Puts what queues hold at this moment on the page.
    pub(crate) fn publish_queue_totals(&self, queues: &Queues) {
        let mut shown = self.shown.lock();
        for gauges in shown.values() {
            gauges.set([0; 4]);
        }
        // The label's own limit would make `other` of the rest, whose gauges would overwrite each other.
        for queue in queues.list("", None, self.queues_max) {
            let body = queue.descriptor();
            let totals = queue.totals();
            let is_full = self.queues_max <= shown.len() && !shown.contains_key(&body.name);
            if is_full {
                continue;
            }
            let gauges = shown.entry(body.name.clone()).or_insert_with(|| self.families.gauges(&body.name));
            gauges.set([totals.pending, totals.in_flight, totals.delayed, totals.bytes]);
            gauges.expired.advance_to(totals.expired);
            gauges.replaced.advance_to(queue.actor_restarts());
        }
    }
}

/// A receive that waits.
pub(crate) struct WaitingGuard<'a>(&'a Gauge);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Families {
    fn gauges(&self, name: &str) -> QueueGauges {
        QueueGauges {
            pending: self.messages.with([name, "pending"]),
            in_flight: self.messages.with([name, "in_flight"]),
            delayed: self.messages.with([name, "delayed"]),
            bytes: self.bytes.with([name]),
            expired: self.expired.with([name]),
            replaced: self.replaced.with([name]),
        }
    }
}

impl QueueGauges {
    fn set(&self, [pending, in_flight, delayed, bytes]: [u64; 4]) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.pending.set(number(pending));
        self.in_flight.set(number(in_flight));
        self.delayed.set(number(delayed));
        self.bytes.set(number(bytes));
    }
}
