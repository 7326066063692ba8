//! Expiry by TTL and by retention, in the queue state.

use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue_state::{
    AbandonMode, Disposition, Explanation, LeaseBatch, PrefetchRequest, QueueState,
};
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{
    DeliveryOrder, Epoch, KeyId, MessageId, QueueId, QueueSettings, Rejection, Seq, UnixMillis,
};

const LEASE: Duration = Duration::from_millis(100);
const MINUTE: QueueSettings = QueueSettings { retention_ms: 60_000, ..QueueSettings::STANDARD };

#[test]
fn an_expired_message_in_flight_may_be_acknowledged_and_is_not_redelivered() {
    let mut harness = Harness::new(&QueueSettings::default());
    let acked = harness.send(0, 0, Some(150));
    let lost = harness.send(0, 0, Some(150));
    let leased = harness.receive(100, 10);
    assert_eq!(leased, [acked, lost]);
    assert!(matches!(harness.explain(lost), Explanation::InFlight { expires_at: Some(UnixMillis(150)), .. }));
    assert_eq!(harness.remove_expired(160), [] as [u64; 0], "both are in flight");
    harness.state.ack(delivery(acked)).unwrap();
    harness.state.confirm_removal(Seq(acked));
    assert_eq!(harness.remove_expired(200), [lost], "its lease has ended");
    assert_eq!(
        harness.state.abandon(UnixMillis(200), delivery(lost), AbandonMode::Retry(Duration::ZERO)),
        Err(Rejection::MessageGone)
    );
    assert_eq!(harness.receive(200, 10), [] as [u64; 0]);
    assert_eq!((harness.state.totals().expired, harness.state.totals().bytes), (1, 0));
}

#[test]
fn an_expired_message_that_is_abandoned_or_released_is_deleted_and_not_dead_lettered() {
    let redrive = Some(RedrivePolicy { to: QueueId(9), attempts_max: 1 });
    for how in ["nack", "dead-letter", "release"] {
        let mut harness = Harness::new(&QueueSettings { redrive, ..QueueSettings::default() });
        let message = harness.send(0, 0, Some(50));
        harness.receive(0, 1);
        let expired = Disposition::Expired { key: KeyId(0), meta: harness.sent[0] };
        match how {
            "nack" => {
                assert_eq!(
                    harness.state.abandon(
                        UnixMillis(50),
                        delivery(message),
                        AbandonMode::Retry(Duration::from_secs(9))
                    ),
                    Ok(expired)
                );
            }
            "dead-letter" => {
                let mode = AbandonMode::DeadLetter;
                assert_eq!(harness.state.abandon(UnixMillis(50), delivery(message), mode), Ok(expired));
            }
            _ => {
                harness.state.release(delivery(message)).unwrap();
                assert_eq!(harness.state.expire_leases(UnixMillis(50), 10), [expired]);
            }
        }
        assert_eq!(harness.state.ack(delivery(message)), Err(Rejection::MessageGone), "{how}");
        assert_eq!(harness.receive(50, 1), [] as [u64; 0], "{how}");
    }
}

#[test]
fn an_expired_backlog_without_consumers_is_deleted_in_batches() {
    let mut harness = Harness::new(&QueueSettings::default());
    let sent: Vec<u64> = (0..5_000).map(|n| harness.send(n % 3, 0, Some(1_000))).collect();
    assert_eq!(
        harness.state.next_due(),
        Some(UnixMillis(1_100)),
        "the timer waits for the batch window of 100 ms"
    );
    let first = harness.expire(1_100);
    // After 5 ms the wait for the prefetch has ended too, so no timer is left.
    assert_eq!(
        (harness.expire(1_105), harness.state.next_due()),
        (Vec::new(), None),
        "no more messages expire before the first batch is deleted"
    );
    harness.confirm(&first);
    let batches: Vec<Vec<u64>> =
        [first].into_iter().chain((0..4).map(|_| harness.remove_expired(1_105))).collect();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1_024, 1_024, 1_024, 1_024, 904]);
    assert_eq!(batches.concat(), sent);
    assert_eq!((harness.state.totals().pending, harness.state.totals().expired), (0, 5_000));
    // Prefetches under way find the messages deleted; they are not reported as missing.
    while let Some(request) = harness.state.poll_prefetch() {
        assert_eq!(harness.state.apply_prefetch(request, Vec::new()), 0);
    }
    let later = harness.send(0, 1_105, None);
    assert_eq!(harness.receive(1_105, 10), [later]);
}

#[test]
fn a_prefetch_from_before_an_expiry_loses_no_later_message() {
    let mut harness = Harness::new(&QueueSettings::default());
    for _ in 0..256 {
        harness.send(0, 0, None);
    }
    let behind = harness.send(0, 0, Some(100));
    assert_eq!(harness.receive(0, 200).len(), 200);
    let request = harness.state.poll_prefetch().unwrap();
    assert_eq!(harness.remove_expired(100), [behind]);
    let later: Vec<u64> = (0..300).map(|_| harness.send(0, 100, None)).collect();
    // The store read after the delete and before the later messages.
    assert_eq!(harness.state.apply_prefetch(request, Vec::new()), 0);
    let mut received = Vec::new();
    for _ in 0..10 {
        received.extend(harness.receive(100, 1_000));
        harness.prefetch();
    }
    // The leases of the first messages have ended, so these are redelivered first.
    assert_eq!(received[256..], later);
}

#[test]
fn a_failed_delete_is_repeated_after_a_second_and_counted_once() {
    let mut harness = Harness::new(&QueueSettings::default());
    let sent = harness.send(0, 0, Some(100));
    assert_eq!(harness.expire(100), [sent]);
    harness.state.revert_removal(Seq(sent));
    assert_eq!((harness.expire(1_099), harness.state.next_due()), (Vec::new(), Some(UnixMillis(1_100))));
    assert_eq!((harness.explain(sent), harness.receive(1_099, 1)), (Explanation::Leaving, Vec::new()));
    assert_eq!((harness.state.totals().expired, harness.state.totals().bytes), (0, 1));
    assert_eq!(harness.remove_expired(1_100), [sent]);
    assert_eq!((harness.state.totals().expired, harness.state.totals().bytes), (1, 0));
    assert_eq!(harness.explain(sent), Explanation::Unknown);
}

#[test]
fn one_receive_expires_no_more_than_a_batch() {
    let mut harness = Harness::new(&QueueSettings::default());
    for n in 0..2_000 {
        harness.send(n % 10, 0, Some(100));
    }
    let receive = |harness: &mut Harness| {
        let LeaseBatch { leased, expired } =
            harness.state.lease_messages(UnixMillis(100), 10, LEASE).unwrap();
        assert!(leased.is_empty());
        expired.iter().map(|(_, meta)| meta.seq.0).collect::<Vec<_>>()
    };
    let first = receive(&mut harness);
    assert_eq!((first.len(), receive(&mut harness).len()), (1_024, 0), "the first batch is not deleted yet");
    harness.confirm(&first);
    assert_eq!(receive(&mut harness).len(), 976);
}

/// Each key is indexed by a message that was removed meanwhile, so the runs find nothing to expire.
#[test]
fn one_timer_run_visits_a_limited_number_of_keys() {
    let mut harness = Harness::new(&MINUTE);
    for key in 0..3_000 {
        harness.send(key, 0, None);
    }
    for leased in harness.state.lease_messages(UnixMillis(0), 3_000, LEASE).unwrap().leased {
        let seq = leased.meta.seq;
        harness.state.ack(DeliveryId { key: leased.key, ..delivery(seq.0) }).unwrap();
        harness.state.confirm_removal(seq);
    }
    for key in 0..3_000 {
        harness.send(key, 50_000, None);
    }
    let mut dues = Vec::new();
    for _ in 0..3 {
        assert_eq!(harness.remove_expired(60_000), [] as [u64; 0]);
        dues.extend(harness.state.next_due());
    }
    assert_eq!(dues, [UnixMillis(60_100), UnixMillis(60_100), UnixMillis(110_100)]);
}

#[test]
fn expired_messages_on_disk_are_removed_from_the_skip_set_without_consumers() {
    for is_asked in [false, true] {
        let mut harness = Harness::new(&QueueSettings::default());
        for _ in 0..256 {
            harness.send(0, 0, None);
        }
        let behind: Vec<u64> = (0..1_000).map(|_| harness.send(0, 0, Some(100))).collect();
        let last: Vec<u64> = (0..300).map(|_| harness.send(0, 0, None)).collect();
        harness.receive(0, if is_asked { 200 } else { 0 });
        // The store reads before the deletes, and the result is applied afterwards.
        let request = harness.state.poll_prefetch().map(|request| (request, harness.find(request)));
        assert_eq!((request.is_some(), harness.remove_expired(100)), (is_asked, behind));
        if let Some((request, found)) = request {
            assert_eq!(harness.state.apply_prefetch(request, found), 0);
        }
        // Deleted messages in the skip set would increase the prefetch.
        harness.receive(100, 200);
        let request = harness.state.poll_prefetch().unwrap();
        assert!(request.count <= 256, "{} are requested", request.count);
        harness.sent.retain(|meta| meta.expires_at.is_none());
        harness.keys.truncate(harness.sent.len());
        let found = harness.find(request);
        assert_eq!(harness.state.apply_prefetch(request, found), 0);
        let mut received = Vec::new();
        for _ in 0..10 {
            received.extend(harness.receive(100, 1_000));
            harness.prefetch();
        }
        assert_eq!(received[received.len() - last.len()..], last);
    }
}

#[test]
fn a_redelivery_is_kept_when_the_store_lost_other_messages() {
    let mut harness = Harness::new(&QueueSettings::default());
    for _ in 0..300 {
        harness.send(0, 0, None);
    }
    let later = harness.send_later(0, 0, Some(1_000), Some(UnixMillis(10)));
    assert_eq!(harness.receive(0, 200).len(), 200);
    let request = harness.state.poll_prefetch().unwrap();
    assert_eq!(harness.remove_expired(10), [] as [u64; 0], "the delay of the last message has ended");
    assert_eq!(harness.state.apply_prefetch(request, Vec::new()), 44);
    assert_eq!(harness.remove_expired(1_000), [later]);
    assert_eq!(harness.state.totals().bytes, 256, "lost messages are still counted");
}

/// The second key reuses the scheduler index of the first; messages lost from the first must not expire there.
#[test]
fn messages_that_the_store_lost_do_not_expire_later() {
    let mut harness = Harness::new(&QueueSettings::default());
    for _ in 0..300 {
        harness.send(0, 0, Some(1_000));
    }
    assert_eq!(harness.receive(0, 256).len(), 256);
    let request = harness.state.poll_prefetch().unwrap();
    assert_eq!(harness.state.apply_prefetch(request, Vec::new()), 44);
    for seq in 1..=256 {
        harness.state.ack(delivery(seq)).unwrap();
        harness.state.confirm_removal(Seq(seq));
    }
    assert_eq!(harness.state.forget_idle(UnixMillis(60_000)), [KeyId(0)]);
    let other = harness.send(1, 60_000, None);
    assert_eq!(harness.remove_expired(60_000), [] as [u64; 0]);
    assert_eq!(harness.receive(60_000, 10), [other]);
}

#[test]
fn retention_applies_without_consumers() {
    let mut harness = Harness::new(&MINUTE);
    for n in 0..1_000 {
        harness.send(n % 2, u64::from(n), None);
    }
    assert_eq!(harness.state.next_due(), Some(UnixMillis(60_100)));
    for (now, left) in [(59_999, 1_000), (60_000, 999), (60_499, 500), (60_999, 0)] {
        // Each round expires at most one prefetch window per key.
        while !harness.remove_expired(now).is_empty() {
            harness.prefetch();
        }
        assert_eq!(harness.state.totals().pending, left, "at {now}");
    }
    assert_eq!((harness.state.next_due(), harness.state.totals().expired), (None, 1_000));
}

#[test]
fn a_shorter_retention_applies_to_waiting_messages() {
    let mut harness = Harness::new(&QueueSettings::default());
    let sent = harness.send(0, 0, None);
    assert_eq!(harness.remove_expired(60_000), [] as [u64; 0]);
    harness.state.set_limits(&MINUTE);
    assert_eq!(harness.state.next_due(), Some(UnixMillis(60_100)));
    assert_eq!(harness.remove_expired(60_000), [sent]);
}

#[test]
fn an_expired_head_unblocks_its_fifo_key() {
    let fifo = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::default() };
    let mut harness = Harness::new(&fifo);
    let first = harness.send(0, 0, Some(100));
    let second = harness.send(0, 0, Some(200));
    let third = harness.send(0, 0, None);
    assert_eq!(harness.receive(0, 1), [first]);
    harness
        .state
        .abandon(UnixMillis(0), delivery(first), AbandonMode::Retry(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(harness.receive(99, 3), [] as [u64; 0], "the first must be redelivered before the others");
    assert_eq!(harness.remove_expired(100), [first]);
    assert_eq!(harness.receive(100, 1), [second]);
    assert_eq!(harness.receive(250, 1), [] as [u64; 0], "the second is in flight");
    // Its lease ended at 200, and so did its TTL.
    assert_eq!(harness.remove_expired(250), [second]);
    assert_eq!(harness.receive(250, 1), [third]);
}

#[test]
fn an_expired_message_is_not_delivered_peeked_or_moved_before_its_delete() {
    let mut harness = Harness::new(&QueueSettings::default());
    let short_lived = harness.send(0, 0, Some(100));
    let kept = harness.send(0, 0, None);
    assert!(matches!(
        harness.explain(short_lived),
        Explanation::Waiting { expires_at: Some(UnixMillis(100)), .. }
    ));
    let text = harness.explain(short_lived).describe(UnixMillis(0)).to_string();
    assert!(text.ends_with("; expires now (00:00:00 UTC)"), "{text}");
    assert_eq!(harness.explain(kept).expires_at(), None);
    harness.state.set_now(UnixMillis(100));
    let peeked: Vec<u64> = harness.state.peek(10).iter().map(|(.., meta)| meta.seq.0).collect();
    assert_eq!(peeked, [kept]);
    assert!(!harness.state.begin_move(KeyId(0), harness.sent[0]));
    let LeaseBatch { leased, expired } = harness.state.lease_messages(UnixMillis(100), 10, LEASE).unwrap();
    assert_eq!(leased.iter().map(|leased| leased.meta.seq.0).collect::<Vec<_>>(), [kept]);
    assert_eq!(expired, [(KeyId(0), harness.sent[0])]);
    assert_eq!(harness.state.expire_leases(UnixMillis(100), 10), [], "the message was expired twice");
    assert_eq!(harness.explain(short_lived), Explanation::Leaving);
    harness.confirm(&[short_lived]);
    assert_eq!(harness.explain(short_lived), Explanation::Unknown);
}

/// A queue state, and the messages that its store would hold.
struct Harness {
    state: QueueState,
    sent: Vec<MessageMeta>,
    keys: Vec<u32>,
}

impl Harness {
    fn new(settings: &QueueSettings) -> Self {
        Self {
            state: QueueState::new(Epoch(1), settings, (1, 2)).unwrap(),
            sent: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Sends a message at time `now`; returns its sequence number.
    fn send(&mut self, key: u32, now: u64, ttl: Option<u64>) -> u64 {
        self.send_later(key, now, ttl, None)
    }

    fn send_later(&mut self, key: u32, now: u64, ttl: Option<u64>, not_before: Option<UnixMillis>) -> u64 {
        let seq = self.sent.len() as u64 + 1;
        let meta = MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(now),
            size: 1,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: ttl.map(|ttl| UnixMillis(now + ttl)),
        };
        self.sent.push(meta);
        self.keys.push(key);
        let name = format!("key{key}").into();
        let payload = Payload { body: "x".into(), ..Payload::default() };
        let message = AppendedMessage { key: KeyId(key), name, weight: None, meta, not_before, payload };
        self.state.append(UnixMillis(now), message).unwrap();
        seq
    }

    fn receive(&mut self, now: u64, max: usize) -> Vec<u64> {
        let received = self.state.lease_messages(UnixMillis(now), max, LEASE).unwrap();
        received.leased.iter().map(|leased| leased.meta.seq.0).collect()
    }

    /// Advances the time and removes expired messages; returns them.
    fn remove_expired(&mut self, now: u64) -> Vec<u64> {
        let expired = self.expire(now);
        self.confirm(&expired);
        expired
    }

    fn confirm(&mut self, seqs: &[u64]) {
        seqs.iter().for_each(|&seq| self.state.confirm_removal(Seq(seq)));
    }

    /// Advances the time; returns the messages to be deleted.
    fn expire(&mut self, now: u64) -> Vec<u64> {
        let ended = self.state.expire_leases(UnixMillis(now), 1_024);
        let expired = ended.into_iter().filter_map(|disposition| match disposition {
            Disposition::Expired { meta, .. } => Some(meta.seq.0),
            Disposition::Requeued(_) | Disposition::DeadLetter { .. } => None,
        });
        expired.collect()
    }

    /// Serves the prefetch requests of the state.
    fn prefetch(&mut self) {
        while let Some(request) = self.state.poll_prefetch() {
            let found = self.find(request);
            self.state.apply_prefetch(request, found);
        }
    }

    fn find(&self, request: PrefetchRequest) -> Vec<(MessageMeta, Payload)> {
        let of_key = self.sent.iter().zip(&self.keys).filter(|(_, key)| **key == request.key.0);
        let after = of_key.map(|(meta, _)| *meta).filter(|meta| request.after < meta.seq);
        after.take(request.count).map(|meta| (meta, Payload::default())).collect()
    }

    fn explain(&self, seq: u64) -> Explanation {
        let id = MessageId { queue: QueueId(1), key: KeyId(0), seq: Seq(seq) };
        self.state.explain(id, QueueId(1))
    }
}

fn delivery(seq: u64) -> DeliveryId {
    DeliveryId { queue: QueueId(1), key: KeyId(0), seq: Seq(seq), epoch: Epoch(1), attempt: 1 }
}
