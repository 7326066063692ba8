//! ractor 0.16: a task per actor, four priority ports, unbounded mailboxes only.

use std::future::Future;

use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, ActorRuntime, RpcReplyPort};
use tokio::runtime::{Handle, Runtime as Tokio};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct Ractor(Tokio);

pub(super) enum Message {
    Tell(u64),
    Ask(u64, RpcReplyPort<u64>),
}

struct CounterActor;

impl Actor for CounterActor {
    type Msg = Message;
    type State = Counter;
    type Arguments = Counter;

    async fn pre_start(
        &self,
        _: ActorRef<Message>,
        mut counter: Counter,
    ) -> Result<Counter, ActorProcessingErr> {
        counter.on_start();
        Ok(counter)
    }

    async fn handle(
        &self,
        _: ActorRef<Message>,
        message: Message,
        counter: &mut Counter,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Tell(value) => counter.on_tell(value),
            Message::Ask(value, reply) => reply.send(counter.on_ask(value))?,
        }
        Ok(())
    }
}

impl Runtime for Ractor {
    type Addr = ActorRef<Message>;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(SampleError::Unsupported("mailboxes are unbounded"));
        }
        super::tokio_runtime(settings.workers).map(Self)
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    fn spawn_actor(&self, _: usize, counter: Counter) -> ActorRef<Message> {
        let _guard = self.0.enter();
        spawn(CounterActor, counter)
    }

    #[inline]
    async fn tell(addr: &ActorRef<Message>, value: u64) {
        addr.cast(Message::Tell(value)).expect("the actor lives until the process ends");
    }

    #[inline]
    async fn ask(addr: &ActorRef<Message>, value: u64) -> u64 {
        let reply = addr.call(|reply| Message::Ask(value, reply), None).await;
        match reply.expect("the actor lives until the process ends") {
            CallResult::Success(value) => value,
            CallResult::Timeout | CallResult::SenderError => unreachable!("the actor replies to every ask"),
        }
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.0.handle())
    }
}

/// Spawns without waiting for the start hook, like the other runtimes.
fn spawn<A: Actor>(actor: A, arguments: A::Arguments) -> ActorRef<A::Msg> {
    let (addr, _) =
        ActorRuntime::spawn_instant(None, actor, arguments).expect("an actor without a name can start");
    addr
}

struct NodeActor;

type NodeMsg = NodeMessage<NodeAddr>;

#[derive(Clone)]
pub(super) struct NodeAddr(ActorRef<NodeMsg>);

impl Actor for NodeActor {
    type Msg = NodeMsg;
    type State = TreeNode<NodeAddr>;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<NodeMsg>, _: ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(TreeNode::default())
    }

    async fn handle(
        &self,
        self_ref: ActorRef<NodeMsg>,
        message: NodeMsg,
        node: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if node.receive::<Ractor>(message, &mut ()) == Next::Stop {
            self_ref.stop(None);
        }
        Ok(())
    }
}

impl Skynet for Ractor {
    type NodeAddr = NodeAddr;
    type NodeContext<'a> = ();

    fn spawn_root(&self) -> NodeAddr {
        let _guard = self.0.enter();
        NodeAddr(spawn(NodeActor, ()))
    }

    fn spawn_child(_: &mut ()) -> NodeAddr {
        NodeAddr(spawn(NodeActor, ()))
    }

    fn tell_node(to: &NodeAddr, message: NodeMsg) {
        to.0.cast(message).expect("a node lives until its last child has replied");
    }
}
