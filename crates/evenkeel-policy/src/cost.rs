//! Cost of a piece of work, in the unit of its pool.
//!
//! A plain message costs [`Cost::MESSAGE`] (1000 units); the APIs charge the actual amount of work: tokens, bytes,
//! milliseconds. Sums saturate instead of overflowing; a single charge counts as at most [`Cost::MAX`].

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

/// Amount of service, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self(0);
    /// Cost of one plain message; with the default quantum, a key of weight 1 sends one per round.
    pub const MESSAGE: Self = Self(1_000);
    /// Maximum single charge; larger amounts count as this much.
    pub const MAX: Self = Self(1_000_000_000_000);
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Subtracts down to zero, never below.
impl Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn costs_add_up_and_never_go_below_zero() {
        let mut total: Cost = [Cost(2), Cost(3)].into_iter().sum();
        total += Cost(1);
        assert_eq!(total, Cost(6));
        assert_eq!(Cost(2) - Cost(3), Cost::ZERO);
        assert_eq!(Cost(5) - Cost(3), Cost(2));
        assert_eq!(Cost(u64::MAX) + Cost(1), Cost(u64::MAX));
        assert_eq!(Cost(12).to_string(), "12");
    }
}
