//! Ledger of the crash test: every confirmation that clients got, checked against what happened later.
//!
//! A request without a response may or may not have been executed, except during a graceful shutdown: then it was not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

use evenkeel_sim_node::testing::RawResponse;

/// Signal that stops the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopKind {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Graceful,
}

/// Identity of a message, stored as its body. Bodies of one producer sort in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Body {
    pub(super) producer: usize,
    pub(super) group: u64,
    pub(super) round: u64,
    pub(super) number: u64,
}

impl Body {
    pub(super) fn group(&self) -> String {
        format!("group-{}", self.group)
    }

    fn stream(self) -> Stream {
        (self.producer, self.group)
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.producer, self.group, self.round, self.number)
    }
}

impl FromStr for Body {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(' ');
        let mut next = || parts.next().unwrap_or_default().parse::<u64>();
        let producer = next()?;
        let group = next()?;
        let round = next()?;
        let number = next()?;
        Ok(Self { producer: usize::try_from(producer).unwrap(), group, round, number })
    }
}

/// Producer and group, within which messages are ordered.
type Stream = (usize, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) body: Body,
    pub(super) attempt: u32,
}

/// State of the ledger when a receive started.
#[derive(Debug)]
pub(super) struct ReceiveSnapshot {
    /// Number of confirmed deletions.
    deletions: usize,
    /// Last message of each stream that was delivered for the first time; first deliveries must come in order.
    reached: BTreeMap<Stream, Body>,
}

/// Ledger shared by all clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Records>>);

#[derive(Debug, Default)]
struct Records {
    tried: BTreeSet<Body>,
    sent: BTreeSet<Body>,
    delivered: BTreeSet<Body>,
    /// Messages that a client tried to delete.
    deleting: BTreeSet<Body>,
    /// Deleted messages, each with its delivery attempt and the number of earlier deletions.
    deleted: BTreeMap<Body, (u32, usize)>,
    /// Messages found while draining.
    drained: BTreeSet<Body>,
    reached: BTreeMap<Stream, Body>,
    stopping: Option<StopKind>,
    runs: u64,
    is_draining: bool,
    unanswered_requests: u64,
    redelivered: u64,
    /// Messages whose send a gracefully stopping gateway did not answer.
    unanswered_sends: BTreeSet<Body>,
    faults: Vec<String>,
}

impl Ledger {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap()
    }

    pub(super) fn record_send_attempt(&self, bodies: &[Body]) {
        self.records().tried.extend(bodies);
    }

    pub(super) fn record_sent(&self, bodies: &[Body]) {
        self.records().sent.extend(bodies);
    }

    pub(super) fn record_deleting(&self, deliveries: &[Delivery]) {
        self.records().deleting.extend(deliveries.iter().map(|delivery| delivery.body));
    }

    pub(super) fn record_deleted(&self, deliveries: &[Delivery]) {
        let mut records = self.records();
        for delivery in deliveries {
            let before = records.deleted.len();
            records.deleted.insert(delivery.body, (delivery.attempt, before));
        }
    }

    pub(super) fn begin_receive(&self) -> ReceiveSnapshot {
        let records = self.records();
        ReceiveSnapshot { deletions: records.deleted.len(), reached: records.reached.clone() }
    }

    pub(super) fn record_received(
        &self,
        snapshot: &ReceiveSnapshot,
        deliveries: impl Iterator<Item = Delivery>,
    ) {
        let mut records = self.records();
        let mut reached = snapshot.reached.clone();
        for delivery in deliveries {
            records.record_delivery(snapshot, &mut reached, delivery);
        }
    }

    /// Records a request without a complete response.
    pub(super) fn record_unanswered(&self, operation: &str) {
        self.records().unanswered_requests += 1;
        self.record_unreached(operation);
    }

    /// Records a failed connection attempt.
    pub(super) fn record_unreached(&self, operation: &str) {
        let mut records = self.records();
        if records.stopping.is_none() {
            records.fault(&format!("{operation} got no response"));
        }
    }

    pub(super) fn record_rejected(&self, operation: &str, reply: &RawResponse) {
        let mut records = self.records();
        if records.stopping != Some(StopKind::Graceful) || reply.status != 503 {
            records.fault(&format!("{operation} was rejected: {reply:?}"));
        }
    }

    /// Records that the gateway is about to be stopped.
    pub(super) fn record_stop(&self, kind: StopKind) {
        self.records().stopping = Some(kind);
    }

    /// Records that the gateway has stopped and all its clients have finished.
    pub(super) fn record_stopped(&self) {
        let mut records = self.records();
        if records.stopping.take() == Some(StopKind::Graceful) {
            let unanswered: Vec<Body> = records.tried.difference(&records.sent).copied().collect();
            records.unanswered_sends.extend(unanswered);
        }
        records.runs += 1;
        records.reached.clear();
    }

    /// Records that the test has started to drain the queue.
    pub(super) fn record_draining(&self) {
        self.records().is_draining = true;
    }

    pub(super) fn unanswered_requests(&self) -> u64 {
        self.records().unanswered_requests
    }

    /// Checks all records.
    pub(super) fn check(&self, stops: u64) {
        let records = self.records();
        println!(
            "{} sent, {} delivered, {} deleted, {} redelivered, {} left at the end, {} requests without a response, over \
             {stops} stops",
            records.sent.len(),
            records.delivered.len(),
            records.deleted.len(),
            records.redelivered,
            records.drained.len(),
            records.unanswered_requests,
        );
        assert_eq!(records.all_faults(), [] as [String; 0]);
        let check_activity = |action: &str, count: usize| {
            assert!(count as u64 > stops * 20, "too few messages were {action}: {count}");
        };
        check_activity("sent", records.sent.len());
        check_activity("deleted", records.deleted.len());
        assert!(records.redelivered > stops, "too few messages were redelivered: {}", records.redelivered);
    }
}

impl Records {
    fn fault(&mut self, message: &str) {
        let fault = format!("{message}, in run {}", self.runs);
        self.faults.push(fault);
    }

    fn record_delivery(
        &mut self,
        snapshot: &ReceiveSnapshot,
        reached: &mut BTreeMap<Stream, Body>,
        delivery: Delivery,
    ) {
        let Delivery { body, attempt } = delivery;
        if !self.tried.contains(&body) {
            self.fault(&format!("{body} was delivered but never sent"));
        }
        // The same attempt may be read after its deletion, if the response was sent before it. A later attempt, or a
        // receive that started after the deletion, must not return the message.
        if let Some((deleted, before)) = self.deleted.get(&body).copied()
            && (deleted < attempt || before < snapshot.deletions)
        {
            self.fault(&format!("{body} was delivered after its deletion"));
        }
        if !self.delivered.insert(body) {
            self.redelivered += 1;
        }
        if self.is_draining {
            self.drained.insert(body);
        }
        if attempt == 1 {
            if reached.insert(body.stream(), body).is_some_and(|before| body <= before) {
                self.fault(&format!("{body} was delivered out of order"));
            }
            let latest = self.reached.entry(body.stream()).or_insert(body);
            *latest = body.max(*latest);
        }
    }

    fn all_faults(&self) -> Vec<String> {
        let lost = self.sent.difference(&self.delivered).map(|body| format!("{body} was lost"));
        let undeleted = self.sent.iter().filter(|body| !self.deleting.contains(body));
        let missing = undeleted
            .filter(|body| !self.drained.contains(body))
            .map(|body| format!("{body} was missing at the end, and no client deleted it"));
        let unanswered = self.unanswered_sends.intersection(&self.delivered);
        let unconfirmed =
            unanswered.map(|body| format!("{body} was accepted by a gateway that did not confirm it"));
        self.faults.iter().cloned().chain(lost).chain(missing).chain(unconfirmed).collect()
    }
}
