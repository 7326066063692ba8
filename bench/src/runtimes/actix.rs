//! actix 0.13: an arbiter (a loop on one thread) per worker; an actor stays on the arbiter it started on.

use std::future::Future;
use std::sync::mpsc;
use std::thread;

use actix::prelude::*;

use crate::counter::Counter;
use crate::runtime::Runtime;
use crate::sample::NoSample;
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

    fn start(settings: &Settings) -> Result<Self, NoSample> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(NoSample::Unsupported(
                "`do_send` ignores a mailbox's limit, `send` waits for the answer",
            ));
        }
        System::set_current(idle_system()?);
        let arbiters = (0..settings.workers.get()).map(|_| Arbiter::new().handle());
        Ok(Self(arbiters.collect()))
    }

    fn spawn_task(&self, lane: usize, task: impl Future<Output = ()> + Send + 'static) {
        assert!(self.lane(lane).spawn(task), "an arbiter lives until the process ends");
    }

    fn spawn_actor(&self, lane: usize, counter: Counter) -> Addr<CounterActor> {
        CounterActor::start_in_arbiter(self.lane(lane), move |_| CounterActor(counter))
    }

    #[inline]
    async fn tell(addr: &Addr<CounterActor>, value: u64) {
        addr.do_send(Tell(value));
    }

    #[inline]
    async fn ask(addr: &Addr<CounterActor>, value: u64) -> u64 {
        addr.send(Ask(value)).await.expect("the actor answers every question")
    }
}

impl Actix {
    fn lane(&self, lane: usize) -> &ArbiterHandle {
        &self.0[lane % self.0.len()]
    }
}

/// Starts a system on a thread of its own: its loop is no worker, it only idles.
fn idle_system() -> Result<System, NoSample> {
    let (started, system) = mpsc::channel();
    thread::spawn(move || {
        let runner = System::new();
        // Whoever started the thread waits below.
        runner.block_on(async { drop(started.send(System::current())) });
        runner.run()
    });
    system.recv().map_err(|_| NoSample::Failed("actix's system did not start".to_owned()))
}

/// Arbiters for the children of one node, in turn; the other nodes' children stay where their parent is.
#[derive(Default)]
pub(super) struct ChildArbiters {
    arbiters: Vec<ArbiterHandle>,
    spawned: usize,
}

#[derive(Default)]
pub(super) struct NodeActor {
    node: TreeNode<Addr<NodeActor>>,
    nursery: ChildArbiters,
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
        if self.node.receive::<Actix>(message, &mut self.nursery) == Next::Stop {
            context.stop();
        }
    }
}

impl Skynet for Actix {
    type NodeAddr = Addr<NodeActor>;
    type NodeContext<'a> = ChildArbiters;

    fn spawn_root(&self) -> Addr<NodeActor> {
        let nursery = ChildArbiters { arbiters: self.0.clone(), spawned: 0 };
        NodeActor::start_in_arbiter(self.lane(0), move |_| NodeActor { node: TreeNode::default(), nursery })
    }

    fn spawn_child(nursery: &mut ChildArbiters) -> Addr<NodeActor> {
        if nursery.arbiters.is_empty() {
            return NodeActor::default().start();
        }
        let arbiter = &nursery.arbiters[nursery.spawned % nursery.arbiters.len()];
        nursery.spawned += 1;
        NodeActor::start_in_arbiter(arbiter, |_| NodeActor::default())
    }

    fn tell_node(to: &Addr<NodeActor>, message: NodeMessage<Addr<NodeActor>>) {
        to.do_send(message);
    }
}
