//! Measurements that a path's congestion controller passes to the session.

use evenkeel_policy::time::{Duration, Instant};

/// Counters of one connection since it was established.
///
/// Counters only grow; the session computes the difference between two reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSignals {
    /// Number of RTT samples.
    pub rtt_count: u64,
    /// Sum of all RTT samples.
    pub rtt_sum: Duration,
    /// Latest RTT sample.
    pub rtt_latest: Option<Duration>,
    /// Shortest RTT sample.
    pub rtt_min: Option<Duration>,
    /// Acknowledged packets that the peer had to acknowledge.
    pub acked_packets: u64,
    /// Bytes of those packets.
    pub acked_bytes: u64,
    /// Packets declared lost, without packets that carry only acknowledgements.
    pub lost_packets: u64,
    /// Bytes sent and neither acknowledged nor declared lost.
    pub in_flight: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// Length of the longest datagram that a packet holds; 0 if unknown.
    pub datagram_max: usize,
    /// Time since which packets wait for an acknowledgement without any arriving; `None` while nothing is in flight.
    ///
    /// The time of the last acknowledgement, or that of the first packet sent since nothing was in flight.
    pub waiting_since: Option<Instant>,
    /// Time of the last acknowledgement.
    pub acked_at: Option<Instant>,
}
