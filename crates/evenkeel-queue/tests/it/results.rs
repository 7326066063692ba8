//! Results of jobs, abandoned deliveries, and job status.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_queue::job_result::{JobResult, ResultHead, ResultState};
use evenkeel_queue::job_status::JobStatus;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Namespace, NewMessage, QueueSettings, Rejection, UnixMillis};

use crate::harness::{Rig, receive, receive_now, send};

/// Maximum number of results; only the test of expiry stores more.
const MANY: usize = 100;

fn result(body: impl Into<Bytes>) -> JobResult {
    let head = ResultHead {
        state: ResultState::Done,
        status: 200,
        content_type: None,
        attempt: 1,
        finished_at_ms: 5,
        reader: Namespace::Shared,
    };
    JobResult { head, body: body.into() }
}

#[tokio::test]
async fn a_result_outlives_its_message_and_a_restart_until_it_expires() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let ids = queue.enqueue(vec![NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
    queue.put_result(ids[0], &result("first"), Duration::from_hours(1), MANY).await.unwrap();
    queue.put_result(ids[0], &result("last"), Duration::from_hours(1), MANY).await.unwrap();
    queue.purge().await.unwrap();
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    let (kept, expires_at) = queue.result(ids[0]).await.unwrap().unwrap();
    assert_eq!(kept, result("last"));
    assert!(queue.now() < expires_at);
    assert_eq!(queue.result(ids[1]).await.unwrap(), None);
}

#[tokio::test]
async fn a_result_is_not_found_in_a_queue_of_another_owner() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let id = queue.enqueue(vec![NewMessage::new("a")]).await.unwrap()[0];
        let owner = Namespace::Account("123456789012".parse().unwrap());
        let other =
            rig.queues.create(owner, "jobs", QueueSettings::default(), String::new()).await.unwrap().queue();
        queue.put_result(id, &result("x"), Duration::from_hours(1), MANY).await.unwrap();
        assert!(queue.result(id).await.unwrap().is_some());
        assert_eq!(other.result(id).await, Ok(None));
    }
}

#[tokio::test]
async fn a_result_is_stored_for_a_message_whose_queue_was_deleted() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let id = queue.enqueue(vec![NewMessage::new("a")]).await.unwrap()[0];
        let other = rig
            .queues
            .create(Namespace::Shared, "other", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        rig.queues.remove(queue.id()).await.unwrap();
        other.put_result(id, &result("moved"), Duration::from_hours(1), MANY).await.unwrap();
        assert_eq!(other.result(id).await.unwrap().unwrap().0, result("moved"));
    }
}

#[tokio::test]
async fn expired_results_are_hidden_and_deleted_and_replaced_ones_stay() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let messages = (0..1_500).map(|n| NewMessage::new(n.to_string())).collect();
        let ids = queue.enqueue(messages).await.unwrap();
        for id in &ids {
            queue.put_result(*id, &result("x"), Duration::ZERO, MANY).await.unwrap();
        }
        assert_eq!(queue.result(ids[0]).await.unwrap(), None, "a result was returned after its TTL");
        queue.put_result(ids[7], &result("anew"), Duration::from_hours(1), MANY).await.unwrap();
        for _ in 0..2 {
            rig.queues.expire_results().await.unwrap();
        }
        assert_eq!(queue.result(ids[7]).await.unwrap().unwrap().0, result("anew"));
        // Each run finds the results that were stored after the previous run.
        queue.put_result(ids[8], &result("x"), Duration::ZERO, MANY).await.unwrap();
        rig.queues.expire_results().await.unwrap();
        assert_eq!(queue.result(ids[8]).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_queue_over_its_limit_evicts_the_results_that_expire_first() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let ids = queue.enqueue((0..5).map(|n| NewMessage::new(n.to_string())).collect()).await.unwrap();
        // The result that was just stored is not evicted, although it expires first.
        for (id, hours) in ids.iter().zip([2, 1, 4, 5, 1]) {
            queue.put_result(*id, &result("x"), Duration::from_hours(hours), 2).await.unwrap();
        }
        let mut kept = Vec::new();
        for id in &ids {
            kept.push(queue.result(*id).await.unwrap().is_some());
        }
        assert_eq!(kept, [false, false, false, true, true]);
    }
}

#[tokio::test]
async fn a_deferred_delivery_counts_no_attempt_and_is_redelivered() {
    for rig in Rig::both().await {
        let dead = rig
            .queues
            .create(Namespace::Shared, "dead", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let queue = rig.queue(QueueSettings { redrive, ..QueueSettings::default() }).await;
        send(&queue, ["a"]).await;
        for _ in 0..3 {
            let received = receive(&queue, 1).await;
            assert_eq!(received[0].attempt, 1);
            let deferred = queue.defer(&[(received[0].receipt.clone(), Duration::from_millis(1))]).await;
            assert_eq!(deferred, [Ok(())]);
        }
        assert_eq!(dead.totals().pending, 0);
    }
}

#[tokio::test]
async fn a_dead_lettered_delivery_moves_at_once() {
    for rig in Rig::both().await {
        let dead = rig
            .queues
            .create(Namespace::Shared, "dead", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1_000 });
        let queue = rig.queue(QueueSettings { redrive, ..QueueSettings::default() }).await;
        send(&queue, ["a"]).await;
        let received = receive_now(&queue, 1).await;
        let receipt = received[0].receipt.clone();
        assert_eq!(queue.dead_letter(core::slice::from_ref(&receipt)).await, [Ok(())]);
        assert_eq!(receive(&dead, 1).await[0].from, Some(queue.id()));
        // The dead-letter queue may deliver the message before its source has confirmed the move.
        let mut again = queue.dead_letter(core::slice::from_ref(&receipt)).await;
        while again == [Err(Rejection::Busy)] {
            again = queue.dead_letter(core::slice::from_ref(&receipt)).await;
        }
        assert_eq!(again, [Err(Rejection::MessageGone)]);
    }
}

#[tokio::test]
async fn the_job_status_table_evicts_its_oldest_entry() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let ids = queue.enqueue((0..10_001).map(|n| NewMessage::new(n.to_string())).collect()).await.unwrap();
    for id in &ids {
        queue.record_job(*id, Namespace::Shared, JobStatus::Admitted { attempt: 1, since: UnixMillis(7) });
    }
    assert_eq!(queue.job_status(ids[0], |_| true), None);
    let text = queue.job_status(ids[10_000], |_| true).unwrap().to_string();
    assert_eq!(text, "attempt 1: waiting for a free slot since 1970-01-01 00:00:00 UTC");
    queue.forget_job(ids[10_000]);
    assert_eq!(queue.job_status(ids[10_000], |_| true), None);
}

#[tokio::test]
async fn subscribers_are_notified_when_queues_change() {
    let rig = Rig::memory().await;
    let mut changes = rig.queues.changes();
    let queue = rig.queue(QueueSettings::default()).await;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    rig.queues.change(&queue, QueueSettings::default(), String::new()).await.unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    rig.queues.remove(queue.id()).await.unwrap();
    assert!(changes.has_changed().unwrap());
}
