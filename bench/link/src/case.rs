//! The cases: sets of paths.

use std::time::Duration;

use evenkeel_test_network::PathSpec;

/// Paths that every contender is measured on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCase {
    pub(crate) name: &'static str,
    pub(crate) paths: &'static [PathSpec],
}

impl LinkCase {
    /// All cases, in table order.
    pub(crate) const ALL: &[Self] = &[
        Self { name: "A", paths: &[path(50.0, 10), path(50.0, 10)] },
        Self { name: "B", paths: &[path(50.0, 10), path(20.0, 30)] },
        Self { name: "C", paths: &[path(50.0, 10), path(50.0, 100)] },
        Self { name: "D", paths: &[path(10.0, 5), path(100.0, 40)] },
    ];

    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let case = Self::ALL.iter().find(|case| case.name == name);
        case.copied().ok_or_else(|| format!("unknown case; expected one of {}", Self::names().join(", ")))
    }

    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|case| case.name).collect()
    }

    /// Describes the paths: rate in Mbit/s and delay of one direction in ms.
    pub(crate) fn about(&self) -> String {
        let about = |path: &PathSpec| {
            format!("{}/{}", path.rate_mbit.unwrap_or(f64::INFINITY), path.one_way.as_millis())
        };
        self.paths.iter().map(about).collect::<Vec<_>>().join(" + ")
    }

    /// Returns the sum of the paths' rates.
    pub(crate) fn sum_mbit(&self) -> f64 {
        self.paths.iter().filter_map(|path| path.rate_mbit).sum()
    }
}

/// Creates a path with a queue of 50 ms.
const fn path(rate_mbit: f64, one_way_ms: u64) -> PathSpec {
    PathSpec::new(rate_mbit, Duration::from_millis(one_way_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_described_by_its_paths() {
        let case = LinkCase::parse("D").unwrap();
        assert_eq!(case.about(), "10/5 + 100/40");
        assert!((case.sum_mbit() - 110.0).abs() < 1e-9);
        assert_eq!(LinkCase::parse("H").unwrap_err(), "unknown case; expected one of A, B, C, D");
    }
}
