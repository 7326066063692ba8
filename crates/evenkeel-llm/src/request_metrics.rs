//! Metrics of one request by OpenTelemetry's conventions for generative AI, recorded when it ends.
//!
//! Guarantees: a request that named a known model is counted exactly once. Tokens are recorded only if the engine reported
//! them, and times of tokens only of complete streams.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_telemetry::GenAiSeries;
use http::StatusCode;

use crate::error::AttemptError;
use crate::request::ResponseMode;
use crate::usage::Usage;

/// Metrics of a request that has not ended. Dropping it records them.
pub(crate) struct RequestMetrics {
    began: Instant,
    /// Series of the model that serves the request; `None` if it named no known model.
    series: Option<Arc<GenAiSeries>>,
    mode: ResponseMode,
    first_byte: Option<Duration>,
    end: RequestEnd,
    reported: Option<Usage>,
}

/// End of a request.
enum RequestEnd {
    /// The client disconnected; every other end overwrites this.
    Cancelled,
    Served,
    /// The node reported a client error with this status.
    ClientError(StatusCode),
    /// `code` of the error that the client got.
    Failed(&'static str),
}

impl Default for RequestMetrics {
    /// Creates the metrics of no request, which record nothing.
    fn default() -> Self {
        Self {
            began: Instant::now(),
            series: None,
            mode: ResponseMode::NonStreaming,
            first_byte: None,
            end: RequestEnd::Cancelled,
            reported: None,
        }
    }
}

impl RequestMetrics {
    /// Sets the model that is to serve the request; a fallback replaces it.
    pub(crate) fn set_series(&mut self, series: Arc<GenAiSeries>, mode: ResponseMode) {
        self.series = Some(series);
        self.mode = mode;
    }

    pub(crate) fn first_byte(&mut self, status: StatusCode) {
        self.first_byte = Some(self.began.elapsed());
        if !status.is_success() {
            self.end = RequestEnd::ClientError(status);
        }
    }

    pub(crate) fn rejected(&mut self, error: &ApiError) {
        self.end = RequestEnd::Failed(error.code());
    }

    /// Records that the whole response was received; `reported` is the usage in it.
    pub(crate) fn served(&mut self, reported: Option<Usage>) {
        self.reported = reported;
        if !matches!(self.end, RequestEnd::ClientError(_)) {
            self.end = RequestEnd::Served;
        }
    }

    pub(crate) fn failed_mid_stream(&mut self, error: &AttemptError) {
        self.end = RequestEnd::Failed(error.api_error().code());
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let Some(series) = self.series.take() else { return };
        let duration = self.began.elapsed();
        match self.end {
            RequestEnd::Cancelled => return series.record_failure(duration, "cancelled"),
            RequestEnd::ClientError(status) => return series.record_failure(duration, status.as_str()),
            RequestEnd::Failed(code) => return series.record_failure(duration, code),
            RequestEnd::Served => series.record_success(duration),
        }
        let output = self.reported.map(|usage| usage.output).filter(|output| *output > 0);
        if let Some(usage) = self.reported {
            series.record_tokens(usage.input, output);
        }
        let Some(first_byte) = self.first_byte.filter(|_| self.mode == ResponseMode::Stream) else { return };
        series.record_first_token(first_byte);
        if let Some(later) =
            output.and_then(|output| u32::try_from(output - 1).ok()).filter(|later| *later > 0)
        {
            series.record_output_token((duration - first_byte) / later);
        }
    }
}
