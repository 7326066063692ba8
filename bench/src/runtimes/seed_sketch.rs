//! The scheduler sketch of the actor scheduler facade specification (`docs/specs.md`), built literally, to measure what
//! its traits cost as written.

mod system;

use std::future::Future;

use tokio::runtime::{Handle, Runtime as Tokio};
use tokio::sync::oneshot;

use self::system::{Addr, Envelope, Scheduler};
use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct SeedSketch {
    tokio: Tokio,
    scheduler: Scheduler,
}

enum Message {
    Tell(u64),
    Ask(u64, oneshot::Sender<u64>),
}

impl Runtime for SeedSketch {
    type Addr = Addr;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(SampleError::Unsupported("the sketch does not handle a full mailbox"));
        }
        let tokio = super::tokio_runtime(settings.workers)?;
        let scheduler = Scheduler::start(tokio.handle(), settings.workers);
        Ok(Self { tokio, scheduler })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.tokio.spawn(task);
    }

    /// Calls the start hook itself: the sketch has no such hook, and an actor has started once it is registered.
    fn spawn_actor(&self, _: usize, mut counter: Counter) -> Addr {
        counter.on_start();
        self.scheduler.spawn(move |envelope| {
            match open(envelope) {
                Message::Tell(value) => counter.on_tell(value),
                // The caller may have dropped its receiver.
                Message::Ask(value, reply) => drop(reply.send(counter.on_ask(value))),
            }
            Next::Continue
        })
    }

    #[inline]
    async fn tell(addr: &Addr, value: u64) {
        addr.tell(Box::new(Message::Tell(value)));
    }

    #[inline]
    async fn ask(addr: &Addr, value: u64) -> u64 {
        let (reply, response) = oneshot::channel();
        addr.tell(Box::new(Message::Ask(value, reply)));
        response.await.expect("the actor replies to every ask")
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.tokio.handle())
    }
}

fn open<M: 'static>(envelope: Envelope) -> M {
    *envelope.downcast().expect("an actor is sent messages of one type only")
}

impl Skynet for SeedSketch {
    type NodeAddr = Addr;
    type NodeContext<'a> = Scheduler;

    fn spawn_root(&self) -> Addr {
        spawn_node(self.scheduler.clone())
    }

    fn spawn_child(scheduler: &mut Scheduler) -> Addr {
        spawn_node(scheduler.clone())
    }

    fn tell_node(to: &Addr, message: NodeMessage<Addr>) {
        to.tell(Box::new(message));
    }
}

fn spawn_node(mut context: Scheduler) -> Addr {
    let mut node = TreeNode::default();
    let scheduler = context.clone();
    scheduler.spawn(move |envelope| node.receive::<SeedSketch>(open(envelope), &mut context))
}
