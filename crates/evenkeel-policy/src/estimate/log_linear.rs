//! Log-linear bucketing, as in HDR histograms: linear up to `2^STEP_BITS`, then `2^STEP_BITS` buckets per doubling.
//!
//! Guarantees: the buckets cover every value without gaps or overlaps, in order, and a bucket's width is at most
//! `1 / 2^STEP_BITS` of any value in it (1 in the linear part).

use core::ops::Range;

/// Returns the index of the bucket that holds `value`.
pub(super) fn index<const STEP_BITS: u32>(value: u64) -> usize {
    if value < 1 << STEP_BITS {
        return value as usize;
    }
    let octave = value.ilog2() - STEP_BITS;
    ((octave as usize) << STEP_BITS) + (value >> octave) as usize
}

/// Returns the values that the bucket at `index` holds.
pub(super) fn range<const STEP_BITS: u32>(index: usize) -> Range<u64> {
    let index = index as u64;
    let octave = (index >> STEP_BITS).saturating_sub(1);
    let start = (index - (octave << STEP_BITS)) << octave;
    start..start + (1 << octave)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        check::<1>();
        check::<4>();
    }

    fn check<const STEP_BITS: u32>() {
        let mut end = 0;
        for bucket in 0..500 / (1 << (4 - STEP_BITS)) {
            let values = range::<STEP_BITS>(bucket);
            assert_eq!(values.start, end);
            assert_eq!(index::<STEP_BITS>(values.start), bucket);
            assert_eq!(index::<STEP_BITS>(values.end - 1), bucket);
            end = values.end;
        }
    }
}
