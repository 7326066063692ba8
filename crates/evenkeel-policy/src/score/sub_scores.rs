//! The nine sub-scores and their weights per kind of request.
//!
//! Guarantees: the weights of each kind of request sum to 1, so sub-scores in 0..=1 give a score in 0..=1.

/// Clamps a number to 0..=1; NaN becomes 0.
pub fn clamp01(x: f64) -> f64 {
    // `f64::clamp` would return NaN for NaN; `max` returns 0, without a branch.
    let positive = x.max(0.0);
    positive.min(1.0)
}

/// Kind of request that a node is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Read: `/query`.
    Query,
    /// Write: `/execute`.
    Execute,
    /// Begin of a transaction: `/tx/begin`.
    BeginTx,
    /// Inference; no database is involved.
    Infer,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Query, Self::Execute, Self::BeginTx, Self::Infer];

    /// Returns the weight of each sub-score in a node's score for this kind of request.
    pub const fn weights(self) -> &'static SubScores {
        match self {
            Self::Query => &QUERY,
            Self::Execute => &EXECUTE,
            Self::BeginTx => &BEGIN_TX,
            Self::Infer => &INFER,
        }
    }
}

/// One number per sub-score: a node's sub-scores (0 worst, 1 best), or their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubScores {
    /// Database connections not in use.
    pub db_free: f64,
    /// Free capacity for requests.
    pub http_free: f64,
    /// Free capacity for transactions.
    pub tx_free: f64,
    /// Latency.
    pub lat: f64,
    /// Error rate.
    pub err: f64,
    /// Timeouts.
    pub to: f64,
    /// Requests waiting for a database connection.
    pub wait: f64,
    /// Idle database connections.
    pub idle: f64,
    /// Uptime.
    pub uptime: f64,
}

impl SubScores {
    /// Returns the weighted sum of the sub-scores: 0 is the worst score, 1 the best.
    pub fn score(&self, request: RequestKind) -> f64 {
        let weights = request.weights();
        clamp01(
            weights.db_free * self.db_free
                + weights.http_free * self.http_free
                + weights.tx_free * self.tx_free
                + weights.lat * self.lat
                + weights.err * self.err
                + weights.to * self.to
                + weights.wait * self.wait
                + weights.idle * self.idle
                + weights.uptime * self.uptime,
        )
    }

    /// Returns the sub-scores with their display names.
    pub const fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("db free", self.db_free),
            ("http free", self.http_free),
            ("tx free", self.tx_free),
            ("latency", self.lat),
            ("errors", self.err),
            ("timeouts", self.to),
            ("waiting", self.wait),
            ("idle", self.idle),
            ("uptime", self.uptime),
        ]
    }
}

const QUERY: SubScores = SubScores {
    db_free: 0.22,
    http_free: 0.18,
    tx_free: 0.10,
    lat: 0.20,
    err: 0.12,
    to: 0.08,
    wait: 0.06,
    idle: 0.02,
    uptime: 0.02,
};

const EXECUTE: SubScores = SubScores {
    db_free: 0.30,
    http_free: 0.14,
    tx_free: 0.08,
    lat: 0.14,
    err: 0.14,
    to: 0.10,
    wait: 0.08,
    idle: 0.02,
    uptime: 0.0,
};

const BEGIN_TX: SubScores = SubScores {
    tx_free: 0.42,
    db_free: 0.22,
    http_free: 0.08,
    err: 0.10,
    to: 0.06,
    wait: 0.06,
    lat: 0.04,
    idle: 0.02,
    uptime: 0.0,
};

/// The weights of a query without those of the database metrics, rescaled to sum to 1.
const INFER: SubScores = SubScores {
    db_free: 0.0,
    http_free: QUERY.http_free / 0.60,
    tx_free: 0.0,
    lat: QUERY.lat / 0.60,
    err: QUERY.err / 0.60,
    to: QUERY.to / 0.60,
    wait: 0.0,
    idle: 0.0,
    uptime: QUERY.uptime / 0.60,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_each_kind_of_request_sum_to_one() {
        for request in [RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx, RequestKind::Infer] {
            let sum: f64 = request.weights().named().iter().map(|(_, weight)| weight).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{request:?} sums to {sum}");
        }
    }

    #[test]
    fn clamp01_clamps_to_0_and_1_and_maps_nan_to_0() {
        let clamped = [-1.0, 0.0, 0.25, 1.0, 7.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(clamp01);
        assert_eq!(clamped.map(|x| (x * 100.0) as u32), [0, 0, 25, 100, 100, 100, 0, 0]);
        assert!(clamped.iter().all(|x| (0.0..=1.0).contains(x)));
    }
}
