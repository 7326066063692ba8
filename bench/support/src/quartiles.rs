//! Quartiles.

/// Median and quartiles of a set of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// The first quartile.
    pub lower: f64,
    /// The second quartile.
    pub median: f64,
    /// The third quartile.
    pub upper: f64,
}

impl Quartiles {
    /// Computes the quartiles with linear interpolation; ignores values that are not finite.
    ///
    /// `None` if no value is left.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)? as f64;
        let quantile = |part: f64| {
            let position = part * last;
            let below = values[position.floor() as usize];
            let above = values[position.ceil() as usize];
            below + (above - below) * position.fract()
        };
        Some(Self { lower: quantile(0.25), median: quantile(0.5), upper: quantile(0.75) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        let quartiles = Quartiles { lower: 1.75, median: 2.5, upper: 3.25 };
        assert_eq!(Quartiles::from_values([4.0, 1.0, 3.0, 2.0]), Some(quartiles));
        assert_eq!(Quartiles::from_values([7.0]), Some(Quartiles { lower: 7.0, median: 7.0, upper: 7.0 }));
    }

    #[test]
    fn no_finite_values_have_no_quartiles() {
        assert_eq!(Quartiles::from_values([]), None);
        assert_eq!(Quartiles::from_values([f64::NAN, f64::INFINITY]), None);
    }
}
