//! What a client hears when its request is not served, and what the walk hears when a node does not serve one.
//!
//! Bound: every way to be turned away and every way to fail is named here; there is no other place.

use core::fmt;

use evenkeel_door::refusal::Refusal;
use evenkeel_pipeline::{Failure, Rejection};
use evenkeel_policy::time::Duration;
use http::{HeaderMap, StatusCode};

use crate::headers::retry_after;
use crate::upstream::SendError;

/// When to ask a busy node again that does not say.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// Says why a request for `model` was turned away, while `waiting` others wait for it.
pub(crate) fn refusal(rejection: &Rejection, model: &str, waiting: usize) -> Refusal {
    let full =
        |queue_size: usize, retry_after| Refusal::QueueFull { queue_size: queue_size as u64, retry_after };
    match *rejection {
        Rejection::QueueFull { current_size, retry_after, .. }
        | Rejection::PushedOut { current_size, retry_after, .. } => full(current_size, retry_after),
        Rejection::TooLate { retry_after } => full(waiting, retry_after),
        Rejection::WaitTimeout { .. } => Refusal::WaitTimeout,
        Rejection::NoNode { .. } => Refusal::NoModel { model: model.to_owned() },
        // Tenants and models are numbered within the walk's limits, and who has gone hears nothing.
        Rejection::UnknownTenant { .. } | Rejection::UnknownModel { .. } | Rejection::Cancelled => {
            Refusal::Internal
        }
        Rejection::Failed { failure, .. } => match failure {
            Failure::Unreachable | Failure::Broken => Refusal::Upstream,
            Failure::TimedOut => Refusal::UpstreamTimeout,
            Failure::Busy { retry_after } => full(waiting, retry_after.unwrap_or(BUSY_RETRY)),
        },
    }
}

/// Why a node's answer is none that could be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It was taken out between the choice and the sending.
    Gone,
    /// No answer came, or not all of it.
    Send(SendError),
    /// Its answer did not begin in time.
    Late,
    /// It has no room.
    Busy {
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It answered with a status that is its own fault.
    Status(StatusCode),
    /// It answered with nothing.
    Empty,
    /// Its answer is not the JSON it says it is.
    NotJson,
    /// Its stream ended before it was complete.
    Unfinished,
}

impl Trouble {
    /// What the walk makes of it.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Send(error) => match error {
                SendError::Resolve { .. }
                | SendError::Connect { .. }
                | SendError::ConnectTimeout
                | SendError::Tls { .. } => Failure::Unreachable,
                SendError::Timeout => Failure::TimedOut,
                SendError::Closed { .. } | SendError::Malformed { .. } | SendError::Cut { .. } => {
                    Failure::Broken
                }
            },
            Self::Gone => Failure::Unreachable,
            Self::Late => Failure::TimedOut,
            Self::Busy { retry_after } => Failure::Busy { retry_after: *retry_after },
            Self::Status(_) | Self::Empty | Self::NotJson | Self::Unfinished => Failure::Broken,
        }
    }

    /// What a client hears that has part of the answer already.
    pub(crate) fn refusal(&self) -> Refusal {
        match self.failure() {
            Failure::TimedOut => Refusal::UpstreamTimeout,
            Failure::Unreachable | Failure::Broken | Failure::Busy { .. } => Refusal::Upstream,
        }
    }
}

impl From<SendError> for Trouble {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("node was taken out"),
            Self::Send(error) => error.fmt(f),
            Self::Late => f.write_str("no first byte in time"),
            Self::Busy { .. } => f.write_str("node has no room"),
            Self::Status(status) => write!(f, "node answered {status}"),
            Self::Empty => f.write_str("node answered nothing"),
            Self::NotJson => f.write_str("answer is not the JSON it says it is"),
            Self::Unfinished => f.write_str("stream ended before it was complete"),
        }
    }
}

impl core::error::Error for Trouble {}

/// Decides whether a node's answer is the client's, from its status.
///
/// What a client did wrong is passed on. So is 501: a node that lacks a feature is not broken, or whoever asks for it
/// could break every node. A node that does not take our key is broken, whatever the client's key was.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap) -> Result<(), Trouble> {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(Trouble::Busy { retry_after: retry_after(headers) })
        }
        StatusCode::NOT_IMPLEMENTED => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(Trouble::Status(status)),
        status if status.is_success() || status.is_client_error() => Ok(()),
        status => Err(Trouble::Status(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_pipeline::Stopped;

    #[test]
    fn every_way_to_be_turned_away_has_its_status() {
        let failed = |failure| Rejection::Failed { attempts: 1, failure, stopped: Stopped::NoOtherNode };
        let (waited, timeout) = (Duration::ZERO, Duration::ZERO);
        let status = |rejection| refusal(&rejection, "m", 3).status().as_u16();
        assert_eq!(status(Rejection::QueueFull { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::PushedOut { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::TooLate { retry_after: waited }), 503);
        assert_eq!(status(Rejection::WaitTimeout { waited, timeout }), 504);
        assert_eq!(status(Rejection::NoNode { model: evenkeel_pipeline::ModelId(0) }), 404);
        assert_eq!(status(failed(Failure::Unreachable)), 502);
        assert_eq!(status(failed(Failure::Broken)), 502);
        assert_eq!(status(failed(Failure::TimedOut)), 504);
        assert_eq!(status(failed(Failure::Busy { retry_after: None })), 503);
    }

    #[test]
    fn a_clients_mistake_is_passed_on_and_a_nodes_is_not() {
        let judged = |status: u16| judge(StatusCode::from_u16(status).unwrap(), &HeaderMap::new()).is_ok();
        let passed: Vec<u16> = (200..600).filter(|status| judged(*status)).collect();
        let passes =
            |status: &u16| matches!(status, 200..=299 | 400..=499 | 501) && ![401, 407, 429].contains(status);
        assert_eq!(passed, (200..600).filter(passes).collect::<Vec<_>>());
    }
}
