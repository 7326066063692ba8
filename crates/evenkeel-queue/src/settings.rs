//! Settings of a queue, and their limits.

use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::QueueId;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// Upper limit of `keys_max`.
pub(crate) const KEYS_MAX: u32 = 1 << 24;
/// Maximum number of waiting messages with a TTL in one queue; their metadata is in memory.
pub(crate) const WITH_TTL_MAX: u64 = 1_000_000;

/// Settings of a queue; durations are in milliseconds. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// Visibility timeout of a delivery.
    pub lease_ms: u64,
    /// Delay before the first delivery of a message.
    pub delay_ms: u64,
    /// Time that a receive waits for the first message.
    pub wait_ms: u64,
    /// Retention: age at which a message is deleted.
    pub retention_ms: u64,
    /// Maximum size of a message, headers included.
    pub message_bytes_max: u64,
    /// Dead-letter queue for messages that are not acknowledged.
    pub redrive: Option<RedrivePolicy>,
    /// Delay before a nacked message is redelivered; doubles with every attempt.
    pub backoff_ms_min: u64,
    pub backoff_ms_max: u64,
    pub messages_max: u64,
    pub bytes_max: u64,
    pub in_flight_max: u64,
    /// Maximum number of known keys: those with a rule or messages, and those whose last message was removed within the
    /// last minute.
    pub keys_max: u32,
    /// DRR quantum: deficit that a key of weight 1 gets per round; a message without a cost costs 1000.
    pub quantum: u64,
    pub durability: Durability,
    /// Runs the messages as jobs; `None` leaves them to consumers.
    #[serde(default)]
    pub dispatch: Option<DispatchSettings>,
    /// Unit in which keys get equal shares.
    #[serde(default)]
    pub cost_mode: CostMode,
    /// Order of delivery within a key; fixed when the queue is created.
    #[serde(default)]
    pub order: DeliveryOrder,
}

impl QueueSettings {
    /// The defaults.
    pub const STANDARD: Self = Self {
        lease_ms: 30_000,
        delay_ms: 0,
        wait_ms: 0,
        retention_ms: 4 * DAY_MS,
        message_bytes_max: 1 << 20,
        redrive: None,
        backoff_ms_min: 1_000,
        backoff_ms_max: MINUTE_MS,
        messages_max: 100_000_000,
        bytes_max: 1 << 40,
        in_flight_max: 120_000,
        keys_max: 1 << 20,
        quantum: 1_000,
        durability: Durability::Fsync,
        cost_mode: CostMode::Count,
        order: DeliveryOrder::Fair,
        dispatch: None,
    };
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// Redrive policy: when a message moves to the dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedrivePolicy {
    /// Dead-letter queue.
    pub to: QueueId,
    /// Number of deliveries after which a message is moved.
    pub attempts_max: u32,
}

/// Settings of a queue whose messages are jobs that the gateway runs itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchSettings {
    /// Route that each job is a request to, such as `/v1/chat/completions`, or URL that it is posted to.
    pub target: String,
    /// Jobs that run at the same time.
    #[serde(default = "DispatchSettings::default_concurrency")]
    pub concurrency: u32,
    /// Time for which a job's result is stored.
    #[serde(default = "DispatchSettings::default_result_ttl_ms")]
    pub result_ttl_ms: u64,
    /// Maximum number of stored results; beyond that, those that expire first are evicted.
    #[serde(default = "DispatchSettings::default_results_max")]
    pub results_max: u32,
}

impl DispatchSettings {
    const fn default_concurrency() -> u32 {
        4
    }

    const fn default_result_ttl_ms() -> u64 {
        DAY_MS
    }

    const fn default_results_max() -> u32 {
        100_000
    }

    pub const fn result_ttl(&self) -> Duration {
        Duration::from_millis(self.result_ttl_ms)
    }
}

/// Unit in which the service of a key is measured; keys of equal weight get equal shares of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostMode {
    /// Messages, each at its own cost.
    #[default]
    Count,
    /// Bytes of headers and bodies, one unit each.
    Bytes,
    /// Time that messages are in flight, a hundred units per millisecond: estimated from the key's recent messages,
    /// and corrected at the end of the delivery.
    Time,
}

/// Order of delivery within a key; keys are scheduled fairly in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOrder {
    /// In sending order, to any number of consumers; redeliveries come when they are due.
    #[default]
    Fair,
    /// In sending order, each after the previous one is done; a redelivery blocks the rest of its key.
    Fifo,
}

/// Durability of a write before its request returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Durability {
    /// Synced to disk: survives a crash and a power failure.
    #[default]
    Fsync,
    /// Written to the operating system and synced within this many milliseconds; a power failure before may lose it.
    Interval(u32),
    /// Written to the operating system: survives a crash of the gateway; a power failure may lose the last seconds.
    Os,
}

impl QueueSettings {
    /// Rejects settings out of range.
    pub fn check(&self) -> Result<(), BadSetting> {
        let within = |name, value: u64, range: RangeInclusive<u64>| {
            let (min, max) = range.into_inner();
            if (min..=max).contains(&value) { Ok(()) } else { Err(BadSetting { name, value, min, max }) }
        };
        within("lease_ms", self.lease_ms, 0..=12 * 60 * MINUTE_MS)?;
        within("delay_ms", self.delay_ms, 0..=15 * MINUTE_MS)?;
        within("wait_ms", self.wait_ms, 0..=20_000)?;
        within("retention_ms", self.retention_ms, MINUTE_MS..=14 * DAY_MS)?;
        within("message_bytes_max", self.message_bytes_max, 1_024..=16 << 20)?;
        within("backoff_ms_min", self.backoff_ms_min, 1..=DAY_MS)?;
        within("backoff_ms_max", self.backoff_ms_max, self.backoff_ms_min..=DAY_MS)?;
        within("messages_max", self.messages_max, 1..=1_000_000_000_000)?;
        within("bytes_max", self.bytes_max, self.message_bytes_max..=1 << 50)?;
        within("in_flight_max", self.in_flight_max, 1..=10_000_000)?;
        within("keys_max", u64::from(self.keys_max), 1..=u64::from(KEYS_MAX))?;
        within("quantum", self.quantum, 1..=1_000_000_000)?;
        if let Some(redrive) = self.redrive {
            within("attempts_max", u64::from(redrive.attempts_max), 1..=1_000)?;
        }
        if let Durability::Interval(ms) = self.durability {
            within("durability interval", u64::from(ms), 1..=60_000)?;
        }
        if let Some(dispatch) = &self.dispatch {
            within("concurrency", u64::from(dispatch.concurrency), 1..=1_000)?;
            within("result_ttl_ms", dispatch.result_ttl_ms, 1_000..=14 * DAY_MS)?;
            within("results_max", u64::from(dispatch.results_max), 1..=1_000_000)?;
        }
        Ok(())
    }

    /// Returns the settings as they take effect in queue `id`: a queue that names itself as its dead-letter queue has none,
    /// because a move into the same queue would only start the attempts again.
    #[must_use]
    pub fn in_queue(&self, id: QueueId) -> Self {
        Self { redrive: self.redrive.filter(|redrive| redrive.to != id), ..self.clone() }
    }

    /// Returns the visibility timeout.
    pub const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// Error of a setting out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {value} is not between {min} and {max}")]
pub struct BadSetting {
    pub name: &'static str,
    pub value: u64,
    pub min: u64,
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(QueueSettings::default().check(), Ok(()));
    }

    #[test]
    fn the_error_of_a_setting_names_it_and_its_range() {
        let settings = QueueSettings { wait_ms: 20_001, ..QueueSettings::default() };
        assert_eq!(settings.check().unwrap_err().to_string(), "wait_ms 20001 is not between 0 and 20000");
        let settings = QueueSettings { backoff_ms_min: 90_000, ..QueueSettings::default() };
        assert_eq!(settings.check().unwrap_err().name, "backoff_ms_max");
    }

    #[test]
    fn dispatch_settings_have_defaults_and_limits_and_older_records_have_none() {
        let read = |text: &str| serde_json::from_str::<DispatchSettings>(text).unwrap();
        let dispatch = read(r#"{"target": "/v1/embeddings"}"#);
        let defaults = (dispatch.concurrency, dispatch.result_ttl_ms, dispatch.results_max);
        assert_eq!(defaults, (4, DAY_MS, 100_000));
        for (dispatch, wrong) in [
            (DispatchSettings { concurrency: 0, ..dispatch.clone() }, "concurrency"),
            (DispatchSettings { concurrency: 1_001, ..dispatch.clone() }, "concurrency"),
            (DispatchSettings { result_ttl_ms: 14 * DAY_MS + 1, ..dispatch.clone() }, "result_ttl_ms"),
            (DispatchSettings { results_max: 0, ..dispatch.clone() }, "results_max"),
            (DispatchSettings { results_max: 1_000_001, ..dispatch }, "results_max"),
        ] {
            let settings = QueueSettings { dispatch: Some(dispatch), ..QueueSettings::default() };
            assert_eq!(settings.check().unwrap_err().name, wrong);
        }
        let mut older = serde_json::to_value(QueueSettings::default()).unwrap();
        older.as_object_mut().unwrap().remove("dispatch");
        assert_eq!(serde_json::from_value::<QueueSettings>(older).unwrap(), QueueSettings::default());
    }
}
