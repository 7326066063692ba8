//! actix 0.13: an arbiter (an event loop on one thread) per worker; an actor stays on the arbiter it started on.

use std::future::Future;
use std::sync::mpsc;
use std::thread;

use actix::prelude::*;

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::SampleError;
use crate::settings::{Mailbox, Settings};
use crate::skynet::{Next, NodeMessage, Skynet, TreeNode};

pub(super) struct Actix(Vec<ArbiterHandle>);

#[derive(Message)]
#[rtype(result = "()")]
struct Tell(u64);

#[derive(Message)]
#[rtype(result = "u64")]
struct Ask(u64);

pub(super) struct CounterActor(Counter);

impl Actor for CounterActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.0.on_start();
    }
}

impl Handler<Tell> for CounterActor {
    type Result = ();

    fn handle(&mut self, message: Tell, _: &mut Self::Context) {
        self.0.on_tell(message.0);
    }
}

impl Handler<Ask> for CounterActor {
    type Result = u64;

    fn handle(&mut self, message: Ask, _: &mut Self::Context) -> u64 {
        self.0.on_ask(message.0)
    }
}

impl Runtime for Actix {
    type Addr = Addr<CounterActor>;

    fn start(settings: &Settings) -> Result<Self, SampleError> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(SampleError::Unsupported(
                "`do_send` ignores the mailbox capacity, `send` waits for the reply",
            ));
        }
        System::set_current(idle_system()?);
        let arbiters = (0..settings.workers.get()).map(|_| Arbiter::new().handle());
        Ok(Self(arbiters.collect()))
    }

    fn spawn_task(&self, thread: usize, task: impl Future<Output = ()> + Send + 'static) {
        assert!(self.arbiter(thread).spawn(task), "an arbiter lives until the process ends");
    }

    fn spawn_actor(&self, thread: usize, counter: Counter) -> Addr<CounterActor> {
        CounterActor::start_in_arbiter(self.arbiter(thread), move |_| CounterActor(counter))
    }

    #[inline]
    async fn tell(addr: &Addr<CounterActor>, value: u64) {
        addr.do_send(Tell(value));
    }

    #[inline]
    async fn ask(addr: &Addr<CounterActor>, value: u64) -> u64 {
        addr.send(Ask(value)).await.expect("the actor replies to every ask")
    }
}

impl Actix {
    fn arbiter(&self, thread: usize) -> &ArbiterHandle {
        &self.0[thread % self.0.len()]
    }
}

/// Starts a system on its own thread; its event loop stays idle and is not a worker.
fn idle_system() -> Result<System, SampleError> {
    let (started, system) = mpsc::channel();
    thread::spawn(move || {
        let runner = System::new();
        // The receiver is waiting below.
        runner.block_on(async { drop(started.send(System::current())) });
        runner.run()
    });
    system.recv().map_err(|_| SampleError::Failed("actix's system did not start".to_owned()))
}

/// Arbiters for the root's children, round robin; the children of other nodes stay on their parent's arbiter.
#[derive(Default)]
pub(super) struct ChildArbiters {
    arbiters: Vec<ArbiterHandle>,
    spawned: usize,
}

#[derive(Default)]
pub(super) struct NodeActor {
    node: TreeNode<Addr<NodeActor>>,
    children: ChildArbiters,
}

impl Actor for NodeActor {
    type Context = Context<Self>;
}

impl Message for NodeMessage<Addr<NodeActor>> {
    type Result = ();
}

impl Handler<NodeMessage<Addr<Self>>> for NodeActor {
    type Result = ();

    fn handle(&mut self, message: NodeMessage<Addr<Self>>, context: &mut Self::Context) {
        if self.node.receive::<Actix>(message, &mut self.children) == Next::Stop {
            context.stop();
        }
    }
}

impl Skynet for Actix {
    type NodeAddr = Addr<NodeActor>;
    type NodeContext<'a> = ChildArbiters;

    fn spawn_root(&self) -> Addr<NodeActor> {
        let children = ChildArbiters { arbiters: self.0.clone(), spawned: 0 };
        NodeActor::start_in_arbiter(self.arbiter(0), move |_| NodeActor {
            node: TreeNode::default(),
            children,
        })
    }

    fn spawn_child(children: &mut ChildArbiters) -> Addr<NodeActor> {
        if children.arbiters.is_empty() {
            return NodeActor::default().start();
        }
        let arbiter = &children.arbiters[children.spawned % children.arbiters.len()];
        children.spawned += 1;
        NodeActor::start_in_arbiter(arbiter, |_| NodeActor::default())
    }

    fn tell_node(to: &Addr<NodeActor>, message: NodeMessage<Addr<NodeActor>>) {
        to.do_send(message);
    }
}
