//! Client deadlines, read from request headers: how long the client waits for the response head.
//!
//! Guarantees: a client can shorten its wait, never lengthen it. An invalid `x-request-timeout-ms` is an error; an
//! invalid SDK header is ignored.

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

/// Header with the client's timeout for the response head, in milliseconds.
const REQUEST_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// Timeout headers of the OpenAI and Anthropic SDKs, in seconds: Python sends the first, TypeScript the second.
const SDK_TIMEOUTS: [HeaderName; 2] =
    [HeaderName::from_static("x-stainless-read-timeout"), HeaderName::from_static("x-stainless-timeout")];
/// Longest timeout that a client can set: a day.
const MILLIS_MAX: u64 = 86_400_000;

/// Points in time at which the client stops waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientDeadlines {
    /// Time by which the gateway responds, if necessary with a timeout error.
    pub(crate) respond_by: Option<Instant>,
    /// Time at which the client's SDK disconnects by itself.
    disconnect_at: Option<Instant>,
}

impl ClientDeadlines {
    /// Reads a request's headers; `now` is called only if they set a deadline.
    pub(crate) fn from_headers(headers: &HeaderMap, now: impl Fn() -> Instant) -> Result<Self, ApiError> {
        let timeout = request_timeout(headers)?;
        let sdk_timeout =
            SDK_TIMEOUTS.into_iter().filter_map(|name| parse_seconds_header(headers, &name)).min();
        let at = |timeout: Duration| now().checked_add(timeout);
        Ok(Self { respond_by: timeout.and_then(at), disconnect_at: sdk_timeout.and_then(at) })
    }

    /// Returns how long the request may be queued from `now` on, or `None` if that is not shorter than `default`.
    pub(crate) fn queue_timeout(&self, now: impl Fn() -> Instant, default: Duration) -> Option<Duration> {
        let ends_at = self.respond_by.into_iter().chain(self.disconnect_at).min()?;
        Some(ends_at.saturating_duration_since(now())).filter(|left| *left < default)
    }
}

fn request_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let mut given = headers.get_all(REQUEST_TIMEOUT_MS).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let millis = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let millis = millis.filter(|millis| (1..=MILLIS_MAX).contains(millis) && given.next().is_none());
    let invalid = || ApiError::Invalid {
        message: format!(
            "{REQUEST_TIMEOUT_MS} must be a whole number of milliseconds from 1 to {MILLIS_MAX}, given once"
        ),
        param: Some(REQUEST_TIMEOUT_MS.to_string()),
    };
    millis.map(|millis| Some(Duration::from_millis(millis))).ok_or_else(invalid)
}

fn parse_seconds_header(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    let secs: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(secs).ok().filter(|timeout| !timeout.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const DEFAULT: Duration = Duration::from_secs(30);

    #[test]
    fn the_shortest_timeout_applies_and_cannot_exceed_the_default() {
        for (given, wait) in [
            (&[][..], None),
            (&[("x-request-timeout-ms", "1500")], Some(1_500)),
            (&[("x-request-timeout-ms", "600000")], None),
            (&[("x-stainless-read-timeout", "2.5")], Some(2_500)),
            (&[("x-stainless-timeout", "600")], None),
            (&[("x-stainless-timeout", "7"), ("x-stainless-read-timeout", "5")], Some(5_000)),
            (&[("x-stainless-timeout", "2"), ("x-request-timeout-ms", "3000")], Some(2_000)),
        ] {
            assert_eq!(queue_timeout(given), Ok(wait.map(Duration::from_millis)), "{given:?}");
        }
    }

    #[test]
    fn an_invalid_sdk_timeout_is_ignored() {
        for value in ["", "soon", "0", "-1", "NaN", "inf", "1e300", "not given"] {
            assert_eq!(queue_timeout(&[("x-stainless-timeout", value)]), Ok(None), "{value}");
        }
    }

    #[test]
    fn an_invalid_request_timeout_is_an_error() {
        for value in ["", "0", "-1", "1.5", "soon", "86400001", "99999999999999999999"] {
            let error = queue_timeout(&[("x-request-timeout-ms", value)]).unwrap_err();
            assert_eq!(error.status(), 400, "{value}");
        }
        let twice = [("x-request-timeout-ms", "10"), ("x-request-timeout-ms", "20")];
        assert!(queue_timeout(&twice).is_err());
    }

    fn queue_timeout(given: &[(&'static str, &'static str)]) -> Result<Option<Duration>, ApiError> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let now = Instant::now();
        Ok(ClientDeadlines::from_headers(&headers, || now)?.queue_timeout(|| now, DEFAULT))
    }
}
