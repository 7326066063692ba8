//! The middle of some figures, and the middles of their halves.

/// The middle of some figures, and the middles of their halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the figures is below.
    pub lower: f64,
    /// Half of the figures is below.
    pub median: f64,
    /// A quarter of the figures is above.
    pub upper: f64,
}

impl Quartiles {
    /// Sorts the figures; between two of them it takes a point on the line from one to the other.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<_> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        let last = figures.len().checked_sub(1)? as f64;
        let at = |part: f64| {
            let place = part * last;
            let below = figures[place.floor() as usize];
            let above = figures[place.ceil() as usize];
            below + (above - below) * place.fract()
        };
        Some(Self { lower: at(0.25), median: at(0.5), upper: at(0.75) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_figures() {
        let quartiles = Quartiles { lower: 1.75, median: 2.5, upper: 3.25 };
        assert_eq!(Quartiles::of([4.0, 1.0, 3.0, 2.0]), Some(quartiles));
        assert_eq!(Quartiles::of([7.0]), Some(Quartiles { lower: 7.0, median: 7.0, upper: 7.0 }));
    }

    #[test]
    fn nothing_has_no_middle() {
        assert_eq!(Quartiles::of([]), None);
        assert_eq!(Quartiles::of([f64::NAN, f64::INFINITY]), None);
    }
}
