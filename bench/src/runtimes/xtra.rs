//! xtra 0.6: a task per actor; its mailbox is a priority heap and a queue behind a lock.

use std::future::Future;

use tokio::runtime::{Handle, Runtime as Tokio};
use xtra::prelude::{Actor, Address, Context, Handler, Mailbox as XtraMailbox};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct Xtra {
    tokio: Tokio,
    mailbox: Mailbox,
}

struct Tell(u64);
struct Ask(u64);

pub(super) struct CounterActor(Counter);

impl Actor for CounterActor {
    type Stop = ();

    async fn started(&mut self, _: &XtraMailbox<Self>) -> Result<(), ()> {
        self.0.on_start();
        Ok(())
    }

    async fn stopped(self) {}
}

impl Handler<Tell> for CounterActor {
    type Return = ();

    async fn handle(&mut self, message: Tell, _: &mut Context<Self>) {
        self.0.on_tell(message.0);
    }
}

impl Handler<Ask> for CounterActor {
    type Return = u64;

    async fn handle(&mut self, message: Ask, _: &mut Context<Self>) -> u64 {
        self.0.on_ask(message.0)
    }
}

impl Runtime for Xtra {
    type Addr = Address<CounterActor>;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        Ok(Self { tokio: super::tokio_runtime(settings.workers)?, mailbox: settings.mailbox })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.tokio.spawn(task);
    }

    fn spawn_actor(&self, _: usize, counter: Counter) -> Address<CounterActor> {
        let _guard = self.tokio.enter();
        let mailbox = match self.mailbox {
            Mailbox::Unbounded => XtraMailbox::unbounded(),
            Mailbox::Bounded(capacity) => XtraMailbox::bounded(capacity.get()),
        };
        xtra::spawn_tokio(CounterActor(counter), mailbox)
    }

    #[inline]
    async fn tell(addr: &Address<CounterActor>, value: u64) {
        drop(addr.send(Tell(value)).detach().await.expect("the actor lives as long as its address"));
    }

    #[inline]
    async fn ask(addr: &Address<CounterActor>, value: u64) -> u64 {
        addr.send(Ask(value)).await.expect("the actor replies to every ask")
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.tokio.handle())
    }
}

#[derive(Default)]
pub(super) struct NodeActor(TreeNode<Address<NodeActor>>);

impl Actor for NodeActor {
    type Stop = ();

    async fn stopped(self) {}
}

impl Handler<NodeMessage<Address<Self>>> for NodeActor {
    type Return = ();

    async fn handle(&mut self, message: NodeMessage<Address<Self>>, context: &mut Context<Self>) {
        if self.0.receive::<Xtra>(message, &mut ()) == Next::Stop {
            context.stop_self();
        }
    }
}

impl Skynet for Xtra {
    type NodeAddr = Address<NodeActor>;
    type NodeContext<'a> = ();

    fn spawn_root(&self) -> Address<NodeActor> {
        let _guard = self.tokio.enter();
        Self::spawn_child(&mut ())
    }

    fn spawn_child(_: &mut ()) -> Address<NodeActor> {
        xtra::spawn_tokio(NodeActor::default(), XtraMailbox::unbounded())
    }

    fn tell_node(to: &Address<NodeActor>, message: NodeMessage<Address<NodeActor>>) {
        // Sending to an unbounded mailbox completes at the first poll, so this does not block.
        let sent = futures_lite::future::block_on(to.send(message).detach());
        drop(sent.expect("a node lives until its last child has replied"));
    }
}
