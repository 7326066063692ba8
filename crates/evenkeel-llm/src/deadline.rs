//! Client deadlines: how long a client waits for its response head, from its headers.
//!
//! Guarantees: a client can shorten its wait, never lengthen it. An invalid `x-request-timeout-ms` is an error; an
//! invalid SDK header is ignored.

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

/// Milliseconds that the client waits for the response head.
const REQUEST_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// Seconds after which an SDK disconnects: OpenAI's and Anthropic's, for Python and for TypeScript.
const SDK_TIMEOUTS: [HeaderName; 2] =
    [HeaderName::from_static("x-stainless-read-timeout"), HeaderName::from_static("x-stainless-timeout")];
/// Longest timeout that a client can set: a day.
const MILLIS_MAX: u64 = 86_400_000;

/// Times after which a response is of no use to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// Time at which the client expects a timeout error from us.
    pub(crate) respond_by: Option<Instant>,
    /// Time at which the client's SDK disconnects by itself.
    disconnect_at: Option<Instant>,
}

impl Deadline {
    /// Reads a request's headers; `now` is called only if they set a deadline.
    pub(crate) fn from_headers(headers: &HeaderMap, now: impl Fn() -> Instant) -> Result<Self, ApiError> {
        let timeout = request_timeout(headers)?;
        let sdk_timeout = SDK_TIMEOUTS.into_iter().filter_map(|name| seconds(headers, &name)).min();
        let at = |timeout: Duration| now().checked_add(timeout);
        Ok(Self { respond_by: timeout.and_then(at), disconnect_at: sdk_timeout.and_then(at) })
    }

    /// Returns how long the request may be queued from `now` on, if that is less than `default`.
    pub(crate) fn wait_max(&self, now: impl Fn() -> Instant, default: Duration) -> Option<Duration> {
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

fn seconds(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    let secs: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(secs).ok().filter(|timeout| !timeout.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const DEFAULT: Duration = Duration::from_secs(30);

    #[test]
    fn the_shortest_timeout_counts_and_none_lengthens_the_wait() {
        for (given, wait) in [
            (&[][..], None),
            (&[("x-request-timeout-ms", "1500")], Some(1_500)),
            (&[("x-request-timeout-ms", "600000")], None),
            (&[("x-stainless-read-timeout", "2.5")], Some(2_500)),
            (&[("x-stainless-timeout", "600")], None),
            (&[("x-stainless-timeout", "7"), ("x-stainless-read-timeout", "5")], Some(5_000)),
            (&[("x-stainless-timeout", "2"), ("x-request-timeout-ms", "3000")], Some(2_000)),
        ] {
            assert_eq!(wait_max(given), Ok(wait.map(Duration::from_millis)), "{given:?}");
        }
    }

    #[test]
    fn an_invalid_sdk_timeout_is_ignored() {
        for value in ["", "soon", "0", "-1", "NaN", "inf", "1e300", "not given"] {
            assert_eq!(wait_max(&[("x-stainless-timeout", value)]), Ok(None), "{value}");
        }
    }

    #[test]
    fn an_invalid_request_timeout_is_an_error() {
        for value in ["", "0", "-1", "1.5", "soon", "86400001", "99999999999999999999"] {
            let error = wait_max(&[("x-request-timeout-ms", value)]).unwrap_err();
            assert_eq!(error.status(), 400, "{value}");
        }
        let twice = [("x-request-timeout-ms", "10"), ("x-request-timeout-ms", "20")];
        assert!(wait_max(&twice).is_err());
    }

    fn wait_max(given: &[(&'static str, &'static str)]) -> Result<Option<Duration>, ApiError> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let now = Instant::now();
        Ok(Deadline::from_headers(&headers, || now)?.wait_max(|| now, DEFAULT))
    }
}
