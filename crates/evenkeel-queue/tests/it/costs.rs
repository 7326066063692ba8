//! Cost by bytes and by time: two keys that differ tenfold get equal shares.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue_state::QueueState;
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::{CostMode, Epoch, KeyId, QueueId, QueueSettings, Seq, UnixMillis};

/// Serves two keys with a backlog by `workers` workers; returns the bytes and milliseconds that each key got.
///
/// `keys` holds, for each key, the size of its messages and the milliseconds one takes.
fn serve(cost_mode: CostMode, keys: [(u32, u64); 2], workers: usize, until_ms: u64) -> [(f64, f64); 2] {
    let settings = QueueSettings { cost_mode, ..QueueSettings::default() };
    let mut state = QueueState::new(Epoch(1), &settings, (1, 2)).unwrap();
    let mut seq = 0;
    let mut got = [(0.0, 0.0); 2];
    let mut send = |state: &mut QueueState, key: usize, now: u64| {
        seq += 1;
        let size = keys[key].0;
        let meta = MessageMeta {
            seq: Seq(seq),
            sent_at: UnixMillis(now),
            size,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: None,
        };
        let name = ["light", "heavy"][key].into();
        let key = KeyId(key as u32);
        let payload = Payload::default();
        state
            .append(
                UnixMillis(now),
                AppendedMessage { key, name, weight: None, meta, not_before: None, payload },
            )
            .unwrap();
    };
    for key in [0, 1] {
        (0..50).for_each(|_| send(&mut state, key, 0));
    }
    // Deliveries by the time at which they finish.
    let mut working: BTreeMap<(u64, Seq), DeliveryId> = BTreeMap::new();
    let mut now = 0;
    while now < until_ms {
        while working.len() < workers {
            let leased =
                state.lease_messages(UnixMillis(now), 1, Duration::from_secs(600)).unwrap().leased.remove(0);
            let key = leased.key;
            let seq = leased.meta.seq;
            let (size, ms) = keys[key.0 as usize];
            let sum = &mut got[key.0 as usize];
            *sum = (sum.0 + f64::from(size), sum.1 + ms as f64);
            send(&mut state, key.0 as usize, now);
            working.insert(
                (now + ms, seq),
                DeliveryId { queue: QueueId(1), key, seq, epoch: Epoch(1), attempt: 1 },
            );
        }
        let ((done, _), delivery) = working.pop_first().unwrap();
        now = done;
        state.set_now(UnixMillis(now));
        state.ack(delivery).unwrap();
        state.confirm_removal(delivery.seq);
    }
    got
}

fn share(got: [f64; 2]) -> f64 {
    100.0 * got[0] / (got[0] + got[1])
}

#[test]
fn keys_whose_messages_differ_tenfold_in_size_share_bytes_equally() {
    let keys = [(1_000, 10), (10_000, 10)];
    let by_count = share(serve(CostMode::Count, keys, 4, 60_000).map(|got| got.0));
    let by_bytes = share(serve(CostMode::Bytes, keys, 4, 60_000).map(|got| got.0));
    println!("bytes of the light key: {by_count:.1} % by count, {by_bytes:.1} % by bytes");
    assert!((8.0..10.0).contains(&by_count) && (49.0..51.0).contains(&by_bytes), "{by_count} {by_bytes}");
}

#[test]
fn keys_whose_messages_differ_tenfold_in_duration_share_time_equally() {
    let keys = [(100, 10), (100, 100)];
    for workers in [1, 4, 16] {
        let by_count = share(serve(CostMode::Count, keys, workers, 120_000).map(|got| got.1));
        let by_time = share(serve(CostMode::Time, keys, workers, 120_000).map(|got| got.1));
        println!(
            "time of the quick key with {workers} workers: {by_count:.1} % by count, {by_time:.1} % by time"
        );
        assert!((8.0..10.0).contains(&by_count) && (48.0..52.0).contains(&by_time), "{by_count} {by_time}");
    }
}
