//! Settings of a session.

use evenkeel_policy::path::{BondRule, PathRule, PruneRule};
use evenkeel_policy::setting::{SettingOutOfRange, check};
use evenkeel_policy::swrr::{PATHS_MAX, SwrrRules};
use evenkeel_policy::time::Duration;

/// Bytes that a flow may send before its first acknowledgement.
pub const CREDIT_INITIAL: u64 = 256 * 1024;

const MIB: u64 = 1 << 20;

/// Settings of a [`LinkSession`](super::LinkSession).
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Weights of the paths.
    pub swrr: SwrrRules,
    /// Health of the paths.
    pub path: PathRule,
    /// Maximum number of paths that carry traffic; further ones are candidates.
    pub paths_active_max: u32,
    /// Replacement of slow paths by candidates.
    pub prune: PruneRule,
    /// Membership of the bonded lane.
    pub bond: BondRule,
    /// Maximum number of open flows.
    pub flows_max: u32,
    /// Bytes that a stream-lane flow may buffer at its receiver.
    pub credit_stream: u64,
    /// Bytes that a bonded flow may buffer at its receiver, those that wait for an earlier one included.
    pub credit_bonded: u64,
    /// Bytes that all flows together may buffer at their receiver.
    pub receive_budget: u64,
    /// Bytes that all flows together may retain until they are acknowledged.
    pub send_budget: u64,
    /// Time without any answering path after which the session fails.
    pub session_timeout: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            swrr: SwrrRules::default(),
            path: PathRule::default(),
            paths_active_max: PATHS_MAX as u32,
            prune: PruneRule::default(),
            bond: BondRule::default(),
            flows_max: 1_024,
            credit_stream: 4 * MIB,
            credit_bonded: 16 * MIB,
            receive_budget: 256 * MIB,
            send_budget: 256 * MIB,
            session_timeout: Duration::from_secs(60),
        }
    }
}

impl SessionConfig {
    /// Rejects the first setting out of range.
    pub(super) fn check(&self) -> Result<(), SettingOutOfRange> {
        let credit = CREDIT_INITIAL as f64..=(1_u64 << 30) as f64;
        let budget = MIB as f64..=(1_u64 << 40) as f64;
        check("paths_active_max", self.paths_active_max, 1.0..=PATHS_MAX as f64)?;
        check("flows_max", self.flows_max, 1.0..=65_536.0)?;
        check("credit_stream", self.credit_stream as f64, credit.clone())?;
        check("credit_bonded", self.credit_bonded as f64, credit)?;
        check("receive_budget", self.receive_budget as f64, budget.clone())?;
        check("send_budget", self.send_budget as f64, budget)?;
        check("session_timeout", self.session_timeout.as_secs_f64(), 1.0..=86_400.0)
    }
}
