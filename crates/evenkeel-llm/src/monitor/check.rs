//! Whether a node is well: it answers `/health`, or where there is none, `/v1/models`.

use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Duration;
use http::StatusCode;
use tokio::time::Instant;

use super::caller::Caller;
use crate::upstream::{Origin, SendError};

/// How a check went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The node answered.
    Well {
        /// How long that took.
        rtt: Duration,
    },
    /// The node answered that it has no room, or not yet: it is not broken.
    Busy {
        /// How long that took.
        rtt: Duration,
    },
    /// Nothing came back in time.
    Lost,
    /// The node cannot be reached, or is broken.
    Failed {
        /// What is wrong.
        error: String,
    },
}

impl Check {
    /// Puts it as the walk takes it; who is busy has answered.
    pub fn probe(&self) -> Probe {
        match self {
            Self::Well { rtt } | Self::Busy { rtt } => Probe::Answered { rtt: *rtt },
            Self::Lost => Probe::Lost,
            Self::Failed { .. } => Probe::Failed,
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::Well { .. } | Self::Busy { .. })
    }
}

/// What a node is asked to find out whether it is well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Question {
    #[default]
    Health,
    Models,
}

impl Question {
    fn path(self) -> &'static str {
        match self {
            Self::Health => "/health",
            Self::Models => "/v1/models",
        }
    }
}

/// Checks a node, and says what to ask it next time.
pub(super) async fn check(caller: &Caller, origin: &Origin, question: Question) -> (Check, Question) {
    let check = ask(caller, origin, question).await;
    match check {
        Some(check) if check.is_answered() => (check, question),
        // Whoever comes back may be another engine.
        Some(check) => (check, Question::Health),
        None => {
            let check = ask(caller, origin, Question::Models).await;
            (check.unwrap_or(Check::Lost), Question::Models)
        }
    }
}

/// Asks; `None` where the node does not know the question and there is another.
async fn ask(caller: &Caller, origin: &Origin, question: Question) -> Option<Check> {
    let asked_at = Instant::now();
    match caller.get(origin, question.path()).await {
        Ok(answer) => judge(question, answer.status, asked_at.elapsed()),
        Err(SendError::Timeout | SendError::ConnectTimeout) => Some(Check::Lost),
        Err(error) => Some(Check::Failed { error: error.to_string() }),
    }
}

/// A node that refuses the question is there, and does not tell how it is.
fn judge(question: Question, status: StatusCode, rtt: Duration) -> Option<Check> {
    match (status, question) {
        (
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED,
            Question::Health,
        ) => None,
        (StatusCode::NOT_IMPLEMENTED, Question::Models) => Some(Check::Well { rtt }),
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => Some(Check::Busy { rtt }),
        (status, _) if status.is_server_error() => Some(Check::Failed { error: format!("says {status}") }),
        _ => Some(Check::Well { rtt }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(3);

    fn said(question: Question, status: u16) -> Option<Check> {
        judge(question, StatusCode::from_u16(status).unwrap(), RTT)
    }

    #[test]
    fn whoever_answers_is_well_and_whoever_is_busy_is_not_broken() {
        for question in [Question::Health, Question::Models] {
            for status in [200, 204, 301, 401, 403] {
                assert_eq!(said(question, status), Some(Check::Well { rtt: RTT }), "{status}");
            }
            for status in [429, 503] {
                assert_eq!(said(question, status), Some(Check::Busy { rtt: RTT }), "{status}");
            }
            for status in [500, 502, 504] {
                assert!(matches!(said(question, status), Some(Check::Failed { .. })), "{status}");
            }
        }
    }

    #[test]
    fn whoever_knows_neither_question_is_there() {
        for status in [404, 405, 501] {
            assert_eq!(said(Question::Health, status), None, "{status}");
            assert_eq!(said(Question::Models, status), Some(Check::Well { rtt: RTT }), "{status}");
        }
    }

    #[test]
    fn the_walk_takes_busy_for_answered() {
        assert_eq!(Check::Busy { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(Check::Well { rtt: RTT }.probe(), Probe::Answered { rtt: RTT });
        assert_eq!(Check::Lost.probe(), Probe::Lost);
        assert_eq!(Check::Failed { error: String::new() }.probe(), Probe::Failed);
    }
}
