//! `Await`: a future's output comes back as a message, and nothing is lost or reordered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_actor::guardian::SupervisionDirective;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn the_output_is_handled_before_messages_queued_meanwhile() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(world.wait_until_ms(10, 1));
        actor.tell(note(2));
        world.pass(5);
        actor.tell(note(3));
        world.pass(4);
        assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended));
        assert_eq!(actor.depth(), 2);
        world.pass(1);
        assert_eq!(world.lines(), ["a 1", "a 2", "a 3"]);
    });
}

#[test]
fn a_ready_future_delays_nothing() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(act(|_, _| Ok(Flow::wait(async { note(1) }))));
        actor.tell(note(2));
        assert_eq!((world.lines(), world.now_ms()), (vec!["a 1".to_owned(), "a 2".to_owned()], 0));
    });
}

#[test]
fn a_wait_may_start_another_wait() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(countdown(world.runtime.handle(), 100));
        actor.tell(note(0));
        world.pass(99);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(1);
        assert_eq!(world.lines(), ["a counted down", "a 0"]);
    });
}

#[test]
fn a_thousand_ready_futures_do_not_starve_other_actors() {
    explore(|world| {
        let actor = world.noter("a");
        let other = world.noter("b");
        let handle = world.runtime.handle();
        let to = other.clone();
        actor.tell(act(move |_, _| Ok(ready_chain(handle, to, 1_000))));
        assert_eq!(world.lines(), ["b 1", "a done"], "each takes 10 µs, a slice 200");
    });
}

#[test]
fn system_messages_are_handled_while_a_future_is_pending() {
    explore(|world| {
        let actor = world.noter("a");
        let other = world.noter("b");
        let watched = other.clone();
        actor.tell(go(move |_, ctx| {
            ctx.watch(&watched);
            ctx.set_timer(TimerId(1), 5 * MS, Repeat::Every(5 * MS));
        }));
        actor.tell(world.wait_until_ms(12, 1));
        world.run();
        other.stop(StopMode::Now);
        world.pass(12);
        assert_eq!(world.lines(), ["a hears end: stopped", "a hears timer 1", "a hears timer 1", "a 1"]);
    });
}

#[test]
fn a_stop_drops_the_future() {
    explore(|world| {
        let dropped = Arc::new(AtomicU32::new(0));
        let actor = world.noter("a");
        actor.tell(wait_for_ever(&dropped));
        actor.tell(note(1));
        world.run();
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        actor.stop(StopMode::Now);
        world.run();
        assert_eq!((dropped.load(Ordering::Relaxed), actor.state()), (1, ActorState::Stopped));
        assert_eq!(world.letters(), [(dead_letters::DeadLetterReason::Stopped, 1)]);
    });
}

#[test]
fn a_drained_stop_waits_for_the_future_and_handles_its_output() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(world.wait_until_ms(10, 1));
        actor.tell(note(2));
        world.run();
        actor.stop(StopMode::Drained);
        world.pass(9);
        assert_eq!(actor.state(), ActorState::Stopping);
        world.pass(1);
        assert_eq!((world.lines(), actor.state()), (vec!["a 1".into(), "a 2".into()], ActorState::Stopped));
        assert_eq!(world.letters(), []);
    });
}

#[test]
fn a_restart_drops_the_future_and_keeps_queued_messages() {
    explore(|world| {
        let dropped = Arc::new(AtomicU32::new(0));
        let parent = world.noter("parent");
        let child = child_of(world, &parent, world.puppet("a").loud());
        child.tell(wait_for_ever(&dropped));
        child.tell(note(1));
        let index = child.index();
        parent.tell(go(move |_, ctx| ctx.command(index, guardian::SupervisionCommand::Restart)));
        let lines = world.lines();
        assert_eq!(
            lines[1..],
            ["a1 restarting: restarted by its supervisor", "a1 dropped", "a2 started", "a 1"]
        );
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_receive_timeout_is_paused_while_a_future_is_pending() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(go(|_, ctx| ctx.set_receive_timeout(Some(20 * MS))));
        actor.tell(world.wait_until_ms(100, 1));
        world.pass(99);
        assert_eq!(world.lines(), [""; 0]);
        world.pass(20);
        assert_eq!(world.lines(), ["a 1"], "it begins anew with the output");
        world.pass(3);
        assert_eq!(world.lines(), ["a hears timeout"]);
    });
}

#[test]
fn a_panic_in_the_future_fails_the_actor_and_the_next_message_is_handled() {
    explore_with(supervised(at_once()), |world| {
        let actor = world.spawn(world.puppet("a").loud());
        let sleep = runtime::RuntimeHandle::sleep_until(&world.runtime.handle(), at_ms(10));
        actor.tell(act(|_, _| {
            Ok(Flow::wait(async {
                sleep.await;
                panic!("in the future")
            }))
        }));
        actor.tell(note(2));
        world.pass(10);
        let expected = [
            "a1 started",
            "a1 restarting: the handler panicked: in the future",
            "a1 dropped",
            "a2 started",
            "a 2",
        ];
        assert_eq!(world.lines(), expected);
    });
}

#[test]
fn a_panic_in_the_future_may_be_resumed_from() {
    explore_with(supervised(directing(|_| SupervisionDirective::Resume)), |world| {
        let actor = world.noter("a");
        let sleep = runtime::RuntimeHandle::sleep_until(&world.runtime.handle(), at_ms(10));
        actor.tell(act(|_, _| {
            Ok(Flow::wait(async {
                sleep.await;
                panic!("in the future")
            }))
        }));
        actor.tell(go(|me, _| me.note(me.life)));
        world.pass(10);
        assert_eq!((world.lines(), actor.state()), (vec!["a 1".to_owned()], ActorState::Running));
    });
}

#[test]
fn a_resumed_failure_keeps_the_wait_during_which_it_happened() {
    explore_with(supervised(directing(|_| SupervisionDirective::Resume)), |world| {
        let broken = |_: &Signal, _: &mut Context<'_, Puppet>| Err(ActorError::new("broken"));
        let actor = world.spawn(world.puppet("a").signal(broken));
        actor.tell(go(|_, ctx| ctx.set_timer(TimerId(1), 5 * MS, Repeat::Once)));
        actor.tell(world.wait_until_ms(10, 1));
        actor.tell(note(2));
        world.pass(9);
        assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended));
        world.pass(1);
        assert_eq!(world.lines(), ["a 1", "a 2"]);
    });
}

#[test]
fn a_future_that_panics_on_drop_does_not_affect_others() {
    explore(|world| {
        let watcher = world.noter("w");
        let actor = world.noter("a");
        let watched = actor.clone();
        watcher.tell(go(move |_, ctx| ctx.watch(&watched)));
        actor.tell(act(|_, _| {
            let bomb = Bomb;
            Ok(Flow::wait(async move {
                std::future::pending::<()>().await;
                drop(bomb);
                note(1)
            }))
        }));
        world.run();
        actor.stop(StopMode::Now);
        watcher.tell(note(1));
        let mut lines = world.lines();
        lines.sort();
        assert_eq!(lines, ["w 1", "w hears end: stopped"]);
    });
}

#[test]
fn a_future_woken_while_it_is_polled_is_polled_again() {
    explore(|world| {
        let actor = world.noter("a");
        actor.tell(act(|_, _| {
            let mut polls = 0;
            Ok(Flow::wait(std::future::poll_fn(move |cx| {
                polls += 1;
                if polls == 50 {
                    return std::task::Poll::Ready(note(50));
                }
                cx.waker().wake_by_ref();
                std::task::Poll::Pending
            })))
        }));
        assert_eq!(world.lines(), ["a 50"]);
    });
}

#[test]
fn a_waker_that_outlives_its_wait_wakes_nothing_else() {
    explore(|world| {
        let actor = world.noter("a");
        let (give, take) = std::sync::mpsc::channel();
        actor.tell(act(move |_, _| {
            let mut first = true;
            Ok(Flow::wait(std::future::poll_fn(move |cx| {
                give.send(cx.waker().clone()).unwrap();
                if std::mem::take(&mut first) {
                    return std::task::Poll::Pending;
                }
                std::task::Poll::Ready(note(1))
            })))
        }));
        world.run();
        let waker = take.recv().unwrap();
        waker.wake_by_ref();
        assert_eq!(world.lines(), ["a 1"]);
        actor.tell(hold(1));
        actor.tell(note(2));
        world.run();
        waker.wake_by_ref();
        assert_eq!((world.lines(), actor.state()), (vec![], ActorState::Suspended));
        actor.stop(StopMode::Now);
        world.run();
        waker.wake();
        world.run();
    });
}

/// Waits a millisecond at a time.
fn countdown(handle: runtime::test::TestHandle, left: u32) -> Msg {
    act(move |me, _| {
        if left == 0 {
            me.note("counted down");
            return Ok(Flow::Continue);
        }
        Ok(Flow::wait(async move {
            let now = runtime::RuntimeHandle::now(&handle);
            runtime::RuntimeHandle::sleep_until(&handle, now + MS).await;
            countdown(handle, left - 1)
        }))
    })
}

/// Waits for what is there already, again and again; the first time, tells another.
fn ready_chain(handle: runtime::test::TestHandle, other: ActorRef<Msg>, left: u32) -> Flow<Msg> {
    Flow::wait(async move {
        if left == 1_000 {
            other.tell(note(1));
        }
        handle.elapse(MS / 100);
        act(move |me, _| match left {
            0 => {
                me.note("done");
                Ok(Flow::Continue)
            }
            _ => Ok(ready_chain(handle, other, left - 1)),
        })
    })
}

fn wait_for_ever(dropped: &Arc<AtomicU32>) -> Msg {
    let counted = Counted(dropped.clone());
    act(move |_, _| {
        Ok(Flow::wait(async move {
            std::future::pending::<()>().await;
            drop(counted);
            note(0)
        }))
    })
}

struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on the way out")
    }
}
