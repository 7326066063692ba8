//! How long a client means to wait for its answer to begin, if it says so.
//!
//! Bound: what a client says can shorten its wait, never lengthen it. What its SDK says about itself is believed if it
//! can be read; what it says to us must be right.

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

/// Says in milliseconds how long its sender waits for its answer to begin.
const OURS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// Says in seconds when an SDK hangs up: OpenAI's and Anthropic's for Python, and those for TypeScript.
const SDKS: [HeaderName; 2] =
    [HeaderName::from_static("x-stainless-read-timeout"), HeaderName::from_static("x-stainless-timeout")];
/// The longest wait that can be asked for: a day.
const MILLIS_MAX: u64 = 86_400_000;

/// Until when a request is worth serving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When its sender stops waiting; it hears of it from us.
    pub(crate) told_at: Option<Instant>,
    /// When its SDK hangs up, which needs no telling.
    gone_at: Option<Instant>,
}

impl Deadline {
    /// Reads what a request's headers say, as of `now`; most say nothing, and need no clock.
    pub(crate) fn of(headers: &HeaderMap, now: impl Fn() -> Instant) -> Result<Self, ApiError> {
        let ours = ours(headers)?.map(Duration::from_millis);
        let sdks = SDKS.into_iter().filter_map(|name| seconds(headers, &name)).min();
        let at = |span: Duration| now().checked_add(span);
        Ok(Self { told_at: ours.and_then(at), gone_at: sdks.and_then(at) })
    }

    /// How long it may wait for a slot from `now` on, where that is less than anybody may.
    pub(crate) fn wait_max(&self, now: impl Fn() -> Instant, default: Duration) -> Option<Duration> {
        let ends_at = self.told_at.into_iter().chain(self.gone_at).min()?;
        Some(ends_at.saturating_duration_since(now())).filter(|left| *left < default)
    }
}

fn ours(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let mut given = headers.get_all(OURS).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let millis = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let millis = millis.filter(|millis| (1..=MILLIS_MAX).contains(millis) && given.next().is_none());
    let wrong = || ApiError::Invalid {
        message: format!("{OURS} must be a whole number of milliseconds from 1 to {MILLIS_MAX}, once"),
        param: Some(OURS.to_string()),
    };
    millis.map(Some).ok_or_else(wrong)
}

fn seconds(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    let secs: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(secs).ok().filter(|span| !span.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const DEFAULT: Duration = Duration::from_secs(30);

    #[test]
    fn the_shortest_wait_counts_and_none_is_lengthened() {
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
    fn what_an_sdk_says_of_itself_is_ignored_if_it_makes_no_sense() {
        for value in ["", "soon", "0", "-1", "NaN", "inf", "1e300", "not given"] {
            assert_eq!(wait_max(&[("x-stainless-timeout", value)]), Ok(None), "{value}");
        }
    }

    #[test]
    fn what_is_said_to_us_must_be_right() {
        for value in ["", "0", "-1", "1.5", "soon", "86400001", "99999999999999999999"] {
            let refusal = wait_max(&[("x-request-timeout-ms", value)]).unwrap_err();
            assert_eq!(refusal.status(), 400, "{value}");
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
        Ok(Deadline::of(&headers, || now)?.wait_max(|| now, DEFAULT))
    }
}
