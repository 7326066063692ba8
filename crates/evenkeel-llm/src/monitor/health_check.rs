//! Active health check of a node: `GET /health`, or `GET /v1/models` where there is no such endpoint.

use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Duration;
use http::StatusCode;
use tokio::time::Instant;

use super::node_client::NodeClient;
use evenkeel_upstream::{Origin, UpstreamError};

/// Result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheckResult {
    Healthy {
        rtt: Duration,
    },
    /// The node is overloaded or still starting (429, 503), but has not failed.
    Busy {
        rtt: Duration,
    },
    TimedOut,
    /// The node is unreachable or returned a server error.
    Failed {
        error: String,
    },
}

impl HealthCheckResult {
    /// Converts the result for the pipeline; an overloaded node counts as responding.
    pub fn probe(&self) -> Probe {
        match self {
            Self::Healthy { rtt } | Self::Busy { rtt } => Probe::Answered { rtt: *rtt },
            Self::TimedOut => Probe::Lost,
            Self::Failed { .. } => Probe::Failed,
        }
    }

    /// Returns the cause of a failure.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Healthy { .. } | Self::Busy { .. } => None,
            Self::TimedOut => Some("no answer in time"),
            Self::Failed { error } => Some(error),
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        matches!(self, Self::Healthy { .. } | Self::Busy { .. })
    }
}

/// Endpoint of a health check.
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

/// Checks a node; returns the endpoint for the next check.
pub(super) async fn check(
    client: &NodeClient,
    origin: &Origin,
    endpoint: CheckEndpoint,
) -> (HealthCheckResult, CheckEndpoint) {
    let check = check_endpoint(client, origin, endpoint).await;
    match check {
        Some(check) if check.is_reachable() => (check, endpoint),
        // When the node comes back, it may run another engine, with another health endpoint.
        Some(check) => (check, CheckEndpoint::Health),
        None => {
            let check = check_endpoint(client, origin, CheckEndpoint::Models).await;
            (check.unwrap_or(HealthCheckResult::TimedOut), CheckEndpoint::Models)
        }
    }
}

/// Checks one endpoint; `None` if the node does not have it and another endpoint is left to try.
async fn check_endpoint(
    client: &NodeClient,
    origin: &Origin,
    endpoint: CheckEndpoint,
) -> Option<HealthCheckResult> {
    let sent_at = Instant::now();
    match client.get(origin, endpoint.path()).await {
        Ok(reply) => classify(endpoint, reply.status, sent_at.elapsed()),
        Err(UpstreamError::Timeout | UpstreamError::ConnectTimeout) => Some(HealthCheckResult::TimedOut),
        Err(UpstreamError::LinkBusy { .. }) => Some(HealthCheckResult::Busy { rtt: sent_at.elapsed() }),
        Err(error) => Some(HealthCheckResult::Failed { error: error.to_string() }),
    }
}

/// Classifies a status. A client error counts as healthy: the node responds.
fn classify(endpoint: CheckEndpoint, status: StatusCode, rtt: Duration) -> Option<HealthCheckResult> {
    match (status, endpoint) {
        (
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED,
            CheckEndpoint::Health,
        ) => None,
        (StatusCode::NOT_IMPLEMENTED, CheckEndpoint::Models) => Some(HealthCheckResult::Healthy { rtt }),
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => {
            Some(HealthCheckResult::Busy { rtt })
        }
        (status, _) if status.is_server_error() => {
            Some(HealthCheckResult::Failed { error: format!("node returned {status}") })
        }
        _ => Some(HealthCheckResult::Healthy { rtt }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(3);

    fn result(endpoint: CheckEndpoint, status: u16) -> Option<HealthCheckResult> {
        classify(endpoint, StatusCode::from_u16(status).unwrap(), RTT)
    }

    #[test]
    fn a_responding_node_is_healthy_and_an_overloaded_one_has_not_failed() {
        for endpoint in [CheckEndpoint::Health, CheckEndpoint::Models] {
            for status in [200, 204, 301, 401, 403] {
                assert_eq!(
                    result(endpoint, status),
                    Some(HealthCheckResult::Healthy { rtt: RTT }),
                    "{status}"
                );
            }
            for status in [429, 503] {
                assert_eq!(result(endpoint, status), Some(HealthCheckResult::Busy { rtt: RTT }), "{status}");
            }
            for status in [500, 502, 504] {
                assert!(
                    matches!(result(endpoint, status), Some(HealthCheckResult::Failed { .. })),
                    "{status}"
                );
            }
        }
    }

    #[test]
    fn a_node_without_either_endpoint_is_healthy() {
        for status in [404, 405, 501] {
            assert_eq!(result(CheckEndpoint::Health, status), None, "{status}");
            assert_eq!(
                result(CheckEndpoint::Models, status),
                Some(HealthCheckResult::Healthy { rtt: RTT }),
                "{status}"
            );
        }
    }

    #[test]
    fn the_pipeline_counts_an_overloaded_node_as_responding() {
        assert_eq!(HealthCheckResult::Busy { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(HealthCheckResult::Healthy { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(HealthCheckResult::TimedOut.probe(), Probe::Lost);
        assert_eq!(HealthCheckResult::Failed { error: String::new() }.probe(), Probe::Failed);
    }
}
