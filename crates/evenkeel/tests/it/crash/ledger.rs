//! What clients of a gateway were told, and what of it turned out not to be true.
//!
//! A request that stays unanswered may or may not have been done, unless the gateway was asked to stop: then it was not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::raw::Reply;

/// How a gateway ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Without a chance to do anything.
    Sudden,
    /// By a signal that it obeys.
    Asked,
}

/// A message, as who sent it which time; those of one producer are in the order of their sending.
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

    fn line(self) -> Line {
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

/// The messages of a group that one producer sent, whose order is known.
type Line = (usize, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) body: Body,
    pub(super) attempt: u32,
}

/// What was known when a receive began.
#[derive(Debug)]
pub(super) struct Begun {
    /// How many deletions had been confirmed.
    deletions: usize,
    /// What each line had come to: whatever is delivered for the first time is behind it.
    reached: BTreeMap<Line, Body>,
}

/// A ledger that many clients write.
#[derive(Clone, Debug, Default)]
pub(super) struct Book(Arc<Mutex<Ledger>>);

#[derive(Debug, Default)]
struct Ledger {
    tried: BTreeSet<Body>,
    sent: BTreeSet<Body>,
    delivered: BTreeSet<Body>,
    /// Those that somebody asked to delete.
    deleting: BTreeSet<Body>,
    /// Those that are deleted, with the attempt that was and how many were before.
    deleted: BTreeMap<Body, (u32, usize)>,
    /// Those that were there at the end.
    drained: BTreeSet<Body>,
    reached: BTreeMap<Line, Body>,
    death: Option<Death>,
    lives: u64,
    at_end: bool,
    unheard: u64,
    redelivered: u64,
    /// Those whose sending a gateway that stopped did not answer.
    unanswered: BTreeSet<Body>,
    faults: Vec<String>,
}

impl Book {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }

    pub(super) fn record_trying(&self, bodies: &[Body]) {
        self.ledger().tried.extend(bodies);
    }

    pub(super) fn record_sent(&self, bodies: &[Body]) {
        self.ledger().sent.extend(bodies);
    }

    pub(super) fn record_deleting(&self, deliveries: &[Delivery]) {
        self.ledger().deleting.extend(deliveries.iter().map(|delivery| delivery.body));
    }

    pub(super) fn record_deleted(&self, deliveries: &[Delivery]) {
        let mut ledger = self.ledger();
        for delivery in deliveries {
            let before = ledger.deleted.len();
            ledger.deleted.insert(delivery.body, (delivery.attempt, before));
        }
    }

    pub(super) fn begin_receive(&self) -> Begun {
        let ledger = self.ledger();
        Begun { deletions: ledger.deleted.len(), reached: ledger.reached.clone() }
    }

    pub(super) fn record_received(&self, begun: &Begun, deliveries: impl Iterator<Item = Delivery>) {
        let mut ledger = self.ledger();
        let mut reached = begun.reached.clone();
        for delivery in deliveries {
            ledger.record_delivery(begun, &mut reached, delivery);
        }
    }

    /// A request was not answered, or not to its end.
    pub(super) fn record_unanswered(&self, operation: &str) {
        self.ledger().unheard += 1;
        self.record_unreached(operation);
    }

    /// Nobody was there to ask.
    pub(super) fn record_unreached(&self, operation: &str) {
        let mut ledger = self.ledger();
        if ledger.death.is_none() {
            ledger.fault(&format!("{operation} was not answered"));
        }
    }

    pub(super) fn record_rejected(&self, operation: &str, reply: &Reply) {
        let mut ledger = self.ledger();
        if ledger.death != Some(Death::Asked) || reply.status != 503 {
            ledger.fault(&format!("{operation} was refused: {reply:?}"));
        }
    }

    /// The gateway ends any moment now.
    pub(super) fn record_death(&self, death: Death) {
        self.ledger().death = Some(death);
    }

    /// The gateway has ended, and all that its clients were told is noted.
    pub(super) fn record_life(&self) {
        let mut ledger = self.ledger();
        if ledger.death.take() == Some(Death::Asked) {
            let unanswered: Vec<Body> = ledger.tried.difference(&ledger.sent).copied().collect();
            ledger.unanswered.extend(unanswered);
        }
        ledger.lives += 1;
        ledger.reached.clear();
    }

    /// From here on the queue is emptied.
    pub(super) fn record_end(&self) {
        self.ledger().at_end = true;
    }

    pub(super) fn unheard(&self) -> u64 {
        self.ledger().unheard
    }

    /// Compares what was told with what happened.
    pub(super) fn check(&self, deaths: u64) {
        let ledger = self.ledger();
        println!(
            "{} sent, {} delivered, {} deleted, {} delivered again, {} left at the end, {} requests unanswered, over \
             {deaths} deaths",
            ledger.sent.len(),
            ledger.delivered.len(),
            ledger.deleted.len(),
            ledger.redelivered,
            ledger.drained.len(),
            ledger.unheard,
        );
        assert_eq!(ledger.all_faults(), [] as [String; 0]);
        let enough = |what: &str, count: usize| {
            assert!(deaths * 20 < count as u64, "hardly anything was {what}: {count}");
        };
        enough("sent", ledger.sent.len());
        enough("deleted", ledger.deleted.len());
        assert!(ledger.redelivered > deaths, "hardly anything came again: {}", ledger.redelivered);
    }
}

impl Ledger {
    fn fault(&mut self, what: &str) {
        let fault = format!("{what}, in life {}", self.lives);
        self.faults.push(fault);
    }

    fn record_delivery(&mut self, begun: &Begun, reached: &mut BTreeMap<Line, Body>, delivery: Delivery) {
        let Delivery { body, attempt } = delivery;
        if !self.tried.contains(&body) {
            self.fault(&format!("{body} was delivered and never sent"));
        }
        // An answer of before may be read late; a later attempt, or one asked for afterwards, is none of those.
        if let Some((deleted, before)) = self.deleted.get(&body).copied()
            && (deleted < attempt || before < begun.deletions)
        {
            self.fault(&format!("{body} was delivered after its deletion"));
        }
        if !self.delivered.insert(body) {
            self.redelivered += 1;
        }
        if self.at_end {
            self.drained.insert(body);
        }
        if attempt == 1 {
            if reached.insert(body.line(), body).is_some_and(|before| body <= before) {
                self.fault(&format!("{body} was delivered out of order"));
            }
            let furthest = self.reached.entry(body.line()).or_insert(body);
            *furthest = body.max(*furthest);
        }
    }

    fn all_faults(&self) -> Vec<String> {
        let lost = self.sent.difference(&self.delivered).map(|body| format!("{body} was lost"));
        let kept = self.sent.iter().filter(|body| !self.deleting.contains(body));
        let missing = kept
            .filter(|body| !self.drained.contains(body))
            .map(|body| format!("{body} was gone at the end, and nobody deleted it"));
        let unanswered = self.unanswered.intersection(&self.delivered);
        let secret = unanswered.map(|body| format!("{body} was taken by a gateway that did not say so"));
        self.faults.iter().cloned().chain(lost).chain(missing).chain(secret).collect()
    }
}
