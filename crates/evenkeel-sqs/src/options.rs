//! What the door is set up with.

use evenkeel_queue::QueueSettings;

/// What the door is set up with.
#[derive(Clone, Debug)]
pub struct SqsOptions {
    /// The region that names of queues carry.
    pub region: String,
    /// The account that names and URLs of queues carry: twelve digits.
    pub account: String,
    /// `http` or `https`, for URLs of queues.
    pub scheme: &'static str,
    /// What a queue is that nobody told anything.
    pub defaults: QueueSettings,
    /// How many queues have metrics of their own; the others are `other`.
    pub queues_metered_max: usize,
    /// Says what is wrong with a target that a queue's messages are to be dispatched to.
    pub check_target: fn(&str) -> Result<(), String>,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            account: "000000000000".to_owned(),
            scheme: "http",
            defaults: QueueSettings::default(),
            queues_metered_max: 256,
            check_target: |_| Err("no messages are dispatched here".to_owned()),
        }
    }
}
