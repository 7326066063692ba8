//! A thread per actor around a crossbeam channel: what the kernel alone can do.

use std::future::Future;
use std::thread::Builder;

use crossbeam_channel::{Sender, bounded, unbounded};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::NoSample;
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

    /// A usual limit on a user's threads is a few times higher.
    const ACTORS_MAX: usize = 5000;

    /// The kernel schedules threads on all cores, whatever the settings say of workers.
    fn start(settings: &Settings) -> Result<Self, NoSample> {
        Ok(Self { mailbox: settings.mailbox })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        spawn(move || futures_lite::future::block_on(task));
    }

    fn spawn_actor(&self, _: usize, mut counter: Counter) -> Sender<Message> {
        let (addr, mailbox) = match self.mailbox {
            Mailbox::Unbounded => unbounded(),
            Mailbox::Bounded(places) => bounded(places.get()),
        };
        spawn(move || {
            counter.on_start();
            for message in mailbox {
                match message {
                    Message::Tell(value) => counter.on_tell(value),
                    // An asker that went away needs no answer.
                    Message::Ask(value, asked) => drop(asked.send(counter.on_ask(value))),
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
        let (asked, answer) = bounded(1);
        addr.send(Message::Ask(value, asked)).expect("the actor lives as long as its address");
        answer.recv().expect("the actor answers every question")
    }

    /// The kernel preempts a thread; there is nothing to give up.
    async fn yield_now() {}
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    let spawned = Builder::new().stack_size(STACK_BYTES).spawn(body);
    spawned.expect("the system has a few thousand threads to give");
}
