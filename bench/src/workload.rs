//! The workloads: what each is called, what it does, who contends in it, and which figure decides.

use crate::runtime::Runtime;
use crate::runtimes;
use crate::sample::{NoSample, Sample};
use crate::settings::Settings;
use crate::skynet::Skynet;
use crate::workloads::{ask, fan, latency, register, skynet, spawn, wake};

/// A workload.
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
    /// Actors that only start.
    Spawn,
    /// Memory of an idle actor.
    Heap,
    /// A foreign thread tells an idle actor.
    Wake,
    /// Delays from send to receive, 1 actor.
    Latency1,
    /// Delays from send to receive, 10 actors.
    Latency10,
    /// Delays from send to receive, 100 actors.
    Latency100,
    /// Delays from send to receive, 1000 actors.
    Latency1000,
    /// Ways to remember that a mailbox is ready.
    Register,
}

/// Reads how many bytes of heap are in use; only `actor-mem` counts them.
pub type HeapGauge = fn() -> usize;

/// One of those that a workload compares.
pub struct Contender {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// What it is, in a phrase.
    pub about: &'static str,
    /// Runs a workload on it.
    pub run: fn(Workload, &Settings, Option<HeapGauge>) -> Result<Sample, NoSample>,
}

/// The figure by which a workload compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// Its name in a sample.
    pub name: &'static str,
    /// Its unit, as the head of a table names it.
    pub unit: &'static str,
    /// Which of two is the better one.
    pub better: Better,
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

impl MetricSpec {
    const RATE: Self = Self { name: "rate", unit: "per second", better: Better::Higher };
    const DELAY: Self = Self { name: "p50_us", unit: "p50 µs", better: Better::Lower };
    const HEAP: Self = Self { name: "heap_bytes", unit: "bytes", better: Better::Lower };
    const OP: Self = Self { name: "ns_per_op", unit: "ns", better: Better::Lower };
}

impl Workload {
    /// Every workload, in the order of the tables.
    pub const ALL: [Self; 15] = [
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
        Self::Register,
    ];

    /// Finds a workload by its name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Names it as on the command line.
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
            Self::Register => "register",
        }
    }

    /// Says what it does, in a phrase.
    pub fn about(self) -> &'static str {
        match self {
            Self::Tell1 => "one producer tells one actor 1 M times",
            Self::Mpsc4 => "four producers tell one actor 1 M times",
            Self::Ask => "one task asks one actor 200 k times, one question in flight",
            Self::Fan10 => "four producers tell each of 10 actors 100 k times",
            Self::Fan100 => "four producers tell each of 100 actors 10 k times",
            Self::Fan1000 => "four producers tell each of 1000 actors 1 k times",
            Self::Skynet => "a tree of 1 M leaf actors, ten children each, summed up",
            Self::Spawn => "100 k actors start",
            Self::Heap => "bytes of heap per idle actor, of 100 k",
            Self::Wake => "a foreign thread tells an idle actor 10 k times; delay to receive",
            Self::Latency1 => "four producers in bursts of 64; delay to receive, 1 actor",
            Self::Latency10 => "four producers in bursts of 64; delay to receive, 10 actors",
            Self::Latency100 => "four producers in bursts of 64; delay to receive, 100 actors",
            Self::Latency1000 => "four producers in bursts of 64; delay to receive, 1000 actors",
            Self::Register => "ten threads mark mailboxes as ready; time per mark",
        }
    }

    /// Names the figure by which it compares.
    pub fn figure(self) -> MetricSpec {
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
                MetricSpec::DELAY
            }
            Self::Heap => MetricSpec::HEAP,
            Self::Register => MetricSpec::OP,
        }
    }

    /// Lists who contends in it, the baseline first.
    pub fn contenders(self) -> &'static [Contender] {
        if self == Self::Register { register::CONTENDERS } else { runtimes::ALL }
    }
}

/// Runs a workload on a runtime whose actors can spawn actors.
pub fn run<R: Skynet>(
    workload: Workload,
    settings: &Settings,
    heap: Option<HeapGauge>,
) -> Result<Sample, NoSample> {
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
) -> Result<Sample, NoSample> {
    match workload {
        Workload::Tell1 => fan::run::<R>(settings, fan::FanShape::TELL1),
        Workload::Mpsc4 => fan::run::<R>(settings, fan::FanShape::MPSC4),
        Workload::Fan10 => fan::run::<R>(settings, fan::FanShape::FAN10),
        Workload::Fan100 => fan::run::<R>(settings, fan::FanShape::FAN100),
        Workload::Fan1000 => fan::run::<R>(settings, fan::FanShape::FAN1000),
        Workload::Ask => ask::run::<R>(settings),
        Workload::Skynet => Err(NoSample::Unsupported("its actors spawn no actors")),
        Workload::Spawn => spawn::run::<R>(settings),
        Workload::Heap => match heap {
            Some(gauge) => spawn::weigh::<R>(settings, gauge),
            None => Err(NoSample::Unsupported("only actor-mem counts bytes")),
        },
        Workload::Wake => wake::run::<R>(settings),
        Workload::Latency1 => latency::run::<R>(settings, 1),
        Workload::Latency10 => latency::run::<R>(settings, 10),
        Workload::Latency100 => latency::run::<R>(settings, 100),
        Workload::Latency1000 => latency::run::<R>(settings, 1000),
        Workload::Register => Err(NoSample::Unsupported("register compares sets, not runtimes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_found_by_its_own_name() {
        for workload in Workload::ALL {
            assert_eq!(Workload::find(workload.name()), Some(workload));
        }
        assert_eq!(Workload::find("tell2"), None);
    }

    #[test]
    fn contenders_have_names_of_their_own() {
        for workload in Workload::ALL {
            let mut names: Vec<_> = workload.contenders().iter().map(|contender| contender.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
