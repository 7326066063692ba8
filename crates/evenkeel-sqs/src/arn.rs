//! ARNs (Amazon Resource Names) and URLs of queues.

use crate::options::SqsOptions;

impl SqsOptions {
    /// Returns the ARN of a queue.
    pub(crate) fn arn(&self, name: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{name}", self.region, self.account)
    }

    /// Returns the queue name in an ARN; `Ok(None)` if the ARN belongs to another account or region.
    pub(crate) fn name_of_arn<'a>(&self, arn: &'a str) -> Result<Option<&'a str>, ArnError> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", _, "sqs", region, account, name] = parts[..] else { return Err(ArnError) };
        if name.is_empty() {
            return Err(ArnError);
        }
        Ok(Some(name).filter(|_| region == self.region && account == self.account))
    }

    /// Returns the URL of a queue, on the host that the client reached.
    pub(crate) fn url(&self, host: &str, name: &str) -> String {
        format!("{}://{host}/{}/{name}", self.scheme, self.account)
    }
}

/// Parse error of a queue's ARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the ARN of a queue")]
pub(crate) struct ArnError;

/// Returns the queue name in a URL: its last path segment; the host is ignored.
pub(crate) fn name_of_url(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_last_segment_of_the_url() {
        for url in
            ["http://a:1/000000000000/q", "https://sqs.eu-west-1.amazonaws.com/1/q", "q", "/x/q/", "q?a=/b"]
        {
            assert_eq!(name_of_url(url), "q");
        }
        assert_eq!(name_of_url(""), "");
    }

    #[test]
    fn an_arn_of_this_region_round_trips_and_one_of_another_region_has_no_queue() {
        let options = SqsOptions::default();
        assert_eq!(options.name_of_arn(&options.arn("q")), Ok(Some("q")));
        assert_eq!(options.name_of_arn("arn:aws:sqs:eu-west-1:000000000000:q"), Ok(None));
        for bad in
            ["", "dummy", "arn:aws:sns:us-east-1:000000000000:q", "arn:aws:sqs:us-east-1:000000000000:"]
        {
            assert_eq!(options.name_of_arn(bad), Err(ArnError), "{bad:?}");
        }
    }
}
