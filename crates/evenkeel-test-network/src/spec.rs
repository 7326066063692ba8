//! The properties of a path.

use std::time::Duration;

const QUEUE: Duration = Duration::from_millis(50);

/// The properties of a path, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSpec {
    /// In Mbit/s of IP packets; `None` is unlimited.
    pub rate_mbit: Option<f64>,
    /// The propagation delay of one direction.
    pub one_way: Duration,
    /// Losses besides those of a full queue.
    pub loss: PacketLoss,
    /// The size of the queue (or of the policer's bucket), as the time that the rate takes for it.
    pub queue: Duration,
    pub jitter: Jitter,
    pub limiter: Limiter,
}

/// Random losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PacketLoss {
    #[default]
    None,
    /// Loses each packet with this probability.
    Independent(f64),
    /// Loses packets in runs (the Gilbert model): `ratio` of all packets, `length_mean` at a time.
    Bursts { ratio: f64, length_mean: f64 },
}

/// A random addition to the delay of each packet, distributed uniformly from zero to the given time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Jitter {
    #[default]
    None,
    /// A packet waits for those before it.
    InOrder(Duration),
    /// A packet may overtake others.
    Reordering(Duration),
}

/// The treatment of packets that exceed the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limiter {
    /// They wait in a FIFO queue, and are dropped if it is full.
    #[default]
    Queue,
    /// They are dropped as soon as a token bucket is empty; no packet waits.
    Policer,
}

impl PathSpec {
    /// Creates a path with a rate in Mbit/s, without losses and jitter, and with a queue of 50 ms.
    pub const fn new(rate_mbit: f64, one_way: Duration) -> Self {
        Self { rate_mbit: Some(rate_mbit), ..Self::unlimited(one_way) }
    }

    /// Creates a path without a limit of its rate.
    pub const fn unlimited(one_way: Duration) -> Self {
        Self {
            rate_mbit: None,
            one_way,
            loss: PacketLoss::None,
            queue: QUEUE,
            jitter: Jitter::None,
            limiter: Limiter::Queue,
        }
    }

    /// Returns the same path with independent losses.
    pub const fn with_loss(self, ratio: f64) -> Self {
        Self { loss: PacketLoss::Independent(ratio), ..self }
    }

    /// Returns the same path with another queue.
    pub const fn with_queue(self, queue: Duration) -> Self {
        Self { queue, ..self }
    }

    /// Returns the same path with jitter that keeps the order of packets.
    pub const fn with_jitter(self, jitter: Duration) -> Self {
        Self { jitter: Jitter::InOrder(jitter), ..self }
    }

    /// Panics if a number is out of range, which is a mistake in the test.
    pub(crate) fn assert_valid(&self) {
        let is_ratio = |ratio: f64| (0.0..=1.0).contains(&ratio);
        assert!(self.rate_mbit.is_none_or(|rate| 0.0 < rate && rate.is_finite()), "invalid rate: {self:?}");
        match self.loss {
            PacketLoss::None => {}
            PacketLoss::Independent(ratio) => assert!(is_ratio(ratio), "invalid loss: {self:?}"),
            PacketLoss::Bursts { ratio, length_mean } => {
                assert!((0.0..1.0).contains(&ratio) && 1.0 <= length_mean, "invalid loss: {self:?}");
                // The state without losses ends with this probability.
                assert!(is_ratio(ratio / (1.0 - ratio) / length_mean), "bursts are too short: {self:?}");
            }
        }
    }
}
