//! What queues are called: ARNs and URLs.

use crate::options::SqsOptions;

impl SqsOptions {
    /// Names a queue as policies do.
    pub(crate) fn arn(&self, name: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{name}", self.region, self.account)
    }

    /// Reads a queue's name out of its ARN; `Err` when it is no ARN, `Ok(None)` when it is another account's or region's.
    pub(crate) fn name_of_arn<'a>(&self, arn: &'a str) -> Result<Option<&'a str>, ArnError> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", _, "sqs", region, account, name] = parts[..] else { return Err(ArnError) };
        if name.is_empty() {
            return Err(ArnError);
        }
        Ok(Some(name).filter(|_| region == self.region && account == self.account))
    }

    /// Names a queue as clients call it, on the host they reached.
    pub(crate) fn url(&self, host: &str, name: &str) -> String {
        format!("{}://{host}/{}/{name}", self.scheme, self.account)
    }
}

/// A text that is no ARN of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArnError;

/// Reads a queue's name out of its URL, whatever host that names: its last part.
pub(crate) fn name_of_url(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_by_the_last_part_of_its_url() {
        for url in
            ["http://a:1/000000000000/q", "https://sqs.eu-west-1.amazonaws.com/1/q", "q", "/x/q/", "q?a=/b"]
        {
            assert_eq!(name_of_url(url), "q");
        }
        assert_eq!(name_of_url(""), "");
    }

    #[test]
    fn an_arn_reads_back_and_anothers_is_nobodys() {
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
