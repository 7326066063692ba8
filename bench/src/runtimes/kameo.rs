//! kameo 0.22: a task per actor and a tokio mpsc channel of boxed signals.

use std::convert::Infallible;
use std::future::Future;

use kameo::Actor;
use kameo::actor::{ActorRef, Spawn};
use kameo::mailbox;
use kameo::message::{Context, Message};
use tokio::runtime::{Handle, Runtime as Tokio};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct Kameo {
    tokio: Tokio,
    mailbox: Mailbox,
}

struct Tell(u64);
struct Ask(u64);

pub(super) struct CounterActor(Counter);

impl Actor for CounterActor {
    type Args = Counter;
    type Error = Infallible;

    async fn on_start(mut counter: Counter, _: ActorRef<Self>) -> Result<Self, Infallible> {
        counter.on_start();
        Ok(Self(counter))
    }
}

impl Message<Tell> for CounterActor {
    type Reply = ();

    async fn handle(&mut self, message: Tell, _: &mut Context<Self, ()>) {
        self.0.on_tell(message.0);
    }
}

impl Message<Ask> for CounterActor {
    type Reply = u64;

    async fn handle(&mut self, message: Ask, _: &mut Context<Self, u64>) -> u64 {
        self.0.on_ask(message.0)
    }
}

impl Runtime for Kameo {
    type Addr = ActorRef<CounterActor>;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        Ok(Self { tokio: super::tokio_runtime(settings.workers)?, mailbox: settings.mailbox })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.tokio.spawn(task);
    }

    fn spawn_actor(&self, _: usize, counter: Counter) -> ActorRef<CounterActor> {
        let _guard = self.tokio.enter();
        let mailbox = match self.mailbox {
            Mailbox::Unbounded => mailbox::unbounded(),
            Mailbox::Bounded(capacity) => mailbox::bounded(capacity.get()),
        };
        CounterActor::spawn_with_mailbox(counter, mailbox)
    }

    #[inline]
    async fn tell(addr: &ActorRef<CounterActor>, value: u64) {
        addr.tell(Tell(value)).send().await.expect("the actor lives as long as its address");
    }

    #[inline]
    async fn ask(addr: &ActorRef<CounterActor>, value: u64) -> u64 {
        addr.ask(Ask(value)).send().await.expect("the actor replies to every ask")
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.tokio.handle())
    }
}

#[derive(Default)]
pub(super) struct NodeActor(TreeNode<ActorRef<NodeActor>>);

impl Actor for NodeActor {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(node: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(node)
    }
}

impl Message<NodeMessage<ActorRef<Self>>> for NodeActor {
    type Reply = ();

    async fn handle(&mut self, message: NodeMessage<ActorRef<Self>>, context: &mut Context<Self, ()>) {
        if self.0.receive::<Kameo>(message, &mut ()) == Next::Stop {
            context.stop();
        }
    }
}

impl Skynet for Kameo {
    type NodeAddr = ActorRef<NodeActor>;
    type NodeContext<'a> = ();

    fn spawn_root(&self) -> ActorRef<NodeActor> {
        let _guard = self.tokio.enter();
        Self::spawn_child(&mut ())
    }

    fn spawn_child(_: &mut ()) -> ActorRef<NodeActor> {
        NodeActor::spawn_with_mailbox(NodeActor::default(), mailbox::unbounded())
    }

    fn tell_node(to: &ActorRef<NodeActor>, message: NodeMessage<ActorRef<NodeActor>>) {
        to.tell(message).try_send().expect("a node lives until its last child has replied");
    }
}
