//! The workloads: name, description, contenders and headline metric of each.

use crate::runtime::Runtime;
use crate::runtimes;
use crate::sample::{Sample, SampleError};
use crate::settings::Settings;
use crate::skynet::Skynet;
use crate::workloads::{ask, fan, flood, latency, register, skynet, spawn, wake};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One producer tells one actor.
    Tell1,
    /// Four producers tell one actor.
    Mpsc4,
    /// One task asks one actor.
    Ask,
    /// Four producers tell 10 actors.
    Fan10,
    /// Four producers tell 100 actors.
    Fan100,
    /// Four producers tell 1000 actors.
    Fan1000,
    /// A tree of a million leaves.
    Skynet,
    /// Actors that start and receive no message.
    Spawn,
    /// Memory of an idle actor.
    Heap,
    /// A thread outside the runtime tells an idle actor.
    Wake,
    /// Latency from send to receive, 1 actor.
    Latency1,
    /// Latency from send to receive, 10 actors.
    Latency10,
    /// Latency from send to receive, 100 actors.
    Latency100,
    /// Latency from send to receive, 1000 actors.
    Latency1000,
    /// Round trips to a quiet actor while tasks flood another one.
    FloodTasks,
    /// Round trips to a quiet actor while a thread outside the runtime floods another one.
    FloodThread,
    /// Data structures that track which mailboxes are ready.
    Register,
}

/// Returns the bytes of heap in use; only `actor-mem` counts them.
pub type HeapGauge = fn() -> usize;

/// A runtime, or a data structure in the workload `register`.
pub struct Contender {
    /// Name on the command line and in tables.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    pub run: fn(Workload, &Settings, Option<HeapGauge>) -> Result<Sample, SampleError>,
}

/// The headline metric of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// Name in a sample.
    pub name: &'static str,
    /// Unit, used as the column heading.
    pub unit: &'static str,
    pub better: Better,
}

/// Direction of improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

impl MetricSpec {
    const RATE: Self = Self { name: "rate", unit: "per second", better: Better::Higher };
    const LATENCY: Self = Self { name: "p50_us", unit: "p50 µs", better: Better::Lower };
    const TAIL_LATENCY: Self = Self { name: "p99_us", unit: "p99 µs", better: Better::Lower };
    const HEAP: Self = Self { name: "heap_bytes", unit: "bytes", better: Better::Lower };
    const TIME_PER_OP: Self = Self { name: "ns_per_op", unit: "ns", better: Better::Lower };
}

impl Workload {
    /// All workloads, in table order.
    pub const ALL: [Self; 17] = [
        Self::Tell1,
        Self::Mpsc4,
        Self::Ask,
        Self::Fan10,
        Self::Fan100,
        Self::Fan1000,
        Self::Skynet,
        Self::Spawn,
        Self::Heap,
        Self::Wake,
        Self::Latency1,
        Self::Latency10,
        Self::Latency100,
        Self::Latency1000,
        Self::FloodTasks,
        Self::FloodThread,
        Self::Register,
    ];

    /// Parses a workload name.
    pub fn parse(name: &str) -> Result<Self, &'static str> {
        Self::ALL.into_iter().find(|workload| workload.name() == name).ok_or("unknown workload")
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tell1 => "tell1",
            Self::Mpsc4 => "mpsc4",
            Self::Ask => "ask",
            Self::Fan10 => "fan10",
            Self::Fan100 => "fan100",
            Self::Fan1000 => "fan1000",
            Self::Skynet => "skynet",
            Self::Spawn => "spawn",
            Self::Heap => "heap",
            Self::Wake => "wake",
            Self::Latency1 => "lat1",
            Self::Latency10 => "lat10",
            Self::Latency100 => "lat100",
            Self::Latency1000 => "lat1000",
            Self::FloodTasks => "flood-tasks",
            Self::FloodThread => "flood-thread",
            Self::Register => "register",
        }
    }

    /// Returns a short description.
    pub fn about(self) -> &'static str {
        match self {
            Self::Tell1 => "one producer tells one actor 1 M times",
            Self::Mpsc4 => "four producers tell one actor 1 M times",
            Self::Ask => "one task asks one actor 200 k times, one ask in flight",
            Self::Fan10 => "four producers tell each of 10 actors 100 k times",
            Self::Fan100 => "four producers tell each of 100 actors 10 k times",
            Self::Fan1000 => "four producers tell each of 1000 actors 1 k times",
            Self::Skynet => "a tree of 1 M leaf actors, ten children per node, summed up",
            Self::Spawn => "100 k actors start",
            Self::Heap => "bytes of heap per idle actor, of 100 k",
            Self::Wake => "a thread outside the runtime tells an idle actor 10 k times; latency to receive",
            Self::Latency1 => "four producers in bursts of 64; latency to receive, 1 actor",
            Self::Latency10 => "four producers in bursts of 64; latency to receive, 10 actors",
            Self::Latency100 => "four producers in bursts of 64; latency to receive, 100 actors",
            Self::Latency1000 => "four producers in bursts of 64; latency to receive, 1000 actors",
            Self::FloodTasks => {
                "a task asks a quiet actor 2 k times while two tasks flood another; round trip"
            }
            Self::FloodThread => {
                "a task asks a quiet actor 2 k times while a thread floods another; round trip"
            }
            Self::Register => "ten threads mark mailboxes as ready; time per mark",
        }
    }

    /// Returns the headline metric.
    pub fn metric(self) -> MetricSpec {
        match self {
            Self::Tell1
            | Self::Mpsc4
            | Self::Ask
            | Self::Fan10
            | Self::Fan100
            | Self::Fan1000
            | Self::Skynet
            | Self::Spawn => MetricSpec::RATE,
            Self::Wake | Self::Latency1 | Self::Latency10 | Self::Latency100 | Self::Latency1000 => {
                MetricSpec::LATENCY
            }
            Self::FloodTasks | Self::FloodThread => MetricSpec::TAIL_LATENCY,
            Self::Heap => MetricSpec::HEAP,
            Self::Register => MetricSpec::TIME_PER_OP,
        }
    }

    /// Returns the contenders, the baseline first.
    pub fn contenders(self) -> &'static [Contender] {
        if self == Self::Register { register::CONTENDERS } else { runtimes::ALL }
    }
}

/// Runs a workload on a runtime whose actors can spawn actors.
pub fn run<R: Skynet>(
    workload: Workload,
    settings: &Settings,
    heap: Option<HeapGauge>,
) -> Result<Sample, SampleError> {
    if workload == Workload::Skynet {
        skynet::run::<R>(settings)
    } else {
        run_flat::<R>(workload, settings, heap)
    }
}

/// Runs a workload on a runtime whose actors cannot spawn actors.
pub fn run_flat<R: Runtime>(
    workload: Workload,
    settings: &Settings,
    heap: Option<HeapGauge>,
) -> Result<Sample, SampleError> {
    match workload {
        Workload::Tell1 => fan::run::<R>(settings, fan::FanShape::TELL1),
        Workload::Mpsc4 => fan::run::<R>(settings, fan::FanShape::MPSC4),
        Workload::Fan10 => fan::run::<R>(settings, fan::FanShape::FAN10),
        Workload::Fan100 => fan::run::<R>(settings, fan::FanShape::FAN100),
        Workload::Fan1000 => fan::run::<R>(settings, fan::FanShape::FAN1000),
        Workload::Ask => ask::run::<R>(settings),
        Workload::Skynet => Err(SampleError::Unsupported("its actors cannot spawn actors")),
        Workload::Spawn => spawn::run::<R>(settings),
        Workload::Heap => match heap {
            Some(gauge) => spawn::measure_heap::<R>(settings, gauge),
            None => Err(SampleError::Unsupported("only actor-mem counts bytes")),
        },
        Workload::Wake => wake::run::<R>(settings),
        Workload::Latency1 => latency::run::<R>(settings, 1),
        Workload::Latency10 => latency::run::<R>(settings, 10),
        Workload::Latency100 => latency::run::<R>(settings, 100),
        Workload::Latency1000 => latency::run::<R>(settings, 1000),
        Workload::FloodTasks => flood::run::<R>(settings, flood::Flood::Tasks),
        Workload::FloodThread => flood::run::<R>(settings, flood::Flood::Thread),
        Workload::Register => Err(SampleError::Unsupported("register compares sets, not runtimes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_name_parses() {
        for workload in Workload::ALL {
            assert_eq!(Workload::parse(workload.name()), Ok(workload));
        }
        assert_eq!(Workload::parse("tell2"), Err("unknown workload"));
    }

    #[test]
    fn contender_names_are_unique() {
        for workload in Workload::ALL {
            let mut names: Vec<_> = workload.contenders().iter().map(|contender| contender.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
