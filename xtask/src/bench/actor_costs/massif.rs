//! Reads from massif's output which component of the actor runtime allocated how much of the heap.
//!
//! massif prints the heap at its peak as a tree: a node is a call that allocated bytes, its children are the callers.
//! The bytes of a node belong to the component of the innermost call in a file of `evenkeel-actor`, so a buffer that a
//! `Vec` of the mailbox allocates belongs to the mailbox. A part that is stored inside another one's allocation, such
//! as the empty mailbox in the cell, belongs to the latter.

use crate::error::TaskError;
use std::collections::BTreeMap;

/// A part of the actor runtime, named in the tables and in the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Component {
    /// The allocation of a cell: the actor's value, the empty mailbox, and the header.
    Cell,
    /// State of a cell that few actors need: timers, children, watches, stash, futures.
    Extra,
    /// The buffers of a mailbox.
    Mailbox,
    /// The slots of the cells.
    Registry,
    /// Ready queues, the coordinator, and tracking of idle workers.
    ReadyQueue,
    /// The workers' tasks and their private state.
    Workers,
    TimingWheel,
    /// The metrics hub: labels, and counters by label and worker.
    Metrics,
    DeadLetters,
    Names,
    /// Everything else, such as the system's shared state.
    Other,
}

impl Component {
    pub(super) const ALL: [Self; 11] = [
        Self::Cell,
        Self::Extra,
        Self::Mailbox,
        Self::Registry,
        Self::ReadyQueue,
        Self::Workers,
        Self::TimingWheel,
        Self::Metrics,
        Self::DeadLetters,
        Self::Names,
        Self::Other,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Extra => "optional state",
            Self::Mailbox => "mailbox",
            Self::Registry => "registry",
            Self::ReadyQueue => "ready queue",
            Self::Workers => "workers",
            Self::TimingWheel => "timing wheel",
            Self::Metrics => "metrics",
            Self::DeadLetters => "dead letters",
            Self::Names => "names",
            Self::Other => "other",
        }
    }
}

/// Bytes by component.
pub(super) type Heap = BTreeMap<Component, u64>;

/// The files of `evenkeel-actor`, relative to its `src/`, by their beginnings; the first match decides.
const FILES: &[(&str, Component)] = &[
    ("cell.rs", Component::Cell),
    ("raw/run_permit.rs", Component::Cell),
    ("actor.rs", Component::Extra),
    ("context.rs", Component::Extra),
    ("guardian", Component::Extra),
    ("invoker", Component::Extra),
    ("stash.rs", Component::Extra),
    ("mailbox", Component::Mailbox),
    ("room_wait.rs", Component::Mailbox),
    ("raw/slab.rs", Component::Registry),
    ("coordinator", Component::ReadyQueue),
    ("idle_workers.rs", Component::ReadyQueue),
    ("ready", Component::ReadyQueue),
    ("worker_slots.rs", Component::ReadyQueue),
    ("executor", Component::Workers),
    ("worker_local.rs", Component::Workers),
    ("timer", Component::TimingWheel),
    ("timing_wheel", Component::TimingWheel),
    ("hub", Component::Metrics),
    ("system_metrics.rs", Component::Metrics),
    ("dead_letter", Component::DeadLetters),
    ("name_registry.rs", Component::Names),
];

/// Files whose functions only call a function of their caller.
const WRAPPERS: &[&str] = &["ignore_panic.rs", "panic.rs", "sync.rs"];

/// The part of the path before a file of the crate.
const ACTOR_SOURCES: &str = "/evenkeel-actor/src/";
/// Allocations of the case itself, and those of the test runtime, which stands in for the host.
const NOT_COUNTED: &[&str] = &["/evenkeel-bench/src/", "/evenkeel-actor/src/runtime/test"];

/// The owner of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Component(Component),
    /// The case, or the test runtime.
    Outside,
}

/// Sums the peak of the heap by component.
pub(super) fn parse(text: &str) -> Result<Heap, TaskError> {
    let (_, peak) = text
        .split_once("heap_tree=peak\n")
        .ok_or_else(|| TaskError::new("massif's output has no snapshot of the peak"))?;
    let mut lines = peak.lines().take_while(|line| !line.starts_with('#')).peekable();
    let root = lines.next().and_then(CallNode::parse);
    let root = root.ok_or_else(|| TaskError::new("massif's snapshot of the peak has no tree"))?;
    let mut heap = Heap::new();
    let mut attributed = 0;
    while let Some(line) = lines.next() {
        let node = CallNode::parse(line)
            .ok_or_else(|| TaskError::new(format!("unexpected line in massif's output: `{line}`")))?;
        let owner = node.owner();
        if owner.is_none() && node.callers != 0 {
            continue;
        }
        // The callers of a call that has an owner are of no interest.
        while lines.next_if(|line| node.depth < depth(line)).is_some() {}
        attributed += node.bytes;
        if let Owner::Component(component) = owner.unwrap_or(Owner::Component(Component::Other)) {
            *heap.entry(component).or_default() += node.bytes;
        }
    }
    if attributed != root.bytes {
        let bytes = root.bytes;
        return Err(TaskError::new(format!(
            "massif's tree has {attributed} bytes in its leaves, not {bytes}"
        )));
    }
    Ok(heap)
}

/// A line of the tree, such as ` n1: 4096 0x2310EE: with_capacity<u8> (/rustc/library/alloc/src/vec/mod.rs:524)`.
#[derive(Debug, PartialEq)]
struct CallNode<'a> {
    depth: usize,
    callers: u32,
    bytes: u64,
    call: &'a str,
}

impl<'a> CallNode<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (callers, rest) = line.trim_start().strip_prefix('n')?.split_once(": ")?;
        let (bytes, call) = rest.split_once(' ')?;
        Some(Self { depth: depth(line), callers: callers.parse().ok()?, bytes: bytes.parse().ok()?, call })
    }

    /// Returns the owner of what this call allocates; `None` if one of its callers decides.
    fn owner(&self) -> Option<Owner> {
        let (_, path) = self.call.rsplit_once('(')?;
        if NOT_COUNTED.iter().any(|sources| path.contains(sources)) {
            return Some(Owner::Outside);
        }
        let (_, file) = path.split_once(ACTOR_SOURCES)?;
        if WRAPPERS.iter().any(|wrapper| file.starts_with(wrapper)) {
            return None;
        }
        let component = FILES.iter().find(|(beginning, _)| file.starts_with(beginning));
        Some(Owner::Component(component.map_or(Component::Other, |(_, component)| *component)))
    }
}

/// Returns the number of spaces before a line, which is the number of its callees in the tree.
fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Written by valgrind 3.19 with `--depth=3`, without the snapshots before the peak.
    const RECORDED: &str = include_str!("massif/after-message.massif");

    #[test]
    fn a_recorded_heap_is_divided_by_component_without_what_the_case_allocated() {
        let heap = Heap::from([
            (Component::Cell, 1_638_400),
            (Component::Registry, 490_240),
            // The buffers of the mailboxes, whose callers are deeper than this file is, and small allocations.
            (Component::Other, 262_144 + 238_463),
        ]);
        assert_eq!(parse(RECORDED), Ok(heap));
    }

    #[test]
    fn the_innermost_call_in_the_runtime_owns_an_allocation() {
        for (call, owner) in [
            ("alloc (/rustc/59807616/library/alloc/src/alloc.rs:95)", None),
            ("main (in /src/evenkeel/target/release/actor-costs)", None),
            ("intern (/src/evenkeel/crates/evenkeel-policy/src/interner.rs:60)", None),
            ("with<T> (/src/evenkeel/crates/evenkeel-actor/src/sync.rs:81)", None),
            (
                "{closure#0}<(), ()> (/src/evenkeel/crates/evenkeel-actor/src/mailbox/queues.rs:404)",
                Some(Owner::Component(Component::Mailbox)),
            ),
            (
                "start (/src/evenkeel/crates/evenkeel-actor/src/system/scheduler.rs:78)",
                Some(Owner::Component(Component::Other)),
            ),
            (
                "poll (/src/evenkeel/crates/evenkeel-actor/src/runtime/test/schedule.rs:179)",
                Some(Owner::Outside),
            ),
            ("idle (/src/evenkeel/crates/evenkeel-bench/src/actor_costs/memory.rs:48)", Some(Owner::Outside)),
        ] {
            assert_eq!(CallNode { depth: 1, callers: 1, bytes: 8, call }.owner(), owner, "{call}");
        }
    }

    #[test]
    fn an_incomplete_file_is_rejected() {
        for (text, message) in [
            (RECORDED.replace("heap_tree=peak", "heap_tree=empty"), "no snapshot of the peak"),
            (
                RECORDED.replace("n1: 1638400 0x1ADDEE: Unknown", "n1: many 0x1ADDEE: Unknown"),
                "unexpected line",
            ),
            (
                RECORDED.replace("n0: 238463 in", "n0: 238462 in"),
                "1076567678 bytes in its leaves, not 1076567679",
            ),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn every_file_of_a_component_exists() {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/evenkeel-actor/src");
        let files: Vec<_> = ["", "raw/"]
            .into_iter()
            .flat_map(|directory| {
                let entries = fs::read_dir(format!("{sources}/{directory}")).unwrap();
                entries.map(move |entry| format!("{directory}{}", entry.unwrap().file_name().display()))
            })
            .collect();
        for beginning in FILES.iter().map(|(beginning, _)| beginning).chain(WRAPPERS) {
            assert!(files.iter().any(|file| file.starts_with(beginning)), "no file begins with {beginning}");
        }
    }
}
