//! A future on a thread that has nothing else to do.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::thread::{self, Thread};

/// Runs a future to its end; the thread sleeps while it waits.
///
/// For threads of one's own: to ask an actor from outside of any runtime, or to be a runtime, where a
/// worker's task sleeps in it until it is woken. In a handler or in a task of a runtime it would hold up
/// the thread that others wait for.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // Also returns without a reason; the future knows.
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
        let (tell, told) = mpsc::channel::<Waker>();
        let other = thread::spawn(move || told.iter().for_each(Waker::wake));
        let mut polls = 0;
        let answer = block_on(poll_fn(|cx| {
            polls += 1;
            if polls == 10 {
                return Poll::Ready(42);
            }
            tell.send(cx.waker().clone()).ok();
            Poll::Pending
        }));
        drop(tell);
        assert!(other.join().is_ok());
        assert_eq!(answer, 42);
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
