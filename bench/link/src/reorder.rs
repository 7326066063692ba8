//! Reorder delay of a link's receiving side, from the histogram on its metrics page.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use evenkeel_test_network::Namespace;

/// Address of the page in the core.
pub(crate) const PAGE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9464));
/// Metrics of a turn, with the quantile of each.
pub(crate) const REORDER: &[(&str, f64)] =
    &[("reorder p50 ms", 0.50), ("reorder p95 ms", 0.95), ("reorder p99 ms", 0.99)];

const BUCKETS: &str = "nyx_multipath_reorder_delay_seconds_bucket{le=\"";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Cumulative counts of the histogram by upper bound in seconds, without the bucket of everything longer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ReorderDelays(Vec<(f64, f64)>);

impl ReorderDelays {
    /// Reads the page of the listening side.
    pub(crate) fn read(core: &Namespace) -> io::Result<Self> {
        core.run(|| {
            let mut socket = TcpStream::connect(PAGE)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
            let mut page = String::new();
            socket.read_to_string(&mut page)?;
            Ok(Self::parse(&page))
        })
    }

    fn parse(page: &str) -> Self {
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(BUCKETS)?.split_once("\"} ")?;
            Some((bound.parse().ok().filter(|bound: &f64| bound.is_finite())?, count.trim().parse().ok()?))
        };
        Self(page.lines().filter_map(bucket).collect())
    }

    /// Returns the upper bound of the bucket that contains a quantile of the delays since `before`, in milliseconds.
    pub(crate) fn quantile_ms(&self, before: &Self, quantile: f64) -> Option<f64> {
        let at_first = |index: usize| before.0.get(index).map_or(0.0, |(_, count)| *count);
        let grown: Vec<_> = self
            .0
            .iter()
            .enumerate()
            .map(|(index, (bound, count))| (*bound, count - at_first(index)))
            .collect();
        let total = grown.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        grown.iter().find(|(_, count)| total * quantile <= *count).map(|(bound, _)| bound * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_contains_it() {
        let page = |counts: [u32; 3]| {
            let line = |bound: &str, count: u32| format!("{BUCKETS}{bound}\"}} {count}\n");
            let [a, b, c] = counts;
            ReorderDelays::parse(&(line("0.001", a) + &line("0.1", b) + &line("0.5", c) + &line("+Inf", c)))
        };
        let before = page([10, 10, 10]);
        let after = page([10, 60, 110]);
        assert_eq!(after.quantile_ms(&before, 0.5), Some(100.0));
        assert_eq!(after.quantile_ms(&before, 0.51), Some(500.0));
        assert_eq!(after.quantile_ms(&ReorderDelays::default(), 0.05), Some(1.0));
        assert_eq!(before.quantile_ms(&before, 0.5), None, "nothing waited");
    }
}
