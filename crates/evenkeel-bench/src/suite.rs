//! The groups of contenders.

mod backpressure;
mod delivery;
mod order;
mod pick;
mod score;
mod swrr;

use crate::measure::Contender;

/// Group of contenders that do the same job; the first is the baseline.
pub struct Group {
    /// Name, which filters match.
    pub name: String,
    /// Sets up the contenders.
    pub set_up: Box<dyn Fn() -> Vec<Contender>>,
}

impl Group {
    fn new(name: impl Into<String>, set_up: impl Fn() -> Vec<Contender> + 'static) -> Self {
        Self { name: name.into(), set_up: Box::new(set_up) }
    }
}

/// Numbers of keys that schedulers are measured with.
const KEYS: [u32; 6] = [1, 10, 100, 1_000, 100_000, 1_000_000];

/// Maximum number of keys whose accounts stay in the fastest caches.
const HOT_KEYS_MAX: u32 = 1_000;

/// Returns all groups, in the order of the pipeline.
pub fn groups() -> Vec<Group> {
    let mut groups = backpressure::groups();
    groups.extend(pick::groups());
    groups.extend(delivery::groups());
    groups.extend(score::groups());
    groups.extend(swrr::groups());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_need_no_escaping() {
        let mut names: Vec<_> = groups().into_iter().map(|group| group.name).collect();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-/".contains(c);
        assert!(names.iter().all(|name| name.chars().all(plain)), "{names:?}");
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
