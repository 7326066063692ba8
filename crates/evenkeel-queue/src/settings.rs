//! What a queue may be told, and its bounds.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::QueueId;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// The most keys any queue may know.
pub(crate) const KEYS_MAX: u32 = 1 << 24;
/// The most messages with a time to live that may wait in any queue: all of them are in memory.
pub(crate) const TIMED_MAX: u64 = 1_000_000;

/// How a queue behaves; spans are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// How long a delivered message stays invisible to others.
    pub lease_ms: u64,
    /// How long a sent message stays invisible.
    pub delay_ms: u64,
    /// How long a receive waits for a first message.
    pub wait_ms: u64,
    /// How long a message is kept.
    pub retention_ms: u64,
    /// How large a message may be, headers included.
    pub message_bytes_max: u64,
    /// Where messages go that nobody acknowledges.
    pub redrive: Option<RedrivePolicy>,
    /// How long a message that was given back waits: this long, then twice as long every time.
    pub backoff_ms_min: u64,
    /// The longest such wait.
    pub backoff_ms_max: u64,
    /// How many messages it may hold.
    pub messages_max: u64,
    /// How many bytes it may hold.
    pub bytes_max: u64,
    /// How many messages may be in consumers' hands.
    pub in_flight_max: u64,
    /// How many keys may be known: with messages, until a minute after their last one, or with a weight.
    pub keys_max: u32,
    /// What a key of weight 1 may spend per round; a plain message costs 1000.
    pub quantum: u64,
    /// What must have happened before a request is answered.
    pub durability: Durability,
    /// Who runs its messages as jobs; `None` leaves them to consumers.
    #[serde(default)]
    pub dispatch: Option<DispatchSettings>,
    /// What turns are counted in.
    #[serde(default)]
    pub cost_mode: CostMode,
    /// In which order messages of a key are delivered; fixed when the queue is made.
    #[serde(default)]
    pub order: DeliveryOrder,
}

impl QueueSettings {
    /// How a queue behaves that was told nothing.
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

/// Where messages go that were delivered too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedrivePolicy {
    /// The dead-letter queue.
    pub to: QueueId,
    /// After so many deliveries.
    pub attempts_max: u32,
}

/// A queue whose messages are jobs that the gateway runs itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchSettings {
    /// The route that each job is a request to, as in `/v1/chat/completions`, or the URL that it is posted to.
    pub target: String,
    /// How many jobs are under way at once.
    #[serde(default = "DispatchSettings::default_concurrency")]
    pub concurrency: u32,
    /// How long what came of a job is kept.
    #[serde(default = "DispatchSettings::default_result_ttl_ms")]
    pub result_ttl_ms: u64,
    /// What came of how many jobs is kept at most; beyond, what would expire first is forgotten.
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

    /// How long what came of a job is kept.
    pub const fn result_ttl(&self) -> Duration {
        Duration::from_millis(self.result_ttl_ms)
    }
}

/// What turns are counted in: keys get equal shares of this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostMode {
    /// Messages, each at the cost it was sent with.
    #[default]
    Count,
    /// Bytes of headers and bodies, a unit each.
    Bytes,
    /// The time that consumers have messages, a hundred units per millisecond: estimated by what the key's messages
    /// took lately, and set right when it is known.
    Time,
}

/// In which order messages of a key are delivered; keys take turns either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOrder {
    /// As they were sent, to as many consumers as ask; what comes back does so when it is due.
    #[default]
    Fair,
    /// As they were sent, each after the one before is done: what comes back holds up the rest of its key.
    Fifo,
}

/// What must have happened before a request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Durability {
    /// It is on disk: neither a crash nor a power cut loses it.
    #[default]
    Fsync,
    /// The operating system has it, and puts it on disk within so many milliseconds: a power cut may lose them.
    Interval(u32),
    /// The operating system has it: a crash of the gateway loses nothing, a power cut some seconds.
    Os,
}

impl QueueSettings {
    /// Refuses what is out of bounds.
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

    /// How long a delivered message stays invisible to others.
    pub const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A setting that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSetting {
    /// Which.
    pub name: &'static str,
    /// As it was given.
    pub value: u64,
    /// The least it may be.
    pub min: u64,
    /// The most it may be.
    pub max: u64,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is not between {} and {}", self.name, self.value, self.min, self.max)
    }
}

impl core::error::Error for BadSetting {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_bounds() {
        assert_eq!(QueueSettings::default().check(), Ok(()));
    }

    #[test]
    fn a_setting_out_of_bounds_is_named_with_them() {
        let settings = QueueSettings { wait_ms: 20_001, ..QueueSettings::default() };
        assert_eq!(settings.check().unwrap_err().to_string(), "wait_ms 20001 is not between 0 and 20000");
        let settings = QueueSettings { backoff_ms_min: 90_000, ..QueueSettings::default() };
        assert_eq!(settings.check().unwrap_err().name, "backoff_ms_max");
    }

    #[test]
    fn a_dispatch_has_defaults_and_bounds_and_older_records_have_none() {
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
