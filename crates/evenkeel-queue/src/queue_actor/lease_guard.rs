//! Leased messages on their way to a consumer.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_actor::{ActorRef, Reply};

use super::{Msg, respond};
use crate::id::{KeyId, QueueId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::queue_state::LeasedMessage;
use crate::rejection::Rejection;
use crate::store::{Store, StoreError};

/// Leased messages on their way to a consumer. Dropping the guard releases the leases and counts no attempt.
pub(crate) struct LeaseGuard {
    messages: Vec<(LeasedMessage, Payload)>,
    actor: Option<ActorRef<Msg>>,
}

impl LeaseGuard {
    pub(super) fn empty() -> Self {
        Self { messages: Vec::new(), actor: None }
    }

    /// Replies with the messages, after reading the payloads that are not in memory.
    pub(super) fn deliver(
        leased: Vec<LeasedMessage>,
        reply: Reply<Result<Self, Rejection>>,
        actor: ActorRef<Msg>,
        store: &Arc<dyn Store>,
        queue: QueueId,
    ) {
        let missing: Vec<(KeyId, MessageMeta)> = leased
            .iter()
            .filter(|leased| leased.payload.is_none())
            .map(|leased| (leased.key, leased.meta))
            .collect();
        if missing.is_empty() {
            return respond(reply, Ok(Self::new(leased, &mut HashMap::new(), actor)));
        }
        let done = move |found: Result<Vec<(Seq, Payload)>, StoreError>| match found {
            Ok(found) => respond(reply, Ok(Self::new(leased, &mut found.into_iter().collect(), actor))),
            Err(error) => {
                let undelivered =
                    leased.iter().map(|leased| (leased.meta.seq, leased.deliveries.number())).collect();
                actor.tell(Msg::LeaseDropped(undelivered));
                respond(reply, Err(Rejection::Store(error)));
            }
        };
        store.read_payloads(queue, missing, Box::new(done));
    }

    fn new(leased: Vec<LeasedMessage>, found: &mut HashMap<Seq, Payload>, actor: ActorRef<Msg>) -> Self {
        let with_payload = leased.into_iter().filter_map(|mut leased| {
            let payload = leased.payload.take().or_else(|| found.remove(&leased.meta.seq));
            if payload.is_none() {
                tracing::debug!(seq = leased.meta.seq.0, "leased message was purged before it was read");
            }
            Some((leased, payload?))
        });
        Self { messages: with_payload.collect(), actor: Some(actor) }
    }

    /// Hands the messages to the consumer; their leases are no longer released on drop.
    pub(crate) fn into_messages(mut self) -> Vec<(LeasedMessage, Payload)> {
        core::mem::take(&mut self.messages)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(actor) = self.actor.take().filter(|_| !self.messages.is_empty()) {
            let undelivered = self
                .messages
                .iter()
                .map(|(leased, _)| (leased.meta.seq, leased.deliveries.number()))
                .collect();
            actor.tell(Msg::LeaseDropped(undelivered));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NewMessage;
    use crate::namespace::Namespace;
    use crate::queue::{ActiveOwner, Owner, ReceiveOptions};
    use crate::queue_actor::{ReceiveRequest, WhenEmpty};
    use crate::queues::Queues;
    use crate::settings::QueueSettings;
    use crate::store::memory::MemoryStore;
    use core::time::Duration;

    #[tokio::test]
    async fn dropping_a_lease_guard_releases_the_messages_without_counting_an_attempt() {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 10).await.unwrap();
        let queue = queues
            .create(Namespace::Shared, "jobs", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        queue.enqueue(vec![NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
        let Owner::Active(ActiveOwner { actor, .. }) = queue.0.owner.borrow().clone() else {
            panic!("the queue has no actor");
        };
        let request = |reply| Msg::Receive(ReceiveRequest::new(2, None, WhenEmpty::Return, reply));
        let guard = actor.ask(request).await.unwrap().unwrap();
        assert_eq!(queue.totals().in_flight, 2);
        drop(guard);
        let options = ReceiveOptions { max: 2, lease: None, wait: Duration::from_secs(20) };
        let attempts: Vec<u32> =
            queue.receive(options).await.unwrap().iter().map(|delivery| delivery.attempt).collect();
        assert_eq!(attempts, [1, 1], "an undelivered lease was counted as an attempt");
    }
}
