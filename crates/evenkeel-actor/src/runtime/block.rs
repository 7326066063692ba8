//! Runs a future on the current thread.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::thread::{self, Thread};

/// Runs a future to completion; the thread sleeps while it waits.
///
/// Use it on threads of your own: to ask an actor from outside any runtime, or to implement a runtime that runs each
/// worker on its own thread. In a handler or in a task of a runtime it would block a thread that other tasks need.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // A spurious wake-up only costs another poll.
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::poll_fn;
    use std::sync::mpsc;

    #[test]
    fn a_thread_sleeps_until_another_wakes_it() {
        let (sender, receiver) = mpsc::channel::<Waker>();
        let other = thread::spawn(move || receiver.iter().for_each(Waker::wake));
        let mut polls = 0;
        let output = block_on(poll_fn(|cx| {
            polls += 1;
            if polls == 10 {
                return Poll::Ready(42);
            }
            sender.send(cx.waker().clone()).ok();
            Poll::Pending
        }));
        drop(sender);
        assert!(other.join().is_ok());
        assert_eq!(output, 42);
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_missed() {
        let mut polls = 0;
        block_on(poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        }));
        assert_eq!(polls, 3);
    }
}
