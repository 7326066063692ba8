//! Skynet: a tree in which every inner node has ten children, leaves reply with their numbers, and parents with the
//! sum.
//!
//! A node is an actor: its parent spawns it and sends it its position; it stops once it has replied. The logic of a
//! node is here; a runtime only provides spawn, tell and stop.

use std::sync::mpsc;

use crate::runtime::Runtime;

/// Children of an inner node.
pub const CHILDREN: u64 = 10;

/// A runtime whose actors can spawn actors.
pub trait Skynet: Runtime {
    /// Address of a node; its mailbox has room for a [`NodeMessage::Start`] and ten replies.
    type NodeAddr: Clone + Send + 'static;

    /// Context for spawning children while a node handles a message.
    type NodeContext<'a>;

    /// Spawns a node from outside any actor.
    fn spawn_root(&self) -> Self::NodeAddr;

    /// Spawns a child of the current node.
    fn spawn_child(context: &mut Self::NodeContext<'_>) -> Self::NodeAddr;

    /// Sends a message to a node, from any thread.
    fn tell_node(to: &Self::NodeAddr, message: NodeMessage<Self::NodeAddr>);
}

/// Messages of a node.
#[derive(Debug)]
pub enum NodeMessage<A> {
    /// Position in the tree; the first message of every node.
    Start {
        /// Number of levels below; zero for a leaf.
        level: u32,
        /// Index within the level.
        number: u64,
        /// The node's own address, to which its children reply.
        self_ref: A,
        parent: Parent<A>,
    },
    /// Reply of a child: the sum of the leaves below it.
    Sum(u64),
}

/// Receiver of a node's sum.
#[derive(Debug)]
pub enum Parent<A> {
    Node(A),
    /// The workload that started the tree.
    Workload(mpsc::Sender<u64>),
}

/// Next state of an actor after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    Continue,
    Stop,
}

/// State of a node.
#[derive(Debug)]
pub struct TreeNode<A> {
    parent: Option<Parent<A>>,
    outstanding: u64,
    sum: u64,
}

impl<A> Default for TreeNode<A> {
    fn default() -> Self {
        Self { parent: None, outstanding: CHILDREN, sum: 0 }
    }
}

impl<A: Clone> TreeNode<A> {
    /// Handles a message.
    pub fn receive<R: Skynet<NodeAddr = A>>(
        &mut self,
        message: NodeMessage<A>,
        context: &mut R::NodeContext<'_>,
    ) -> Next {
        match message {
            NodeMessage::Start { level: 0, number, parent, .. } => {
                reply::<R>(parent, number);
                Next::Stop
            }
            NodeMessage::Start { level, number, self_ref, parent } => {
                self.parent = Some(parent);
                for child in 0..CHILDREN {
                    let node = R::spawn_child(context);
                    R::tell_node(
                        &node,
                        start(&node, level - 1, number * CHILDREN + child, Parent::Node(self_ref.clone())),
                    );
                }
                Next::Continue
            }
            NodeMessage::Sum(sum) => {
                self.sum += sum;
                self.outstanding -= 1;
                if self.outstanding != 0 {
                    return Next::Continue;
                }
                if let Some(parent) = self.parent.take() {
                    reply::<R>(parent, self.sum);
                }
                Next::Stop
            }
        }
    }
}

/// Builds the first message of a node.
pub fn start<A: Clone>(self_ref: &A, level: u32, number: u64, parent: Parent<A>) -> NodeMessage<A> {
    NodeMessage::Start { level, number, self_ref: self_ref.clone(), parent }
}

fn reply<R: Skynet>(parent: Parent<R::NodeAddr>, sum: u64) {
    match parent {
        Parent::Node(parent) => R::tell_node(&parent, NodeMessage::Sum(sum)),
        // The receiver is only gone if the workload failed.
        Parent::Workload(workload) => drop(workload.send(sum)),
    }
}
