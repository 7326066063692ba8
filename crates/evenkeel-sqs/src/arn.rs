//! ARNs (Amazon Resource Names) and URLs of queues.

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::Namespace;

use crate::options::SqsOptions;

/// A queue as a client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueRef<'a> {
    /// Namespace of the account that the client names; `None` if it names none.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) name: &'a str,
}

impl<'a> QueueRef<'a> {
    /// Refers to a queue by its name alone.
    pub(crate) fn by_name(name: &'a str) -> Self {
        Self { namespace: None, name }
    }
}

impl SqsOptions {
    /// Returns the account number of a namespace.
    pub(crate) fn account_of(&self, namespace: Namespace) -> AccountNumber {
        match namespace {
            Namespace::Shared => self.account,
            Namespace::Account(account) => account,
        }
    }

    /// Returns the namespace of an account number.
    ///
    /// The default account of shared queues names them even if another one is configured, so that URLs and ARNs from
    /// before the change keep working.
    pub(crate) fn namespace_of(&self, account: AccountNumber) -> Namespace {
        if account == self.account || account == AccountNumber::ZERO {
            return Namespace::Shared;
        }
        Namespace::Account(account)
    }

    /// Returns the ARN of a queue.
    pub(crate) fn arn(&self, namespace: Namespace, name: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{name}", self.region, self.account_of(namespace))
    }

    /// Returns the queue that an ARN names; `Ok(None)` if the ARN belongs to another region or to no account.
    pub(crate) fn queue_of_arn<'a>(&self, arn: &'a str) -> Result<Option<QueueRef<'a>>, ArnError> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", _, "sqs", region, account, name] = parts[..] else { return Err(ArnError) };
        if name.is_empty() {
            return Err(ArnError);
        }
        let account: Option<AccountNumber> = account.parse().ok().filter(|_| region == self.region);
        let namespace = account.map(|account| self.namespace_of(account));
        Ok(namespace.map(|namespace| QueueRef { namespace: Some(namespace), name }))
    }

    /// Returns the URL of a queue, on the host that the client reached.
    pub(crate) fn url(&self, host: &str, namespace: Namespace, name: &str) -> String {
        format!("{}://{host}/{}/{name}", self.scheme, self.account_of(namespace))
    }

    /// Returns the queue that a URL names: its last path segment, after the account; the host is ignored.
    pub(crate) fn queue_of_url<'a>(&self, url: &'a str) -> QueueRef<'a> {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let mut segments = path.trim_end_matches('/').rsplit('/');
        let name = segments.next().unwrap_or_default();
        let account: Option<AccountNumber> = segments.next().and_then(|account| account.parse().ok());
        QueueRef { namespace: account.map(|account| self.namespace_of(account)), name }
    }
}

/// Parse error of a queue's ARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the ARN of a queue")]
pub(crate) struct ArnError;

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "123456789012";

    fn owned() -> Namespace {
        Namespace::Account(OWNER.parse().unwrap())
    }

    #[test]
    fn the_name_is_the_last_segment_of_the_url_after_the_account() {
        let options = SqsOptions::default();
        for url in ["https://sqs.eu-west-1.amazonaws.com/1/q", "q", "/x/q/", "q?a=/b"] {
            assert_eq!(options.queue_of_url(url), QueueRef::by_name("q"), "{url}");
        }
        assert_eq!(options.queue_of_url(""), QueueRef::by_name(""));
        let shared = QueueRef { namespace: Some(Namespace::Shared), name: "q" };
        assert_eq!(options.queue_of_url("http://a:1/000000000000/q"), shared);
        let url = options.url("a:1", owned(), "q");
        assert_eq!(url, format!("http://a:1/{OWNER}/q"));
        assert_eq!(options.queue_of_url(&url), QueueRef { namespace: Some(owned()), name: "q" });
    }

    #[test]
    fn an_arn_of_this_region_round_trips_and_one_of_another_region_has_no_queue() {
        let options = SqsOptions::default();
        for namespace in [Namespace::Shared, owned()] {
            let queue = QueueRef { namespace: Some(namespace), name: "q" };
            assert_eq!(options.queue_of_arn(&options.arn(namespace, "q")), Ok(Some(queue)));
        }
        for other in ["arn:aws:sqs:eu-west-1:000000000000:q", "arn:aws:sqs:us-east-1:1:q"] {
            assert_eq!(options.queue_of_arn(other), Ok(None));
        }
        for bad in
            ["", "dummy", "arn:aws:sns:us-east-1:000000000000:q", "arn:aws:sqs:us-east-1:000000000000:"]
        {
            assert_eq!(options.queue_of_arn(bad), Err(ArnError), "{bad:?}");
        }
    }

    #[test]
    fn the_default_account_names_shared_queues_even_if_another_is_configured() {
        let options = SqsOptions { account: OWNER.parse().unwrap(), ..SqsOptions::default() };
        assert_eq!(options.arn(Namespace::Shared, "q"), format!("arn:aws:sqs:us-east-1:{OWNER}:q"));
        for account in [OWNER, "000000000000"] {
            assert_eq!(options.namespace_of(account.parse().unwrap()), Namespace::Shared);
        }
    }
}
