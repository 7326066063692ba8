//! Messages on their way to a consumer.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_actor::{ActorRef, Reply};

use super::{Msg, answer};
use crate::id::{KeyId, QueueId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::queue_state::LeasedMessage;
use crate::rejection::Rejection;
use crate::store::{Store, StoreError};

/// Messages on their way; what is not taken out goes back to the queue as if it had never left.
pub(crate) struct LeaseGuard {
    messages: Vec<(LeasedMessage, Payload)>,
    back: Option<ActorRef<Msg>>,
}

impl LeaseGuard {
    /// Holds nothing.
    pub(super) fn empty() -> Self {
        Self { messages: Vec::new(), back: None }
    }

    /// Sends messages to whoever asked, with their payloads, which may have to be read first.
    pub(super) fn deliver(
        leased: Vec<LeasedMessage>,
        reply: Reply<Result<Self, Rejection>>,
        back: ActorRef<Msg>,
        store: &Arc<dyn Store>,
        queue: QueueId,
    ) {
        let missing: Vec<(KeyId, MessageMeta)> = leased
            .iter()
            .filter(|leased| leased.payload.is_none())
            .map(|leased| (leased.key, leased.header))
            .collect();
        if missing.is_empty() {
            return answer(reply, Ok(Self::of(leased, &mut HashMap::new(), back)));
        }
        let done = move |found: Result<Vec<(Seq, Payload)>, StoreError>| match found {
            Ok(found) => answer(reply, Ok(Self::of(leased, &mut found.into_iter().collect(), back))),
            Err(why) => {
                let seqs =
                    leased.iter().map(|leased| (leased.header.seq, leased.delivered.number())).collect();
                back.tell(Msg::LeaseDropped(seqs));
                answer(reply, Err(Rejection::Store(why)));
            }
        };
        store.read(queue, missing, Box::new(done));
    }

    fn of(leased: Vec<LeasedMessage>, found: &mut HashMap<Seq, Payload>, back: ActorRef<Msg>) -> Self {
        let with_payload = leased.into_iter().filter_map(|mut leased| {
            let payload = leased.payload.take().or_else(|| found.remove(&leased.header.seq));
            if payload.is_none() {
                // Purged between the lease and the look.
                tracing::debug!(seq = leased.header.seq.0, "a leased message is gone");
            }
            Some((leased, payload?))
        });
        Self { messages: with_payload.collect(), back: Some(back) }
    }

    /// Takes the messages out; from here on they are the consumer's.
    pub(crate) fn into_messages(mut self) -> Vec<(LeasedMessage, Payload)> {
        core::mem::take(&mut self.messages)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(back) = self.back.take().filter(|_| !self.messages.is_empty()) {
            let seqs = self
                .messages
                .iter()
                .map(|(leased, _)| (leased.header.seq, leased.delivered.number()))
                .collect();
            back.tell(Msg::LeaseDropped(seqs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NewMessage;
    use crate::queue::{ActiveOwner, Owner, ReceiveOptions};
    use crate::queue_actor::{ReceiveRequest, WhenEmpty};
    use crate::queues::Queues;
    use crate::settings::QueueSettings;
    use crate::store::memory::MemoryStore;
    use core::time::Duration;

    #[tokio::test]
    async fn a_parcel_that_nobody_opens_goes_back_uncounted() {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 10).await.unwrap();
        let queue = queues.create("jobs", QueueSettings::default(), String::new()).await.unwrap().queue();
        queue.enqueue(vec![NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
        let Owner::Active(ActiveOwner { keeper, .. }) = queue.0.owner.borrow().clone() else {
            panic!("a queue has a keeper");
        };
        let question =
            |reply| Msg::Receive(ReceiveRequest { max: 2, lease: None, line: WhenEmpty::Return, reply });
        let parcel = keeper.ask(question).await.unwrap().unwrap();
        assert_eq!(queue.totals().in_flight, 2);
        drop(parcel);
        let want = ReceiveOptions { max: 2, lease: None, wait: Duration::from_secs(20) };
        let attempts: Vec<u32> =
            queue.receive(want).await.unwrap().iter().map(|delivery| delivery.attempt).collect();
        assert_eq!(attempts, [1, 1], "a delivery that reached nobody was counted");
    }
}
