//! Messages whose time is over: their own, or that for which their queue keeps any.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, DedupId, MessageMeta, Payload};
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::queue_state::{
    AbandonMode, Disposition, Explanation, LeaseBatch, PrefetchRequest, QueueState,
};
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::store::{Batch, QueueDescriptor, Store};
use evenkeel_queue::time::WallClock;
use evenkeel_queue::{
    DeliveryOrder, Durability, Epoch, KeyId, MessageId, NewMessage, Queue, QueueId, QueueSettings, Queues,
    Rejection, Seq, UnixMillis,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::harness::{Rig, ack, await_some, body, take};

const LEASE: Duration = Duration::from_millis(100);
const MINUTE: QueueSettings = QueueSettings { retention_ms: 60_000, ..QueueSettings::STANDARD };

#[test]
fn what_a_consumer_has_may_be_acknowledged_after_its_time_and_does_not_come_back() {
    let mut desk = Desk::new(&QueueSettings::default());
    let acked = desk.send(0, 0, Some(150));
    let lost = desk.send(0, 0, Some(150));
    let leased = desk.take(100, 10);
    assert_eq!(leased, [acked, lost]);
    assert!(matches!(desk.explain(lost), Explanation::InFlight { expires_at: Some(UnixMillis(150)), .. }));
    assert_eq!(desk.over(160), [] as [u64; 0], "a consumer has both");
    desk.state.ack(delivery(acked)).unwrap();
    desk.state.confirm_removal(Seq(acked));
    assert_eq!(desk.over(200), [lost], "its lease has ended");
    assert_eq!(
        desk.state.abandon(UnixMillis(200), delivery(lost), AbandonMode::Retry(Duration::ZERO)),
        Err(Rejection::MessageGone)
    );
    assert_eq!(desk.take(200, 10), [] as [u64; 0]);
    assert_eq!((desk.state.totals().expired, desk.state.totals().bytes), (1, 0));
}

#[test]
fn what_is_given_back_after_its_time_is_removed_and_is_no_dead_letter() {
    let redrive = Some(RedrivePolicy { to: QueueId(9), attempts_max: 1 });
    for how in ["nack", "bury", "take back"] {
        let mut desk = Desk::new(&QueueSettings { redrive, ..QueueSettings::default() });
        let message = desk.send(0, 0, Some(50));
        desk.take(0, 1);
        let over = Disposition::Expired { key: KeyId(0), meta: desk.sent[0] };
        match how {
            "nack" => {
                assert_eq!(
                    desk.state.abandon(
                        UnixMillis(50),
                        delivery(message),
                        AbandonMode::Retry(Duration::from_secs(9))
                    ),
                    Ok(over)
                );
            }
            "bury" => {
                let given_up = AbandonMode::DeadLetter;
                assert_eq!(desk.state.abandon(UnixMillis(50), delivery(message), given_up), Ok(over));
            }
            _ => {
                desk.state.release(delivery(message)).unwrap();
                assert_eq!(desk.state.expire_leases(UnixMillis(50), 10), [over]);
            }
        }
        assert_eq!(desk.state.ack(delivery(message)), Err(Rejection::MessageGone), "{how}");
        assert_eq!(desk.take(50, 1), [] as [u64; 0], "{how}");
    }
}

#[test]
fn a_backlog_that_nobody_receives_is_removed_a_slice_at_a_time() {
    let mut desk = Desk::new(&QueueSettings::default());
    let sent: Vec<u64> = (0..5_000).map(|n| desk.send(n % 3, 0, Some(1_000))).collect();
    assert_eq!(desk.state.next_due(), Some(UnixMillis(1_100)), "they are looked for together");
    let first = desk.end(1_100);
    // Nor is the store waited for any longer, by then.
    assert_eq!((desk.end(1_105), desk.state.next_due()), (Vec::new(), None), "the first are not gone yet");
    desk.gone(&first);
    let slices: Vec<Vec<u64>> = [first].into_iter().chain((0..4).map(|_| desk.over(1_105))).collect();
    assert_eq!(slices.iter().map(Vec::len).collect::<Vec<_>>(), [1_024, 1_024, 1_024, 1_024, 904]);
    assert_eq!(slices.concat(), sent);
    assert_eq!((desk.state.totals().pending, desk.state.totals().expired), (0, 5_000));
    // What the store is asked for meanwhile is not there any more, and not missed.
    while let Some(ask) = desk.state.poll_prefetch() {
        assert_eq!(desk.state.apply_prefetch(ask, Vec::new()), 0);
    }
    let later = desk.send(0, 1_105, None);
    assert_eq!(desk.take(1_105, 10), [later]);
}

#[test]
fn an_answer_from_before_messages_ended_loses_nothing_that_was_sent_after_them() {
    let mut desk = Desk::new(&QueueSettings::default());
    for _ in 0..256 {
        desk.send(0, 0, None);
    }
    let behind = desk.send(0, 0, Some(100));
    assert_eq!(desk.take(0, 200).len(), 200);
    let asked = desk.state.poll_prefetch().unwrap();
    assert_eq!(desk.over(100), [behind]);
    let later: Vec<u64> = (0..300).map(|_| desk.send(0, 100, None)).collect();
    // The store looked when the one was gone and the others had not come.
    assert_eq!(desk.state.apply_prefetch(asked, Vec::new()), 0);
    let mut taken = Vec::new();
    for _ in 0..10 {
        taken.extend(desk.take(100, 1_000));
        desk.refill();
    }
    // The leases of the first have ended, so they come again.
    assert_eq!(taken[256..], later);
}

#[test]
fn a_removal_that_failed_is_tried_again_a_second_later_and_counted_once() {
    let mut desk = Desk::new(&QueueSettings::default());
    let sent = desk.send(0, 0, Some(100));
    assert_eq!(desk.end(100), [sent]);
    desk.state.revert_removal(Seq(sent));
    assert_eq!((desk.end(1_099), desk.state.next_due()), (Vec::new(), Some(UnixMillis(1_100))));
    assert_eq!((desk.explain(sent), desk.take(1_099, 1)), (Explanation::Leaving, Vec::new()));
    assert_eq!((desk.state.totals().expired, desk.state.totals().bytes), (0, 1));
    assert_eq!(desk.over(1_100), [sent]);
    assert_eq!((desk.state.totals().expired, desk.state.totals().bytes), (1, 0));
    assert_eq!(desk.explain(sent), Explanation::Unknown);
}

#[test]
fn one_take_ends_no_more_than_a_slice() {
    let mut desk = Desk::new(&QueueSettings::default());
    for n in 0..2_000 {
        desk.send(n % 10, 0, Some(100));
    }
    let take = |desk: &mut Desk| {
        let LeaseBatch { leased, expired } = desk.state.lease_messages(UnixMillis(100), 10, LEASE).unwrap();
        assert!(leased.is_empty());
        expired.iter().map(|(_, meta)| meta.seq.0).collect::<Vec<_>>()
    };
    let first = take(&mut desk);
    assert_eq!((first.len(), take(&mut desk).len()), (1_024, 0), "the first are not gone yet");
    desk.gone(&first);
    assert_eq!(take(&mut desk).len(), 976);
}

/// Each key is listed by its first message, which is gone by then.
#[test]
fn one_tick_looks_at_no_more_keys_than_messages() {
    let mut desk = Desk::new(&MINUTE);
    for key in 0..3_000 {
        desk.send(key, 0, None);
    }
    for leased in desk.state.lease_messages(UnixMillis(0), 3_000, LEASE).unwrap().leased {
        let seq = leased.meta.seq;
        desk.state.ack(DeliveryId { key: leased.key, ..delivery(seq.0) }).unwrap();
        desk.state.confirm_removal(seq);
    }
    for key in 0..3_000 {
        desk.send(key, 50_000, None);
    }
    let mut dues = Vec::new();
    for _ in 0..3 {
        assert_eq!(desk.over(60_000), [] as [u64; 0]);
        dues.extend(desk.state.next_due());
    }
    assert_eq!(dues, [UnixMillis(60_100), UnixMillis(60_100), UnixMillis(110_100)]);
}

#[test]
fn what_ended_far_behind_is_forgotten_though_nobody_receives() {
    for is_asked in [false, true] {
        let mut desk = Desk::new(&QueueSettings::default());
        for _ in 0..256 {
            desk.send(0, 0, None);
        }
        let behind: Vec<u64> = (0..1_000).map(|_| desk.send(0, 0, Some(100))).collect();
        let last: Vec<u64> = (0..300).map(|_| desk.send(0, 0, None)).collect();
        desk.take(0, if is_asked { 200 } else { 0 });
        // The store looks before they are gone, and answers after.
        let asked = desk.state.poll_prefetch().map(|ask| (ask, desk.find(ask)));
        assert_eq!((asked.is_some(), desk.over(100)), (is_asked, behind));
        if let Some((ask, found)) = asked {
            assert_eq!(desk.state.apply_prefetch(ask, found), 0);
        }
        // What is remembered as gone is asked for too, to be skipped.
        desk.take(100, 200);
        let ask = desk.state.poll_prefetch().unwrap();
        assert!(ask.count <= 256, "{} are asked for", ask.count);
        desk.sent.retain(|meta| meta.expires_at.is_none());
        desk.keys.truncate(desk.sent.len());
        let found = desk.find(ask);
        assert_eq!(desk.state.apply_prefetch(ask, found), 0);
        let mut taken = Vec::new();
        for _ in 0..10 {
            taken.extend(desk.take(100, 1_000));
            desk.refill();
        }
        assert_eq!(taken[taken.len() - last.len()..], last);
    }
}

#[test]
fn what_came_back_is_not_missed_with_what_the_store_lost() {
    let mut desk = Desk::new(&QueueSettings::default());
    for _ in 0..300 {
        desk.send(0, 0, None);
    }
    let later = desk.send_later(0, 0, Some(1_000), Some(UnixMillis(10)));
    assert_eq!(desk.take(0, 200).len(), 200);
    let asked = desk.state.poll_prefetch().unwrap();
    assert_eq!(desk.over(10), [] as [u64; 0], "the last waits by now");
    assert_eq!(desk.state.apply_prefetch(asked, Vec::new()), 44);
    assert_eq!(desk.over(1_000), [later]);
    assert_eq!(desk.state.totals().bytes, 256, "what is lost is counted");
}

/// A store that lost messages is told of in a log; their times must not be looked for in a key of others.
#[test]
fn messages_that_the_store_lost_do_not_end_later() {
    let mut desk = Desk::new(&QueueSettings::default());
    for _ in 0..300 {
        desk.send(0, 0, Some(1_000));
    }
    assert_eq!(desk.take(0, 256).len(), 256);
    let asked = desk.state.poll_prefetch().unwrap();
    assert_eq!(desk.state.apply_prefetch(asked, Vec::new()), 44);
    for seq in 1..=256 {
        desk.state.ack(delivery(seq)).unwrap();
        desk.state.confirm_removal(Seq(seq));
    }
    assert_eq!(desk.state.forget_idle(UnixMillis(60_000)), [KeyId(0)]);
    let other = desk.send(1, 60_000, None);
    assert_eq!(desk.over(60_000), [] as [u64; 0]);
    assert_eq!(desk.take(60_000, 10), [other]);
}

#[test]
fn a_queue_keeps_nothing_longer_than_it_says_though_nobody_receives() {
    let mut desk = Desk::new(&MINUTE);
    for n in 0..1_000 {
        desk.send(n % 2, u64::from(n), None);
    }
    assert_eq!(desk.state.next_due(), Some(UnixMillis(60_100)));
    for (now, left) in [(59_999, 1_000), (60_000, 999), (60_499, 500), (60_999, 0)] {
        // A window at a time, as the store is asked for more.
        while !desk.over(now).is_empty() {
            desk.refill();
        }
        assert_eq!(desk.state.totals().pending, left, "at {now}");
    }
    assert_eq!((desk.state.next_due(), desk.state.totals().expired), (None, 1_000));
}

#[test]
fn a_shorter_retention_acts_on_what_waits() {
    let mut desk = Desk::new(&QueueSettings::default());
    let sent = desk.send(0, 0, None);
    assert_eq!(desk.over(60_000), [] as [u64; 0]);
    desk.state.set_limits(&MINUTE);
    assert_eq!(desk.state.next_due(), Some(UnixMillis(60_100)));
    assert_eq!(desk.over(60_000), [sent]);
}

#[test]
fn an_expired_head_frees_its_fifo_key() {
    let fifo = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::default() };
    let mut desk = Desk::new(&fifo);
    let first = desk.send(0, 0, Some(100));
    let second = desk.send(0, 0, Some(200));
    let third = desk.send(0, 0, None);
    assert_eq!(desk.take(0, 1), [first]);
    desk.state.abandon(UnixMillis(0), delivery(first), AbandonMode::Retry(Duration::from_secs(60))).unwrap();
    assert_eq!(desk.take(99, 3), [] as [u64; 0], "the first is to come back before the others");
    assert_eq!(desk.over(100), [first]);
    assert_eq!(desk.take(100, 1), [second]);
    assert_eq!(desk.take(250, 1), [] as [u64; 0], "the second is out");
    // Its lease ended at 200, with its time.
    assert_eq!(desk.over(250), [second]);
    assert_eq!(desk.take(250, 1), [third]);
}

#[test]
fn what_is_over_and_not_removed_yet_is_neither_delivered_nor_peeked_nor_moved() {
    let mut desk = Desk::new(&QueueSettings::default());
    let over = desk.send(0, 0, Some(100));
    let lives = desk.send(0, 0, None);
    assert!(matches!(desk.explain(over), Explanation::Waiting { expires_at: Some(UnixMillis(100)), .. }));
    let text = desk.explain(over).describe(UnixMillis(0)).to_string();
    assert!(text.ends_with("; expires now (00:00:00 UTC)"), "{text}");
    assert_eq!(desk.explain(lives).expires_at(), None);
    desk.state.set_now(UnixMillis(100));
    let peeked: Vec<u64> = desk.state.peek(10).iter().map(|(.., meta)| meta.seq.0).collect();
    assert_eq!(peeked, [lives]);
    assert!(!desk.state.begin_move(KeyId(0), desk.sent[0]));
    let LeaseBatch { leased, expired } = desk.state.lease_messages(UnixMillis(100), 10, LEASE).unwrap();
    assert_eq!(leased.iter().map(|leased| leased.meta.seq.0).collect::<Vec<_>>(), [lives]);
    assert_eq!(expired, [(KeyId(0), desk.sent[0])]);
    assert_eq!(desk.state.expire_leases(UnixMillis(100), 10), [], "it was removed twice");
    assert_eq!(desk.explain(over), Explanation::Leaving);
    desk.gone(&[over]);
    assert_eq!(desk.explain(over), Explanation::Unknown);
}

#[tokio::test]
async fn what_a_store_did_not_remove_is_removed_later() {
    for (rig, store) in Rig::both_watched().await {
        let queue = rig.queue(QueueSettings::default()).await;
        store.hold();
        let message = NewMessage { ttl: Some(Duration::from_millis(1)), ..NewMessage::new("x") };
        let ids = queue.enqueue(vec![message]).await.unwrap();
        until(async || store.holds() == 1).await;
        assert_eq!(queue.totals().expired, 0, "it is in the store");
        assert_eq!(queue.explain(ids[0]).await, Ok(Explanation::Leaving));
        store.let_go();
        until(async || queue.totals().expired == 1).await;
        let left: u64 = store.keys(queue.id(), Seq(u64::MAX)).unwrap().iter().map(|kept| kept.count).sum();
        assert_eq!((left, queue.totals().bytes), (0, 0));
    }
}

#[tokio::test]
async fn messages_with_a_time_to_live_are_counted_while_they_wait() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let message = |ttl, delay| NewMessage { ttl, delay, ..NewMessage::new("x") };
        let ttl = Some(Duration::from_secs(3_600));
        let delay = Some(Duration::from_secs(60));
        let messages = vec![message(None, None), message(ttl, None), message(ttl, delay), message(ttl, None)];
        queue.enqueue(messages).await.unwrap();
        until(async || queue.totals().with_ttl == 3).await;
        let taken = take(&queue, 2).await;
        until(async || queue.totals().with_ttl == 2).await;
        ack(&queue, &taken).await;
        queue.purge().await.unwrap();
        until(async || queue.totals().with_ttl == 0).await;
    }
}

#[tokio::test]
async fn a_time_to_live_that_cannot_be_kept_is_refused_in_words() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings { delay_ms: 500, ..MINUTE }).await;
    let send = |ttl: u64, delay: Option<u64>| {
        let delay = delay.map(Duration::from_millis);
        queue.enqueue(vec![NewMessage {
            ttl: Some(Duration::from_millis(ttl)),
            delay,
            ..NewMessage::new("x")
        }])
    };
    let refusal = |min| Err(Rejection::BadTtl { min, max: 60_000 });
    for (ttl, delay, min) in [(0, Some(0), 1), (60_001, Some(0), 1), (500, None, 501), (20, Some(20), 21)] {
        assert_eq!(send(ttl, delay).await, refusal(min));
    }
    assert_eq!(queue.totals().pending, 0);
    assert_eq!(
        Rejection::BadTtl { min: 1, max: 60_000 }.to_string(),
        "ttl is not between 1 ms, past its delay, and 60000 ms, the queue's retention"
    );
    send(60_000, Some(0)).await.unwrap();
    send(501, None).await.unwrap();
}

#[tokio::test]
async fn a_message_that_expires_in_line_is_not_delivered_and_its_name_still_counts() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let named = |ttl| NewMessage { ttl, dedup: Some(DedupId::new("", "once")), ..NewMessage::new("x") };
        let first = queue.enqueue(vec![named(Some(Duration::from_millis(1)))]).await.unwrap();
        until(async || queue.totals().expired == 1).await;
        assert_eq!(queue.totals().pending, 0);
        assert_eq!(queue.explain(first[0]).await, Ok(Explanation::Unknown));
        assert_eq!(queue.enqueue(vec![named(None)]).await.unwrap(), first, "it was sent a second time");
        assert!(take(&queue, 1).await.is_empty());
    }
}

#[tokio::test]
async fn what_was_over_at_a_start_is_removed_from_disk_and_not_delivered() {
    let folder = TempDir::new().unwrap();
    let now = WallClock::start().now();
    let stale = MINUTE.retention_ms + 1_000;
    let store = open(&folder);
    let queue = put_queue(&*store, MINUTE).await;
    // More than a window of each, among messages that live.
    for n in 0..400 {
        let ttl = |ms| Some(Duration::from_millis(ms));
        append(
            &*store,
            queue,
            UnixMillis(now.0 - 10_000),
            vec![
                NewMessage { ttl: ttl(5_000), ..NewMessage::new("its own time is over").for_key("own") },
                NewMessage { ttl: ttl(50_000), ..NewMessage::new(format!("lives-{n}")).for_key("own") },
            ],
        )
        .await;
        append(
            &*store,
            queue,
            UnixMillis(now.0 - stale),
            vec![NewMessage::new("kept too long").for_key("old")],
        )
        .await;
    }
    drop(store);
    let queues = Queues::open(open(&folder), 10).await.unwrap();
    let jobs = queues.get("jobs").unwrap();
    until(async || jobs.totals().expired == 800).await;
    assert_eq!(jobs.totals().pending, 400);
    let first = MessageId { queue, key: KeyId(0), seq: Seq(2) };
    until(async || jobs.explain(first).await.unwrap().expires_at() == Some(UnixMillis(now.0 + 40_000))).await;
    let mut delivered = Vec::new();
    while delivered.len() < 400 {
        let some = await_some(&jobs, 100).await;
        delivered.extend(some.iter().map(body));
        ack(&jobs, &some).await;
    }
    assert_eq!(delivered, (0..400).map(|n| format!("lives-{n}")).collect::<Vec<_>>());
    queues.shutdown().await;
    let store = open(&folder);
    let left: u64 = store.keys(queue, Seq(u64::MAX)).unwrap().iter().map(|kept| kept.count).sum();
    assert_eq!(left, 0, "messages are left on disk");
}

#[tokio::test]
async fn a_dead_letter_keeps_its_time_and_is_not_redriven_after_it() {
    let folder = TempDir::new().unwrap();
    for store in [Arc::new(MemoryStore::new()) as Arc<dyn Store>, open(&folder)] {
        let queues = Queues::open(store, 10).await.unwrap();
        let create =
            async |name: &str, settings| queues.create(name, settings, String::new()).await.unwrap().queue();
        let dead = create("dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let jobs = create("jobs", QueueSettings { redrive, ..QueueSettings::default() }).await;
        let message = |ms| NewMessage { ttl: Some(Duration::from_millis(ms)), ..NewMessage::new("x") };
        let ids = jobs.enqueue(vec![message(3_600_000)]).await.unwrap();
        let until_then = jobs.explain(ids[0]).await.unwrap().expires_at();
        assert!(until_then.is_some());
        nack_all(&jobs).await;
        until(async || dead.totals().pending == 1).await;
        assert_eq!(dead.explain(ids[0]).await.unwrap().expires_at(), until_then);
        // Another is over while it is a dead letter, or before.
        jobs.enqueue(vec![message(40)]).await.unwrap();
        nack_all(&jobs).await;
        until(async || dead.totals().expired + jobs.totals().expired == 1).await;
        let moved = dead.move_some(Default::default(), None, 10).await.unwrap();
        assert_eq!((moved.moved, moved.next), (1, None));
        assert_eq!(await_some(&jobs, 10).await.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids);
    }
}

/// Gives back whatever is there, for good.
async fn nack_all(queue: &Queue) {
    let want = ReceiveOptions { max: 10, lease: None, wait: Duration::from_millis(50) };
    for delivery in queue.receive(want).await.unwrap() {
        drop(queue.nack(&[(delivery.receipt, Some(Duration::ZERO))]).await);
    }
}

fn open(folder: &TempDir) -> Arc<dyn Store> {
    Arc::new(DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap())
}

async fn put_queue(store: &dyn Store, settings: QueueSettings) -> QueueId {
    let record = QueueDescriptor {
        name: "jobs".into(),
        settings,
        created_at: 0,
        changed_at: 0,
        metadata: String::new(),
    };
    let (done, made) = oneshot::channel();
    store.put_queue(None, record, Box::new(move |id| drop(done.send(id))));
    made.await.unwrap().unwrap()
}

/// Has messages written down as sent at another time than now.
async fn append(store: &dyn Store, queue: QueueId, sent_at: UnixMillis, messages: Vec<NewMessage>) {
    let batch = Batch { queue, messages, sent_at, delay_ms: 0, durability: Durability::Os };
    let (done, written) = oneshot::channel();
    store.append(batch, Box::new(move |sent| drop(done.send(sent))));
    written.await.unwrap().unwrap();
}

/// Waits until something is so, for a minute at most.
async fn until(is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it came to nothing");
}

/// A state, and what its store would hold.
struct Desk {
    state: QueueState,
    sent: Vec<MessageMeta>,
    keys: Vec<u32>,
}

impl Desk {
    fn new(settings: &QueueSettings) -> Self {
        Self {
            state: QueueState::new(Epoch(1), settings, (1, 2)).unwrap(),
            sent: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Sends a message at some time, and names it.
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

    fn take(&mut self, now: u64, max: usize) -> Vec<u64> {
        let taken = self.state.lease_messages(UnixMillis(now), max, LEASE).unwrap();
        taken.leased.iter().map(|leased| leased.meta.seq.0).collect()
    }

    /// Lets time pass, has what is over be gone, and names it.
    fn over(&mut self, now: u64) -> Vec<u64> {
        let over = self.end(now);
        self.gone(&over);
        over
    }

    fn gone(&mut self, which: &[u64]) {
        which.iter().for_each(|&seq| self.state.confirm_removal(Seq(seq)));
    }

    /// Lets time pass, and names what is to be removed.
    fn end(&mut self, now: u64) -> Vec<u64> {
        let ended = self.state.expire_leases(UnixMillis(now), 1_024);
        let over = ended.into_iter().filter_map(|how| match how {
            Disposition::Expired { meta, .. } => Some(meta.seq.0),
            Disposition::Requeued(_) | Disposition::DeadLetter { .. } => None,
        });
        over.collect()
    }

    /// Answers what the state asks its store for.
    fn refill(&mut self) {
        while let Some(ask) = self.state.poll_prefetch() {
            let found = self.find(ask);
            self.state.apply_prefetch(ask, found);
        }
    }

    fn find(&self, ask: PrefetchRequest) -> Vec<(MessageMeta, Payload)> {
        let of_key = self.sent.iter().zip(&self.keys).filter(|(_, key)| **key == ask.key.0);
        let after = of_key.map(|(meta, _)| *meta).filter(|meta| ask.after < meta.seq);
        after.take(ask.count).map(|meta| (meta, Payload::default())).collect()
    }

    fn explain(&self, seq: u64) -> Explanation {
        let id = MessageId { queue: QueueId(1), key: KeyId(0), seq: Seq(seq) };
        self.state.explain(id, QueueId(1))
    }
}

fn delivery(seq: u64) -> DeliveryId {
    DeliveryId { queue: QueueId(1), key: KeyId(0), seq: Seq(seq), epoch: Epoch(1), attempt: 1 }
}
