//! Awaiting a future: its output is handled as a message, and no message is lost or reordered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_actor::guardian::SupervisionDirective;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn the_output_is_handled_before_messages_queued_meanwhile() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(harness.wait_until_ms(10, 1));
        actor.tell(record(2));
        harness.advance_ms(5);
        actor.tell(record(3));
        harness.advance_ms(4);
        assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended));
        assert_eq!(actor.depth(), 2);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_ready_future_does_not_delay_later_messages() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| Ok(Flow::wait(async { record(1) }))));
        actor.tell(record(2));
        assert_eq!((harness.lines(), harness.now_ms()), (vec!["a 1".to_owned(), "a 2".to_owned()], 0));
    });
}

#[test]
fn the_handler_of_an_output_may_await_another_future() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(countdown(harness.runtime.handle(), 100));
        actor.tell(record(0));
        harness.advance_ms(99);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a counted down", "a 0"]);
    });
}

#[test]
fn a_thousand_ready_futures_do_not_starve_other_actors() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let other = harness.recorder("b");
        let handle = harness.runtime.handle();
        let to = other.clone();
        actor.tell(act(move |_, _| Ok(ready_chain(handle, to, 1_000))));
        assert_eq!(
            harness.lines(),
            ["b 1", "a done"],
            "each future takes 10 µs, and a slice ends after 200 µs"
        );
    });
}

#[test]
fn system_messages_are_handled_while_a_future_is_pending() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let other = harness.recorder("b");
        let watched = other.clone();
        actor.tell(run(move |_, ctx| {
            ctx.watch(&watched);
            ctx.set_timer(TimerId(1), 5 * MS, Repeat::Every(5 * MS));
        }));
        actor.tell(harness.wait_until_ms(12, 1));
        harness.run();
        other.stop(StopMode::Now);
        harness.advance_ms(12);
        assert_eq!(harness.lines(), ["a terminated: stopped", "a timer 1", "a timer 1", "a 1"]);
    });
}

#[test]
fn a_stop_drops_the_future() {
    explore(|harness| {
        let dropped = Arc::new(AtomicU32::new(0));
        let actor = harness.recorder("a");
        actor.tell(wait_forever(&dropped));
        actor.tell(record(1));
        harness.run();
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        actor.stop(StopMode::Now);
        harness.run();
        assert_eq!((dropped.load(Ordering::Relaxed), actor.state()), (1, ActorState::Stopped));
        assert_eq!(harness.dead_letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn a_drained_stop_waits_for_the_future_and_handles_its_output() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(harness.wait_until_ms(10, 1));
        actor.tell(record(2));
        harness.run();
        actor.stop(StopMode::Drained);
        harness.advance_ms(9);
        assert_eq!(actor.state(), ActorState::Stopping);
        harness.advance_ms(1);
        assert_eq!((harness.lines(), actor.state()), (vec!["a 1".into(), "a 2".into()], ActorState::Stopped));
        assert_eq!(harness.dead_letters(), []);
    });
}

#[test]
fn a_restart_drops_the_future_and_keeps_queued_messages() {
    explore(|harness| {
        let dropped = Arc::new(AtomicU32::new(0));
        let parent = harness.recorder("parent");
        let child = spawn_child(harness, &parent, harness.puppet("a").log_hooks());
        child.tell(wait_forever(&dropped));
        child.tell(record(1));
        let index = child.index();
        parent.tell(run(move |_, ctx| ctx.command(index, guardian::SupervisionCommand::Restart)));
        let lines = harness.lines();
        assert_eq!(
            lines[1..],
            ["a1 restarting: restarted by its supervisor", "a1 dropped", "a2 started", "a 1"]
        );
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_receive_timeout_is_paused_while_a_future_is_pending() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(run(|_, ctx| ctx.set_receive_timeout(Some(20 * MS))));
        actor.tell(harness.wait_until_ms(100, 1));
        harness.advance_ms(99);
        assert_eq!(harness.lines(), [""; 0]);
        harness.advance_ms(20);
        assert_eq!(harness.lines(), ["a 1"], "the output of the future resets the receive timeout");
        harness.advance_ms(3);
        assert_eq!(harness.lines(), ["a receive timeout"]);
    });
}

#[test]
fn a_panic_in_the_future_fails_the_actor_and_the_next_message_is_handled() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.spawn(harness.puppet("a").log_hooks());
        let sleep = runtime::RuntimeHandle::sleep_until(&harness.runtime.handle(), at_ms(10));
        actor.tell(act(|_, _| {
            Ok(Flow::wait(async {
                sleep.await;
                panic!("in the future")
            }))
        }));
        actor.tell(record(2));
        harness.advance_ms(10);
        let expected = [
            "a1 started",
            "a1 restarting: the handler panicked: in the future",
            "a1 dropped",
            "a2 started",
            "a 2",
        ];
        assert_eq!(harness.lines(), expected);
    });
}

#[test]
fn an_actor_can_be_resumed_after_a_panic_in_its_future() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let actor = harness.recorder("a");
        let sleep = runtime::RuntimeHandle::sleep_until(&harness.runtime.handle(), at_ms(10));
        actor.tell(act(|_, _| {
            Ok(Flow::wait(async {
                sleep.await;
                panic!("in the future")
            }))
        }));
        actor.tell(run(|me, _| me.record(me.incarnation)));
        harness.advance_ms(10);
        assert_eq!((harness.lines(), actor.state()), (vec!["a 1".to_owned()], ActorState::Running));
    });
}

#[test]
fn a_failure_in_a_signal_handler_that_is_resumed_does_not_end_the_wait() {
    explore_with(supervised(decided_by(|_| SupervisionDirective::Resume)), |harness| {
        let broken = |_: &Signal, _: &mut Context<'_, Puppet>| Err(ActorError::new("broken"));
        let actor = harness.spawn(harness.puppet("a").signal(broken));
        actor.tell(run(|_, ctx| ctx.set_timer(TimerId(1), 5 * MS, Repeat::Once)));
        actor.tell(harness.wait_until_ms(10, 1));
        actor.tell(record(2));
        harness.advance_ms(9);
        assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended));
        harness.advance_ms(1);
        assert_eq!(harness.lines(), ["a 1", "a 2"]);
    });
}

#[test]
fn a_future_that_panics_on_drop_does_not_affect_others() {
    explore(|harness| {
        let watcher = harness.recorder("w");
        let actor = harness.recorder("a");
        let watched = actor.clone();
        watcher.tell(run(move |_, ctx| ctx.watch(&watched)));
        actor.tell(act(|_, _| {
            let panics = PanicOnDrop;
            Ok(Flow::wait(async move {
                std::future::pending::<()>().await;
                drop(panics);
                record(1)
            }))
        }));
        harness.run();
        actor.stop(StopMode::Now);
        watcher.tell(record(1));
        let mut lines = harness.lines();
        lines.sort();
        assert_eq!(lines, ["w 1", "w terminated: stopped"]);
    });
}

#[test]
fn a_future_woken_while_it_is_polled_is_polled_again() {
    explore(|harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| {
            let mut polls = 0;
            Ok(Flow::wait(std::future::poll_fn(move |cx| {
                polls += 1;
                if polls == 50 {
                    return std::task::Poll::Ready(record(50));
                }
                cx.waker().wake_by_ref();
                std::task::Poll::Pending
            })))
        }));
        assert_eq!(harness.lines(), ["a 50"]);
    });
}

#[test]
fn a_waker_that_outlives_its_wait_wakes_nothing_else() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let (sender, receiver) = std::sync::mpsc::channel();
        actor.tell(act(move |_, _| {
            let mut first = true;
            Ok(Flow::wait(std::future::poll_fn(move |cx| {
                sender.send(cx.waker().clone()).unwrap();
                if std::mem::take(&mut first) {
                    return std::task::Poll::Pending;
                }
                std::task::Poll::Ready(record(1))
            })))
        }));
        harness.run();
        let waker = receiver.recv().unwrap();
        waker.wake_by_ref();
        assert_eq!(harness.lines(), ["a 1"]);
        actor.tell(suspend_until(1));
        actor.tell(record(2));
        harness.run();
        waker.wake_by_ref();
        assert_eq!((harness.lines(), actor.state()), (vec![], ActorState::Suspended));
        actor.stop(StopMode::Now);
        harness.run();
        waker.wake();
        harness.run();
    });
}

/// Waits one millisecond `left` times, in separate futures.
fn countdown(handle: runtime::test::TestHandle, left: u32) -> Msg {
    act(move |me, _| {
        if left == 0 {
            me.record("counted down");
            return Ok(Flow::Continue);
        }
        Ok(Flow::wait(async move {
            let now = runtime::RuntimeHandle::now(&handle);
            runtime::RuntimeHandle::sleep_until(&handle, now + MS).await;
            countdown(handle, left - 1)
        }))
    })
}

/// Awaits `left` ready futures in a row; the first one sends a message to another actor.
fn ready_chain(handle: runtime::test::TestHandle, other: ActorRef<Msg>, left: u32) -> Flow<Msg> {
    Flow::wait(async move {
        if left == 1_000 {
            other.tell(record(1));
        }
        handle.elapse(MS / 100);
        act(move |me, _| match left {
            0 => {
                me.record("done");
                Ok(Flow::Continue)
            }
            _ => Ok(ready_chain(handle, other, left - 1)),
        })
    })
}

fn wait_forever(dropped: &Arc<AtomicU32>) -> Msg {
    let counter = DropCounter(dropped.clone());
    act(move |_, _| {
        Ok(Flow::wait(async move {
            std::future::pending::<()>().await;
            drop(counter);
            record(0)
        }))
    })
}

struct DropCounter(Arc<AtomicU32>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("dropped")
    }
}
