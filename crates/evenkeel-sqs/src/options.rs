//! Options of the SQS API.

use core::fmt;
use std::sync::Arc;

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::QueueSettings;

/// Options of the SQS API.
#[derive(Clone, Debug)]
pub struct SqsOptions {
    /// Region in ARNs.
    pub region: String,
    /// Account of shared queues in ARNs and queue URLs.
    pub account: AccountNumber,
    /// Scheme of queue URLs: `http` or `https`.
    pub scheme: &'static str,
    /// Settings of a new queue, unless the request sets them.
    pub defaults: QueueSettings,
    /// Maximum number of queues with their own metric series; the others are counted as `other`.
    pub queues_metered_max: usize,
    /// Checks the dispatch target of a queue; returns the message for the client if it is invalid.
    pub check_target: TargetCheck,
}

type CheckTarget = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Checks the dispatch target of a queue.
#[derive(Clone)]
pub struct TargetCheck(pub Arc<CheckTarget>);

impl fmt::Debug for TargetCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TargetCheck(..)")
    }
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            account: AccountNumber::ZERO,
            scheme: "http",
            defaults: QueueSettings::default(),
            queues_metered_max: 256,
            check_target: TargetCheck(Arc::new(|_| Err("dispatch is not available".to_owned()))),
        }
    }
}
