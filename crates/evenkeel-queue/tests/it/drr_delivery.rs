//! The seed's acceptance criteria and its integration tests 5.1 to 5.3, by name, through the real engine.

use evenkeel_policy::weight::Weight;
use evenkeel_queue::QueueSettings;

use crate::rig::{Rig, ack, await_some, keys, send, take};

/// Test 5.1, AC 7: three keys of equal weight get a third each.
#[tokio::test]
async fn three_equal_keys_are_delivered_a_third_each() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let all: Vec<&str> = ["a", "b", "c"].iter().flat_map(|key| [*key; 300]).collect();
        send(&queue, all).await;
        let mut first = Vec::new();
        while first.len() < 300 {
            first.extend(await_some(&queue, 10).await);
        }
        for key in ["a", "b", "c"] {
            let count = keys(&first).iter().filter(|other| *other == key).count();
            assert!((99..=101).contains(&count), "{key} got {count} of 300");
        }
        let rest = take_all(&queue).await;
        assert_eq!(first.len() + rest, 900);
    }
}

/// Test 5.2: one key gets everything, in order.
#[tokio::test]
async fn a_single_key_delivers_all_messages() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["default"; 1_000]).await;
        let mut next = 0;
        while next < 1_000 {
            for delivery in await_some(&queue, 100).await {
                assert_eq!(crate::rig::body(&delivery), format!("default-{next}"));
                next += 1;
            }
        }
        assert!(take(&queue, 1).await.is_empty());
    }
}

/// Test 5.3, AC 3 and 4: a key without messages leaves the turns, the others go on.
#[tokio::test]
async fn an_exhausted_key_leaves_and_the_others_go_on() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["short", "short", "long", "long", "long", "long", "long", "long"]).await;
        let first = take(&queue, 4).await;
        assert_eq!(keys(&first).iter().filter(|key| *key == "short").count(), 2);
        let rest = take(&queue, 10).await;
        assert_eq!(keys(&rest), ["long"; 4]);
        ack(&queue, &first).await;
        ack(&queue, &rest).await;
        assert_eq!(queue.totals().pending, 0);
    }
}

/// AC 1 and 2: within a round a key gets its weight times the quantum, then it is the next one's turn.
#[tokio::test]
async fn a_key_is_served_its_weight_in_messages_per_round() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        queue.set_weight("heavy", Some(Weight::whole(3).unwrap())).await.unwrap();
        let all: Vec<&str> = ["heavy", "light"].iter().flat_map(|key| [*key; 400]).collect();
        send(&queue, all).await;
        let mut taken = Vec::new();
        while taken.len() < 400 {
            taken.extend(keys(&await_some(&queue, 10).await));
        }
        let heavy = taken.iter().filter(|key| *key == "heavy").count();
        assert!((297..=303).contains(&heavy), "heavy got {heavy} of 400 at weight 3 of 4");
    }
}

/// AC 5: a key whose messages were all delivered takes part again when new ones come.
#[tokio::test]
async fn a_key_comes_back_with_new_messages() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        ack(&queue, &take(&queue, 10).await).await;
        assert!(take(&queue, 1).await.is_empty());
        send(&queue, ["a", "b"]).await;
        let mut taken = keys(&take(&queue, 10).await);
        taken.sort();
        assert_eq!(taken, ["a", "b"]);
    }
}

async fn take_all(queue: &evenkeel_queue::Queue) -> usize {
    let mut count = 0;
    while queue.totals().pending > 0 {
        count += await_some(queue, 100).await.len();
    }
    count
}
