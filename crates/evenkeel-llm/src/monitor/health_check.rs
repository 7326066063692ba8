//! Whether a node is well: it answers `/health`, or where there is none, `/v1/models`.

use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Duration;
use http::StatusCode;
use tokio::time::Instant;

use super::node_client::NodeClient;
use evenkeel_upstream::{Origin, UpstreamError};

/// How a check went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheckResult {
    /// The node answered.
    Healthy {
        /// How long that took.
        rtt: Duration,
    },
    /// The node answered that it has no room, or not yet: it is not broken.
    Busy {
        /// How long that took.
        rtt: Duration,
    },
    /// Nothing came back in time.
    TimedOut,
    /// The node cannot be reached, or is broken.
    Failed {
        /// What is wrong.
        error: String,
    },
}

impl HealthCheckResult {
    /// Puts it as the walk takes it; who is busy has answered.
    pub fn probe(&self) -> Probe {
        match self {
            Self::Healthy { rtt } | Self::Busy { rtt } => Probe::Answered { rtt: *rtt },
            Self::TimedOut => Probe::Lost,
            Self::Failed { .. } => Probe::Failed,
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::Healthy { .. } | Self::Busy { .. })
    }
}

/// What a node is asked to find out whether it is well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CheckEndpoint {
    #[default]
    Health,
    Models,
}

impl CheckEndpoint {
    fn path(self) -> &'static str {
        match self {
            Self::Health => "/health",
            Self::Models => "/v1/models",
        }
    }
}

/// Checks a node, and says what to ask it next time.
pub(super) async fn check(
    caller: &NodeClient,
    origin: &Origin,
    question: CheckEndpoint,
) -> (HealthCheckResult, CheckEndpoint) {
    let check = ask(caller, origin, question).await;
    match check {
        Some(check) if check.is_answered() => (check, question),
        // Whoever comes back may be another engine.
        Some(check) => (check, CheckEndpoint::Health),
        None => {
            let check = ask(caller, origin, CheckEndpoint::Models).await;
            (check.unwrap_or(HealthCheckResult::TimedOut), CheckEndpoint::Models)
        }
    }
}

/// Asks; `None` where the node does not know the question and there is another.
async fn ask(caller: &NodeClient, origin: &Origin, question: CheckEndpoint) -> Option<HealthCheckResult> {
    let asked_at = Instant::now();
    match caller.get(origin, question.path()).await {
        Ok(answer) => judge(question, answer.status, asked_at.elapsed()),
        Err(UpstreamError::Timeout | UpstreamError::ConnectTimeout) => Some(HealthCheckResult::TimedOut),
        Err(error) => Some(HealthCheckResult::Failed { error: error.to_string() }),
    }
}

/// A node that refuses the question is there, and does not tell how it is.
fn judge(question: CheckEndpoint, status: StatusCode, rtt: Duration) -> Option<HealthCheckResult> {
    match (status, question) {
        (
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED,
            CheckEndpoint::Health,
        ) => None,
        (StatusCode::NOT_IMPLEMENTED, CheckEndpoint::Models) => Some(HealthCheckResult::Healthy { rtt }),
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => {
            Some(HealthCheckResult::Busy { rtt })
        }
        (status, _) if status.is_server_error() => {
            Some(HealthCheckResult::Failed { error: format!("says {status}") })
        }
        _ => Some(HealthCheckResult::Healthy { rtt }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(3);

    fn said(question: CheckEndpoint, status: u16) -> Option<HealthCheckResult> {
        judge(question, StatusCode::from_u16(status).unwrap(), RTT)
    }

    #[test]
    fn whoever_answers_is_well_and_whoever_is_busy_is_not_broken() {
        for question in [CheckEndpoint::Health, CheckEndpoint::Models] {
            for status in [200, 204, 301, 401, 403] {
                assert_eq!(said(question, status), Some(HealthCheckResult::Healthy { rtt: RTT }), "{status}");
            }
            for status in [429, 503] {
                assert_eq!(said(question, status), Some(HealthCheckResult::Busy { rtt: RTT }), "{status}");
            }
            for status in [500, 502, 504] {
                assert!(matches!(said(question, status), Some(HealthCheckResult::Failed { .. })), "{status}");
            }
        }
    }

    #[test]
    fn whoever_knows_neither_question_is_there() {
        for status in [404, 405, 501] {
            assert_eq!(said(CheckEndpoint::Health, status), None, "{status}");
            assert_eq!(
                said(CheckEndpoint::Models, status),
                Some(HealthCheckResult::Healthy { rtt: RTT }),
                "{status}"
            );
        }
    }

    #[test]
    fn the_walk_takes_busy_for_answered() {
        assert_eq!(HealthCheckResult::Busy { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(HealthCheckResult::Healthy { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(HealthCheckResult::TimedOut.probe(), Probe::Lost);
        assert_eq!(HealthCheckResult::Failed { error: String::new() }.probe(), Probe::Failed);
    }
}
