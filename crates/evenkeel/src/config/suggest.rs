//! "Did you mean": finds the known name closest to an unknown one.

/// Names longer than this get no suggestion.
const NAME_LEN_MAX: usize = 64;

/// Returns the known name closest to `name`, if it is close enough to be a typo.
pub(super) fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let with_distance = |known: &'a str| (distance(name, known), known);
    let (edits, candidate) = known.into_iter().map(with_distance).min()?;
    (edits <= name.len().min(candidate.len()).div_ceil(3)).then_some(candidate)
}

/// Returns the Levenshtein distance.
fn distance(from: &str, to: &str) -> usize {
    if from.len() > NAME_LEN_MAX {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, c) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *other);
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
    fn a_typo_gets_a_suggestion_and_an_unrelated_word_does_not() {
        let known = ["max_waiting", "default_timeout_secs", "ttl_secs"];
        assert_eq!(closest("max_wating", known), Some("max_waiting"));
        assert_eq!(closest("default_timeout", known), Some("default_timeout_secs"));
        assert_eq!(closest("colour", known), None);
        assert_eq!(closest(&"x".repeat(10_000), known), None);
        assert_eq!(closest("a", []), None);
    }

    #[test]
    fn the_distance_counts_inserted_deleted_and_replaced_characters() {
        for (from, to, edits) in [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("kitten", "sitting", 3)] {
            assert_eq!(distance(from, to), edits, "{from} to {to}");
        }
    }
}
