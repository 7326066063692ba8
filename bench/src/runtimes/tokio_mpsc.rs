//! The baseline: a tokio task and a tokio mpsc channel per actor, with replies over a oneshot channel.

use std::future::Future;

use tokio::runtime::{Handle, Runtime as Tokio};
use tokio::sync::{mpsc, oneshot};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct TokioMpsc {
    tokio: Tokio,
    mailbox: Mailbox,
}

pub(super) enum Message {
    Tell(u64),
    Ask(u64, oneshot::Sender<u64>),
}

#[derive(Clone)]
pub(super) enum Addr {
    Unbounded(mpsc::UnboundedSender<Message>),
    Bounded(mpsc::Sender<Message>),
}

impl Runtime for TokioMpsc {
    type Addr = Addr;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        Ok(Self { tokio: super::tokio_runtime(settings.workers)?, mailbox: settings.mailbox })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.tokio.spawn(task);
    }

    fn spawn_actor(&self, _: usize, mut counter: Counter) -> Addr {
        match self.mailbox {
            Mailbox::Unbounded => {
                let (addr, mut mailbox) = mpsc::unbounded_channel();
                self.tokio.spawn(async move {
                    counter.on_start();
                    while let Some(message) = mailbox.recv().await {
                        receive(&mut counter, message);
                    }
                });
                Addr::Unbounded(addr)
            }
            Mailbox::Bounded(capacity) => {
                let (addr, mut mailbox) = mpsc::channel(capacity.get());
                self.tokio.spawn(async move {
                    counter.on_start();
                    while let Some(message) = mailbox.recv().await {
                        receive(&mut counter, message);
                    }
                });
                Addr::Bounded(addr)
            }
        }
    }

    #[inline]
    async fn tell(addr: &Addr, value: u64) {
        send(addr, Message::Tell(value)).await;
    }

    #[inline]
    async fn ask(addr: &Addr, value: u64) -> u64 {
        let (reply, response) = oneshot::channel();
        send(addr, Message::Ask(value, reply)).await;
        response.await.expect("the actor replies to every ask")
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.tokio.handle())
    }
}

#[inline]
async fn send(addr: &Addr, message: Message) {
    let sent = match addr {
        Addr::Unbounded(addr) => addr.send(message),
        Addr::Bounded(addr) => addr.send(message).await,
    };
    sent.expect("the actor lives as long as its address");
}

#[inline]
fn receive(counter: &mut Counter, message: Message) {
    match message {
        Message::Tell(value) => counter.on_tell(value),
        // The caller may have dropped its receiver.
        Message::Ask(value, reply) => drop(reply.send(counter.on_ask(value))),
    }
}

#[derive(Clone)]
pub(super) struct NodeAddr(mpsc::UnboundedSender<NodeMessage<NodeAddr>>);

impl Skynet for TokioMpsc {
    type NodeAddr = NodeAddr;
    type NodeContext<'a> = ();

    fn spawn_root(&self) -> NodeAddr {
        let _guard = self.tokio.enter();
        spawn_node()
    }

    fn spawn_child(_: &mut ()) -> NodeAddr {
        spawn_node()
    }

    fn tell_node(to: &NodeAddr, message: NodeMessage<NodeAddr>) {
        to.0.send(message).expect("a node lives until its last child has replied");
    }
}

fn spawn_node() -> NodeAddr {
    let (addr, mut mailbox) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut node = TreeNode::default();
        while let Some(message) = mailbox.recv().await {
            if node.receive::<TokioMpsc>(message, &mut ()) == Next::Stop {
                break;
            }
        }
    });
    NodeAddr(addr)
}
