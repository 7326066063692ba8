//! Classes and sessions: the order of the requests of one tenant. Each class has a minimum share of the tenant's service.
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

/// Identifies a session of a tenant, such as one agent or one conversation: a hash of the name that the client gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Flow of a request among the requests of its tenant.
///
/// A tenant's classes share its service by their minimum shares, the sessions of a class share it equally, and the
/// requests of one flow are served in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantFlow {
    /// The session; requests without one are scheduled as one session.
    pub session: Option<SessionId>,
    /// The class.
    pub class: Class,
}

/// Classes that the requests of a client may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRule {
    /// Class of a request that names none.
    pub default: Class,
    /// Highest class; a request that names a higher one has this class.
    pub max: Class,
}

impl ClassRule {
    /// Creates a rule; without `max`, a `default` is also the highest class.
    pub fn new(default: Option<Class>, max: Option<Class>) -> Result<Self, DefaultAboveMax> {
        let max = max.or(default).unwrap_or(Class::High);
        let default = default.unwrap_or_else(|| Class::Normal.min(max));
        if max < default {
            return Err(DefaultAboveMax { default, max });
        }
        Ok(Self { default, max })
    }

    /// Returns the class of a request that names `requested`.
    pub fn class(&self, requested: Option<Class>) -> Class {
        requested.unwrap_or(self.default).min(self.max)
    }
}

/// Normal by default, high at most.
impl Default for ClassRule {
    fn default() -> Self {
        Self { default: Class::Normal, max: Class::High }
    }
}

/// Error for a rule whose default is above its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("priority {default} is above priority_max {max}")]
pub struct DefaultAboveMax {
    /// The default class.
    pub default: Class,
    /// The highest class.
    pub max: Class,
}

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
    fn a_configured_class_is_the_highest_unless_a_higher_one_is_allowed() {
        use Class::{High, Low, Normal};
        let class = |default, max, requested| ClassRule::new(default, max).unwrap().class(requested);
        assert_eq!(
            [None, Some(High), Some(Low)].map(|requested| class(None, None, requested)),
            [Normal, High, Low]
        );
        assert_eq!([None, Some(High)].map(|requested| class(Some(Low), None, requested)), [Low, Low]);
        assert_eq!(
            [None, Some(High)].map(|requested| class(Some(Low), Some(Normal), requested)),
            [Low, Normal]
        );
        assert_eq!([None, Some(High)].map(|requested| class(None, Some(Low), requested)), [Low, Low]);
        assert_eq!([None, Some(Low)].map(|requested| class(Some(High), None, requested)), [High, Low]);
        let error = ClassRule::new(Some(High), Some(Normal)).unwrap_err();
        assert_eq!(error.to_string(), "priority high is above priority_max normal");
        assert_eq!(ClassRule::new(None, None), Ok(ClassRule::default()));
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
