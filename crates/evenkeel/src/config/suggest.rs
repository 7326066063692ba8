//! What somebody meant who wrote what nobody knows.

/// Finds the known name closest to `name`, if one is close enough to be meant.
pub(super) fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &'a str| (distance(name, known), known);
    let (steps, found) = known.into_iter().map(near).min()?;
    (steps <= name.len().min(found.len()).div_ceil(3)).then_some(found)
}

/// Counts the letters to insert, to delete or to replace.
fn distance(from: &str, to: &str) -> usize {
    // A name that long is nobody's typo.
    if 64 < from.len() {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_seen_through_and_another_word_is_not() {
        let known = ["max_waiting", "default_timeout_secs", "ttl_secs"];
        assert_eq!(closest("max_wating", known), Some("max_waiting"));
        assert_eq!(closest("default_timeout", known), Some("default_timeout_secs"));
        assert_eq!(closest("colour", known), None);
        assert_eq!(closest(&"x".repeat(10_000), known), None);
        assert_eq!(closest("a", []), None);
    }

    #[test]
    fn a_distance_counts_letters() {
        for (from, to, steps) in [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("kitten", "sitting", 3)] {
            assert_eq!(distance(from, to), steps, "{from} to {to}");
        }
    }
}
