//! A thread and a crossbeam channel per actor: scheduling by the kernel alone.

use std::future::Future;
use std::thread::Builder;

use crossbeam_channel::{Sender, bounded, unbounded};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};

const STACK_BYTES: usize = 64 * 1024;

pub(super) struct CrossbeamThreads {
    mailbox: Mailbox,
}

pub(super) enum Message {
    Tell(u64),
    Ask(u64, Sender<u64>),
}

impl Runtime for CrossbeamThreads {
    type Addr = Sender<Message>;

    /// A few times below the usual limit on a user's threads.
    const ACTORS_MAX: usize = 5000;

    /// Ignores the number of workers: the kernel schedules threads on all cores.
    fn start(settings: &Settings) -> Result<Self, SampleError> {
        Ok(Self { mailbox: settings.mailbox })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        spawn(move || futures_lite::future::block_on(task));
    }

    fn spawn_actor(&self, _: usize, mut counter: Counter) -> Sender<Message> {
        let (addr, mailbox) = match self.mailbox {
            Mailbox::Unbounded => unbounded(),
            Mailbox::Bounded(capacity) => bounded(capacity.get()),
        };
        spawn(move || {
            counter.on_start();
            for message in mailbox {
                match message {
                    Message::Tell(value) => counter.on_tell(value),
                    // The caller may have dropped its receiver.
                    Message::Ask(value, reply) => drop(reply.send(counter.on_ask(value))),
                }
            }
        });
        addr
    }

    #[inline]
    async fn tell(addr: &Sender<Message>, value: u64) {
        addr.send(Message::Tell(value)).expect("the actor lives as long as its address");
    }

    #[inline]
    async fn ask(addr: &Sender<Message>, value: u64) -> u64 {
        let (reply, response) = bounded(1);
        addr.send(Message::Ask(value, reply)).expect("the actor lives as long as its address");
        response.recv().expect("the actor replies to every ask")
    }

    /// Does nothing: the kernel preempts threads.
    async fn yield_now() {}
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    let spawned = Builder::new().stack_size(STACK_BYTES).spawn(body);
    spawned.expect("the system allows a few thousand threads");
}
