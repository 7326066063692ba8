//! `evenkeel-actor` on tokio, with supervision and metrics. Producers and askers run on the actors' workers or as plain
//! tokio tasks.

use std::future::{Future, poll_fn};
use std::num::NonZeroUsize;
use std::task::Poll;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, MailboxOptions,
    Metrics, OverflowStrategy, Props, ReadyQueueScheduler, Reply,
};
use tokio::runtime::{Handle, Runtime as Tokio};

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings, Switch};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

/// Capacity of a mailbox that never fills up.
const UNBOUNDED: NonZeroUsize = NonZeroUsize::new(i32::MAX as usize).expect("it is not zero");

/// Runs producers on the actors' workers.
pub(super) type Evenkeel = OnTokio<OnWorkers>;
/// Runs producers as plain tokio tasks.
pub(super) type EvenkeelTokio = OnTokio<BesideWorkers>;

/// Tasks run on the actors' workers.
pub(super) struct OnWorkers;
/// Tasks run as plain tokio tasks.
pub(super) struct BesideWorkers;

/// Placement of the workload's tasks.
pub(super) trait TaskPlacement: Send + Sync + 'static {
    fn spawn(runtime: &OnTokio<Self>, task: impl Future<Output = ()> + Send + 'static)
    where
        Self: Sized;
    fn yield_now() -> impl Future<Output = ()> + Send;
}

impl TaskPlacement for OnWorkers {
    fn spawn(runtime: &OnTokio<Self>, task: impl Future<Output = ()> + Send + 'static) {
        runtime.system.spawn_task(task).expect("the task limit is not reached");
    }

    async fn yield_now() {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl TaskPlacement for BesideWorkers {
    fn spawn(runtime: &OnTokio<Self>, task: impl Future<Output = ()> + Send + 'static) {
        drop(runtime.tokio.spawn(task));
    }

    async fn yield_now() {
        tokio::task::yield_now().await;
    }
}

pub(super) struct OnTokio<P> {
    system: ReadyQueueScheduler,
    tokio: Tokio,
    counters: Props<CounterActor>,
    nodes: Props<NodeActor>,
    bounded: bool,
    placement: std::marker::PhantomData<P>,
}

pub(super) enum Message {
    Tell(u64),
    Ask(u64, Reply<u64>),
}

pub(super) struct CounterActor(Counter);

impl Actor for CounterActor {
    type Msg = Message;

    fn started(&mut self, _: &mut Context<'_, Self>) -> HandlerResult<Message> {
        self.0.on_start();
        Ok(Flow::Continue)
    }

    #[inline]
    fn receive(&mut self, message: Message, _: &mut Context<'_, Self>) -> HandlerResult<Message> {
        match message {
            Message::Tell(value) => self.0.on_tell(value),
            Message::Ask(value, reply) => drop(reply.send(self.0.on_ask(value))),
        }
        Ok(Flow::Continue)
    }
}

/// An address; senders to a bounded mailbox may have to wait.
#[derive(Clone)]
pub(super) enum Addr {
    Unbounded(ActorRef<Message>),
    Bounded(ActorRef<Message>),
}

impl Addr {
    #[inline]
    fn actor(&self) -> &ActorRef<Message> {
        match self {
            Self::Unbounded(actor) | Self::Bounded(actor) => actor,
        }
    }
}

impl<P: TaskPlacement> Runtime for OnTokio<P> {
    type Addr = Addr;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        let tokio = super::tokio_runtime(settings.workers)?;
        let metrics = match settings.metrics {
            Switch::On => Metrics::On,
            Switch::Off => Metrics::Off,
        };
        let config = ActorSystemConfig { metrics, ..ActorSystemConfig::with_workers(settings.workers) };
        let system = ActorSystemRunner::new(config)
            .start(TokioRuntime::new(tokio.handle().clone()))
            .map_err(|error| SampleError::Failed(format!("actor system did not start: {error}")))?;
        let (capacity, bounded) = match settings.mailbox {
            // No workload reaches two billion messages.
            Mailbox::Unbounded => (UNBOUNDED, false),
            Mailbox::Bounded(capacity) => (capacity, true),
        };
        let options = MailboxOptions::bounded(capacity).overflow(OverflowStrategy::BlockProducer);
        let counters = Props::of_values().mailbox(options).build();
        let nodes = Props::of_values().build();
        Ok(Self { system, tokio, counters, nodes, bounded, placement: std::marker::PhantomData })
    }

    fn spawn_task(&self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        P::spawn(self, task);
    }

    fn spawn_actor(&self, _: usize, counter: Counter) -> Addr {
        let spawned = self.system.spawn_value(CounterActor(counter), &self.counters);
        let actor = spawned.expect("the actor limit is not reached");
        if self.bounded { Addr::Bounded(actor) } else { Addr::Unbounded(actor) }
    }

    #[inline]
    async fn tell(addr: &Addr, value: u64) {
        match addr {
            Addr::Unbounded(actor) => actor.tell(Message::Tell(value)),
            Addr::Bounded(actor) => drop(actor.send(Message::Tell(value)).await),
        }
    }

    #[inline]
    async fn ask(addr: &Addr, value: u64) -> u64 {
        let reply = addr.actor().ask(|reply| Message::Ask(value, reply)).await;
        reply.expect("the actor replies to every ask")
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        P::yield_now()
    }

    fn tokio(&self) -> Option<&Handle> {
        Some(self.tokio.handle())
    }
}

/// A tree node with the props of its children.
pub(super) struct NodeActor {
    node: TreeNode<ActorRef<NodeInbox>>,
    nodes: Props<NodeActor>,
}

/// Breaks the type cycle that arises because a node's message contains addresses of nodes.
pub(super) struct NodeInbox(NodeMessage<ActorRef<NodeInbox>>);

/// Spawns a child of the current node.
pub(super) struct SpawnChild<'a>(&'a mut dyn FnMut() -> ActorRef<NodeInbox>);

impl NodeActor {
    fn new(nodes: &Props<NodeActor>) -> Self {
        Self { node: TreeNode::default(), nodes: nodes.clone() }
    }
}

impl Actor for NodeActor {
    type Msg = NodeInbox;

    fn receive(&mut self, message: NodeInbox, context: &mut Context<'_, Self>) -> HandlerResult<NodeInbox> {
        let Self { node, nodes } = self;
        let mut spawn = || {
            let child = context.spawn_value(NodeActor::new(nodes), nodes);
            child.expect("the actor limit is not reached")
        };
        match node.receive::<Evenkeel>(message.0, &mut SpawnChild(&mut spawn)) {
            Next::Continue => Ok(Flow::Continue),
            Next::Stop => Ok(Flow::Stop),
        }
    }
}

impl<P: TaskPlacement> Skynet for OnTokio<P> {
    type NodeAddr = ActorRef<NodeInbox>;
    type NodeContext<'a> = SpawnChild<'a>;

    fn spawn_root(&self) -> ActorRef<NodeInbox> {
        let spawned = self.system.spawn_value(NodeActor::new(&self.nodes), &self.nodes);
        spawned.expect("the actor limit is not reached")
    }

    fn spawn_child(context: &mut SpawnChild<'_>) -> ActorRef<NodeInbox> {
        (context.0)()
    }

    fn tell_node(to: &ActorRef<NodeInbox>, message: NodeMessage<ActorRef<NodeInbox>>) {
        to.tell(NodeInbox(message));
    }
}
