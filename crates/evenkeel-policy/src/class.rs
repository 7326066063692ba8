//! Classes: the priorities of the requests of one tenant, each with a minimum share of the tenant's service.
//!
//! Guarantees: the weights of the waiting classes add up to 1. A waiting class has at least its minimum share; the
//! highest one also has the rest: the share that is assigned to no class, and the shares of the classes that do not wait.

use core::fmt;
use core::str::FromStr;

use crate::weight::Weight;

/// Class of a request among the requests of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Work that can wait.
    Low,
    /// The class of a request that names none.
    #[default]
    Normal,
    /// Work that a person waits for.
    High,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = 3;
    /// All classes, lowest first; the position of a class is its number.
    pub const ALL: [Self; Self::COUNT] = [Self::Low, Self::Normal, Self::High];
    /// The names of all classes, for messages.
    pub const NAMES: &str = "high, normal and low";

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// Returns the index of this class in a table with one entry per class.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL.into_iter().find(|class| class.name() == name).ok_or(UnknownClass)
    }
}

/// Error for a name that no class has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the classes are {}", Class::NAMES)]
pub struct UnknownClass;

/// Minimum share of each class, in percent of its tenant's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassShares {
    /// By class number.
    percent: [u8; Class::COUNT],
}

impl ClassShares {
    /// Creates shares in percent: at least 1 each, at most 100 in total.
    pub fn new(high: u8, normal: u8, low: u8) -> Result<Self, InvalidShares> {
        let percent = [low, normal, high];
        let sum = percent.iter().map(|share| u32::from(*share)).sum();
        if percent.contains(&0) || 100 < sum {
            return Err(InvalidShares { high, normal, low, sum });
        }
        Ok(Self { percent })
    }

    /// Returns the minimum share of a class, in percent.
    pub const fn percent(&self, class: Class) -> u8 {
        self.percent[class.index()]
    }

    /// Returns the weight of a waiting class; `waiting` reports the waiting classes, by class number.
    pub fn weight(&self, class: Class, waiting: [bool; Class::COUNT]) -> Weight {
        let is_highest =
            Class::ALL.into_iter().filter(|other| waiting[other.index()]).all(|other| other <= class);
        let lower = Class::ALL.into_iter().filter(|other| *other < class && waiting[other.index()]);
        let percent = if is_highest {
            100 - lower.map(|other| u32::from(self.percent(other))).sum::<u32>()
        } else {
            u32::from(self.percent(class))
        };
        // Between 1 and 100 percent, which is a valid weight.
        Weight::new(f64::from(percent) / 100.0).unwrap_or(Weight::MIN)
    }
}

/// 60 % for high, 30 % for normal, 10 % for low.
impl Default for ClassShares {
    fn default() -> Self {
        Self { percent: [10, 30, 60] }
    }
}

/// Error for shares of which one is 0, or that add up to more than 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "each class needs a share of at least 1 % and all of them at most 100 % (high {high}, normal {normal}, low {low}: {sum} %)"
)]
pub struct InvalidShares {
    /// Share of the class `high`.
    pub high: u8,
    /// Share of the class `normal`.
    pub normal: u8,
    /// Share of the class `low`.
    pub low: u8,
    /// Sum of the shares.
    pub sum: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_highest_waiting_class_has_the_rest() {
        let shares = ClassShares::new(50, 20, 5).unwrap();
        let weights = |waiting: [bool; 3]| {
            let waits = Class::ALL.into_iter().filter(|class| waiting[class.index()]);
            waits.map(|class| shares.weight(class, waiting).millis()).collect::<alloc::vec::Vec<_>>()
        };
        assert_eq!(weights([true, true, true]), [50, 200, 750]);
        assert_eq!(weights([true, false, true]), [50, 950]);
        assert_eq!(weights([true, true, false]), [50, 950]);
        assert_eq!(weights([false, true, true]), [200, 800]);
        for alone in [[true, false, false], [false, true, false], [false, false, true]] {
            assert_eq!(weights(alone), [1_000]);
        }
    }

    #[test]
    fn shares_of_0_or_above_100_percent_are_rejected() {
        assert!(ClassShares::new(60, 30, 10).is_ok_and(|shares| shares == ClassShares::default()));
        assert!(ClassShares::new(98, 1, 1).is_ok());
        let error = ClassShares::new(60, 30, 11).unwrap_err();
        assert_eq!(
            error.to_string(),
            "each class needs a share of at least 1 % and all of them at most 100 % (high 60, normal 30, low 11: 101 %)"
        );
        assert!(ClassShares::new(60, 30, 0).is_err() && ClassShares::new(255, 255, 255).is_err());
    }

    #[test]
    fn a_class_is_parsed_by_its_exact_name() {
        for class in Class::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        for name in ["", "High", "urgent", "1"] {
            let error = name.parse::<Class>().unwrap_err();
            assert_eq!(error.to_string(), "the classes are high, normal and low");
        }
    }
}
