//! The cases: paths, and what happens on them.

use std::time::Duration;

use evenkeel_test_network::{Jitter, Limiter, PacketLoss, PathSpec};

/// Paths that every contender of a case is measured on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCase {
    pub(crate) name: &'static str,
    pub(crate) paths: &'static [PathSpec],
    pub(crate) kind: CaseKind,
}

/// Measurement of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseKind {
    /// One stream over all paths.
    Multipath,
    /// The same; afterwards a path becomes a black hole.
    FailOver,
    /// One stream over one path.
    SinglePath,
    /// One stream beside a kernel Cubic flow, over one path.
    Shared,
    /// One stream over all paths, while path 1 is a black hole every other [`FLAP_PERIOD`](crate::turn::FLAP_PERIOD).
    Flapping,
}

impl LinkCase {
    /// All cases, in table order.
    pub(crate) const ALL: &[Self] = &[
        fail_over("A", &[path(50.0, 10), path(50.0, 10)]),
        fail_over("B", &[path(50.0, 10), path(20.0, 30)]),
        fail_over("C", &[path(50.0, 10), path(50.0, 100)]),
        fail_over("D", &[path(10.0, 5), path(100.0, 40)]),
        multipath("E", &[path(50.0, 10), path(50.0, 30).with_loss(0.01)]),
        multipath("F", &[path(50.0, 5), path(30.0, 20), path(10.0, 80).with_loss(0.001)]),
        multipath("G", &[path(300.0, 10), path(80.0, 30)]),
        multipath("H", &[path(50.0, 10), path(2.0, 300).with_loss(0.03)]),
        single("loss", &[path(50.0, 30).with_loss(0.01)]),
        single("bursts", &[PathSpec { loss: BURSTS, ..path(50.0, 30) }]),
        single("reordering", &[PathSpec { jitter: Jitter::Reordering(ms(5)), ..path(50.0, 30) }]),
        single("policer", &[PathSpec { limiter: Limiter::Policer, ..path(50.0, 30) }]),
        shared("shared-5ms", &[path(50.0, 10).with_queue(ms(5))]),
        shared("shared-50ms", &[path(50.0, 10).with_queue(ms(50))]),
        Self { name: "flapping", paths: &[path(50.0, 10), path(20.0, 30)], kind: CaseKind::Flapping },
    ];

    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let case = Self::ALL.iter().find(|case| case.name == name);
        case.copied().ok_or_else(|| format!("unknown case; expected one of {}", Self::names().join(", ")))
    }

    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|case| case.name).collect()
    }

    /// Describes the paths: rate in Mbit/s, delay of one direction in ms, and what is unusual.
    pub(crate) fn about(&self) -> String {
        let paths = self.paths.iter().map(about).collect::<Vec<_>>().join(" + ");
        match self.kind {
            CaseKind::Multipath | CaseKind::FailOver | CaseKind::SinglePath => paths,
            CaseKind::Shared => {
                format!("{paths} with {} ms of queue, beside kernel Cubic", self.paths[0].queue.as_millis())
            }
            CaseKind::Flapping => format!("{paths}, path 1 flaps every 2 s"),
        }
    }

    /// Returns the sum of the paths' rates.
    pub(crate) fn sum_mbit(&self) -> f64 {
        self.paths.iter().filter_map(|path| path.rate_mbit).sum()
    }
}

/// 1 % of the packets, eight at a time.
const BURSTS: PacketLoss = PacketLoss::Bursts { ratio: 0.01, length_mean: 8.0 };

const fn fail_over(name: &'static str, paths: &'static [PathSpec]) -> LinkCase {
    LinkCase { name, paths, kind: CaseKind::FailOver }
}

const fn multipath(name: &'static str, paths: &'static [PathSpec]) -> LinkCase {
    LinkCase { name, paths, kind: CaseKind::Multipath }
}

const fn single(name: &'static str, paths: &'static [PathSpec]) -> LinkCase {
    LinkCase { name, paths, kind: CaseKind::SinglePath }
}

const fn shared(name: &'static str, paths: &'static [PathSpec]) -> LinkCase {
    LinkCase { name, paths, kind: CaseKind::Shared }
}

/// Creates a path with a queue of 50 ms.
const fn path(rate_mbit: f64, one_way_ms: u64) -> PathSpec {
    PathSpec::new(rate_mbit, ms(one_way_ms))
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn about(path: &PathSpec) -> String {
    let mut text = format!("{}/{}", path.rate_mbit.unwrap_or(f64::INFINITY), path.one_way.as_millis());
    match path.loss {
        PacketLoss::None => {}
        PacketLoss::Independent(ratio) => text += &format!(" with {} % loss", ratio * 100.0),
        PacketLoss::Bursts { ratio, length_mean } => {
            text += &format!(" with {} % loss in bursts of {length_mean}", ratio * 100.0);
        }
    }
    match path.jitter {
        Jitter::None => {}
        Jitter::InOrder(jitter) => text += &format!(" with {} ms jitter", jitter.as_millis()),
        Jitter::Reordering(jitter) => text += &format!(" with {} ms reordering jitter", jitter.as_millis()),
    }
    if path.limiter == Limiter::Policer {
        text += &format!(" with a policer (bucket of {} ms)", path.queue.as_millis());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_described_by_its_paths() {
        let case = LinkCase::parse("D").unwrap();
        assert_eq!(case.about(), "10/5 + 100/40");
        assert!((case.sum_mbit() - 110.0).abs() < 1e-9);
        for (name, about) in [
            ("F", "50/5 + 30/20 + 10/80 with 0.1 % loss"),
            ("bursts", "50/30 with 1 % loss in bursts of 8"),
            ("reordering", "50/30 with 5 ms reordering jitter"),
            ("policer", "50/30 with a policer (bucket of 50 ms)"),
            ("shared-5ms", "50/10 with 5 ms of queue, beside kernel Cubic"),
            ("flapping", "50/10 + 20/30, path 1 flaps every 2 s"),
        ] {
            assert_eq!(LinkCase::parse(name).unwrap().about(), about);
        }
    }

    #[test]
    fn an_unknown_case_is_answered_with_the_known_ones() {
        let error = LinkCase::parse("Z").unwrap_err();
        assert!(error.starts_with("unknown case; expected one of A, B, C, D, E, F, G, H, loss,"), "{error}");
    }
}
