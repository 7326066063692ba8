//! Skynet: a tree in which every inner node has ten children, every leaf answers its number, and parents sum up.
//!
//! A node is an actor: spawned by its parent, told where it stands by a message, stopped once it has answered. What a
//! node does is written here; a runtime only says how its actors spawn, tell and stop.

use std::sync::mpsc;

use crate::runtime::Runtime;

/// How many children an inner node has.
pub const CHILDREN: u64 = 10;

/// A runtime whose actors can spawn actors.
pub trait Skynet: Runtime {
    /// The address of a node; its mailbox takes a [`NodeMessage::Start`] and ten answers without waiting.
    type NodeAddr: Clone + Send + 'static;

    /// What a node has in hand while it handles a message, and spawns its children with.
    type NodeContext<'a>;

    /// Spawns a node from outside of every actor.
    fn spawn_root(&self) -> Self::NodeAddr;

    /// Spawns a node from inside another.
    fn spawn_child(inside: &mut Self::NodeContext<'_>) -> Self::NodeAddr;

    /// Sends a node a message, from wherever.
    fn tell_node(to: &Self::NodeAddr, message: NodeMessage<Self::NodeAddr>);
}

/// What a node is told.
#[derive(Debug)]
pub enum NodeMessage<A> {
    /// Where it stands; the first message of every node.
    Start {
        /// How many levels of nodes are below; a leaf has none.
        level: u32,
        /// Its number within its level.
        number: u64,
        /// Its own address, for its children to answer to.
        me: A,
        /// Whom it answers.
        parent: Parent<A>,
    },
    /// What a child answers: the sum of the leaves below it.
    Answer(u64),
}

/// Whom a node answers.
#[derive(Debug)]
pub enum Parent<A> {
    /// The node that spawned it.
    Node(A),
    /// Whoever started the tree.
    Workload(mpsc::Sender<u64>),
}

/// Whether an actor goes on after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// It waits for more.
    Continue,
    /// It is finished.
    Stop,
}

/// The state of a node.
#[derive(Debug)]
pub struct TreeNode<A> {
    parent: Option<Parent<A>>,
    unanswered: u64,
    sum: u64,
}

impl<A> Default for TreeNode<A> {
    fn default() -> Self {
        Self { parent: None, unanswered: CHILDREN, sum: 0 }
    }
}

impl<A: Clone> TreeNode<A> {
    /// Handles a message; the runtime then does what the answer says.
    pub fn receive<R: Skynet<NodeAddr = A>>(
        &mut self,
        message: NodeMessage<A>,
        inside: &mut R::NodeContext<'_>,
    ) -> Next {
        match message {
            NodeMessage::Start { level: 0, number, parent, .. } => {
                answer::<R>(parent, number);
                Next::Stop
            }
            NodeMessage::Start { level, number, me, parent } => {
                self.parent = Some(parent);
                for child in 0..CHILDREN {
                    let node = R::spawn_child(inside);
                    R::tell_node(
                        &node,
                        start(&node, level - 1, number * CHILDREN + child, Parent::Node(me.clone())),
                    );
                }
                Next::Continue
            }
            NodeMessage::Answer(sum) => {
                self.sum += sum;
                self.unanswered -= 1;
                if self.unanswered != 0 {
                    return Next::Continue;
                }
                if let Some(parent) = self.parent.take() {
                    answer::<R>(parent, self.sum);
                }
                Next::Stop
            }
        }
    }
}

/// Makes the first message of a node.
pub fn start<A: Clone>(me: &A, level: u32, number: u64, parent: Parent<A>) -> NodeMessage<A> {
    NodeMessage::Start { level, number, me: me.clone(), parent }
}

fn answer<R: Skynet>(parent: Parent<R::NodeAddr>, sum: u64) {
    match parent {
        Parent::Node(parent) => R::tell_node(&parent, NodeMessage::Answer(sum)),
        // Nobody listens any more only after the workload gave up.
        Parent::Workload(workload) => drop(workload.send(sum)),
    }
}
