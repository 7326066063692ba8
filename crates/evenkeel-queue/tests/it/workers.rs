//! The workers that run the actors of queues, and their metrics.

use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};

use evenkeel_actor::ActorSystemConfig;
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Namespace, Queue, QueueSettings, Queues};

use crate::harness::{ack, receive, send};
use crate::recording_store::RecordingStore;

/// Maximum number of looks at the metrics until both workers have counted their messages; they take seconds.
const ATTEMPTS_MAX: u32 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn queues_spread_over_the_configured_workers() {
    const WORKERS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
    let store = RecordingStore::new(Arc::new(MemoryStore::new()));
    let actors = ActorSystemConfig::with_workers(WORKERS);
    let queues = Queues::open_with(store.clone(), 10, actors).await.unwrap();
    let mut held = Vec::new();
    for name in ["a", "b"] {
        let queue = create(&queues, name).await;
        send(&queue, ["key"]).await;
        held.push((queue.clone(), receive(&queue, 1).await));
    }
    // Each queue's actor is in its handler until the other one is, too.
    *store.barrier.lock() = Some(Arc::new(Barrier::new(WORKERS.get())));
    let acks = held.into_iter().map(|(queue, deliveries)| async move { ack(&queue, &deliveries).await });
    for acked in acks.map(tokio::spawn).collect::<Vec<_>>() {
        acked.await.unwrap();
    }
    // A worker counts its messages at the end of a slice.
    let mut attempts = 0;
    while (0..WORKERS.get()).any(|worker| handled(&queues, worker) == 0) {
        attempts += 1;
        assert!(attempts < ATTEMPTS_MAX, "a worker counts no message: {}", metrics(&queues));
        tokio::task::yield_now().await;
    }
    assert!(!metrics(&queues).contains("worker=\"2\""), "{}", metrics(&queues));
}

#[tokio::test]
async fn all_queues_share_the_metrics_of_one_actor_label() {
    let queues = Queues::open(Arc::new(MemoryStore::new()), 10).await.unwrap();
    create(&queues, "first").await;
    let lines = metrics(&queues).lines().count();
    for name in ["second", "third"] {
        create(&queues, name).await;
    }
    let page = metrics(&queues);
    assert!(page.lines().any(|line| line == "actor_alive{actor=\"queue\"} 3"), "{page}");
    assert_eq!(page.lines().count(), lines, "{page}");
}

async fn create(queues: &Queues, name: &str) -> Queue {
    let created = queues.create(Namespace::Shared, name, QueueSettings::default(), String::new()).await;
    created.unwrap().queue()
}

/// Returns the number of messages that a worker has handled.
fn handled(queues: &Queues, worker: usize) -> u64 {
    let series = format!("scheduler_messages_total{{worker=\"{worker}\"}} ");
    let page = metrics(queues);
    page.lines().find_map(|line| line.strip_prefix(&series)).expect(&series).parse().unwrap()
}

fn metrics(queues: &Queues) -> String {
    let mut page = String::new();
    queues.write_actor_metrics(&mut page).unwrap();
    page
}
