//! Limits of keys and tenants.

use std::num::NonZeroU32;

use evenkeel_queue::rule::{KeyRule, Rate};
use evenkeel_queue::{KeyId, Seq, UnixMillis};

use super::{LIMITED, Model};

impl Model {
    pub(super) fn set_rule(&mut self, name: usize, max: u32, rate: u32, burst: u32) {
        let rate = Rate::new(f64::from(rate), NonZeroU32::new(burst)).ok();
        let rule = KeyRule { concurrency_max: NonZeroU32::new(max), rate, ..KeyRule::default() };
        // The tenant's rule has an id that no key uses.
        let key = KeyId([0, 1, 99][name]);
        self.state.set_rule(UnixMillis(self.now), key, &LIMITED[name].into(), rule);
        self.rules.insert(LIMITED[name], (rule, Vec::new()));
    }

    /// Checks that a delivery is within the limits of its key and tenant.
    pub(super) fn check_rules(&mut self, name: &str, seq: Seq) {
        for (ruled, (rule, delivered)) in &mut self.rules {
            let is_ruled = |key: u32| format!("tenant{}/{key}", key % 2).starts_with(ruled);
            if !name.starts_with(ruled) {
                continue;
            }
            let in_flight = self.in_flight.iter().filter(|held| is_ruled(held.key.0)).count() as u32;
            let max = rule.concurrency_max.map_or(u32::MAX, NonZeroU32::get);
            assert!(
                in_flight < max,
                "{seq:?} was delivered with {in_flight} of {ruled} in flight, {max} allowed"
            );
            delivered.push(self.now);
            let Some(rate) = rule.rate else { continue };
            for (at, since) in delivered.iter().enumerate() {
                let count = (delivered.len() - at) as f64;
                let allowed =
                    (self.now - since) as f64 / 1_000.0 * rate.per_second() + f64::from(rate.burst().get());
                assert!(
                    count <= allowed + 1e-6,
                    "{ruled} had {count} deliveries in {} ms, {rate:?}",
                    self.now - since
                );
            }
        }
    }

    /// Returns how many more messages of a key or tenant may be in flight.
    pub(super) fn concurrency_left(&self, ruled: &str, rule: &KeyRule) -> Option<u32> {
        let is_ruled = |key: u32| format!("tenant{}/{key}", key % 2).starts_with(ruled);
        let in_flight = self.in_flight.iter().filter(|held| is_ruled(held.key.0)).count() as u32;
        rule.concurrency_max.map(|max| max.get().saturating_sub(in_flight))
    }
}
