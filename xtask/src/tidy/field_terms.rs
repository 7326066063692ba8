//! Usual terms of the field (circuit breaker, lease ...), which must be greppable in the files that implement them.

use super::words::{Word, is_line_break, words};
use super::{File, Finding};

const RULE: &str = "field-terms";

/// Terms, and the files that must name them.
///
/// Every term must occur in at least one of the files, and every file must contain at least one of the terms.
struct Terms {
    terms: &'static [&'static str],
    /// Paths without the prefix `crates/evenkeel-`.
    files: &'static [&'static str],
}

const FIELD_TERMS: &[Terms] = &[
    Terms {
        terms: &["circuit breaker", "half-open", "outlier detection", "passive health check"],
        files: &["pipeline/src/pick_node/circuit_breaker.rs"],
    },
    Terms { terms: &["cooldown", "overloaded"], files: &["pipeline/src/pick_node/cooldown.rs"] },
    Terms {
        terms: &["load shedding", "backpressure", "eviction"],
        files: &["pipeline/src/admit.rs", "policy/src/backpressure.rs"],
    },
    Terms { terms: &["failover"], files: &["pipeline/src/send.rs"] },
    Terms { terms: &["retry budget"], files: &["pipeline/src/budget.rs"] },
    Terms { terms: &["rendezvous hashing", "bounded load"], files: &["policy/src/score/spread.rs"] },
    Terms { terms: &["sans-I/O", "state machine"], files: &["pipeline/src/load_manager.rs"] },
    Terms { terms: &["adaptive concurrency limit", "knee"], files: &["policy/src/concurrency_limit.rs"] },
    Terms { terms: &["deficit round robin", "DRR"], files: &["policy/src/drr.rs"] },
    Terms { terms: &["SWRR"], files: &["policy/src/swrr.rs"] },
    Terms { terms: &["EWMA"], files: &["policy/src/estimate/ewma.rs"] },
    Terms { terms: &["top-k weighted random choice"], files: &["policy/src/score/top_k.rs"] },
    Terms { terms: &["hot/cold"], files: &["policy/src/score/hot_cold.rs"] },
    Terms { terms: &["health check"], files: &["llm/src/monitor/health_check.rs"] },
    Terms { terms: &["service discovery"], files: &["llm/src/monitor/discovery.rs"] },
    Terms { terms: &["scrape"], files: &["llm/src/monitor/scraper.rs"] },
    Terms { terms: &["time to first byte"], files: &["llm/src/proxy.rs"] },
    Terms { terms: &["streaming", "end-of-stream marker"], files: &["llm/src/sse.rs"] },
    Terms { terms: &["connection pool", "keep-alive", "idle reaper"], files: &["upstream/src/pool.rs"] },
    Terms { terms: &["request smuggling", "CL.TE"], files: &["server/src/framing.rs"] },
    Terms { terms: &["rate limit", "sliding window"], files: &["server/src/rate_window.rs"] },
    Terms { terms: &["graceful shutdown", "drain"], files: &["server/src/listener.rs"] },
    Terms { terms: &["client disconnect"], files: &["server/src/disconnect.rs"] },
    Terms {
        terms: &["authentication", "API key"],
        files: &["server/src/tenant.rs", "server/src/api_key.rs"],
    },
    Terms {
        terms: &["lost wake-up", "drop guard"],
        files: &["scheduler/src/lib.rs", "scheduler/src/slot.rs"],
    },
    Terms {
        terms: &["lease", "visibility timeout", "redelivery", "at-least-once"],
        files: &["queue/src/queue_state/leases.rs"],
    },
    Terms {
        terms: &["dead-letter queue", "redrive"],
        files: &["queue/src/queue_state/abandon.rs", "sqs/src/redrive.rs"],
    },
    Terms { terms: &["prefetch", "head-of-line blocking"], files: &["queue/src/queue_state/key_queue.rs"] },
    Terms { terms: &["token bucket", "throttle"], files: &["queue/src/queue_state/limiter.rs"] },
    Terms { terms: &["TTL", "retention", "expiry"], files: &["queue/src/queue_state/expiry.rs"] },
    Terms { terms: &["group commit", "fsync"], files: &["queue/src/store/disk/writer.rs"] },
    Terms {
        terms: &["write-ahead log", "journal", "snapshot", "recovery"],
        files: &["queue/src/store/disk/keyspaces.rs"],
    },
    Terms {
        terms: &["segment", "compaction", "tombstone"],
        files: &["queue/src/store/disk/segments.rs", "queue/src/store/disk/writer/maintenance.rs"],
    },
    Terms {
        terms: &["deduplication", "idempotent"],
        files: &["queue/src/store/disk/dedup.rs", "queue/src/message.rs"],
    },
    Terms {
        terms: &["fencing token", "owner epoch"],
        files: &["queue/src/id.rs", "queue/src/queues/ownership.rs"],
    },
    Terms { terms: &["receipt handle", "HMAC"], files: &["queue/src/receipt.rs"] },
    Terms { terms: &["long polling"], files: &["sqs/src/receive.rs"] },
    Terms { terms: &["SigV4"], files: &["server/src/sigv4.rs"] },
    Terms { terms: &["ARN"], files: &["sqs/src/arn.rs"] },
    Terms {
        terms: &["mailbox", "high watermark", "overflow strategy"],
        files: &["actor/src/mailbox.rs", "actor/src/mailbox/options.rs"],
    },
    Terms {
        terms: &["work stealing", "LIFO slot", "injection queue"],
        files: &["actor/src/ready/work_stealing.rs"],
    },
    Terms {
        terms: &["supervision", "restart", "exponential backoff", "jitter"],
        files: &["actor/src/guardian.rs", "actor/src/guardian/backoff.rs"],
    },
    Terms { terms: &["dead letters"], files: &["actor/src/dead_letters.rs"] },
    Terms { terms: &["death watch"], files: &["actor/src/context.rs"] },
    Terms { terms: &["stash"], files: &["actor/src/stash.rs"] },
    Terms { terms: &["become"], files: &["actor/src/behaviour.rs"] },
    Terms { terms: &["hierarchical timing wheel"], files: &["actor/src/timing_wheel.rs"] },
    Terms { terms: &["ask pattern"], files: &["actor/src/reply.rs"] },
    Terms {
        terms: &["slab", "generational index", "run permit"],
        files: &["actor/src/raw/slab.rs", "actor/src/raw/run_permit.rs"],
    },
    Terms { terms: &["label cardinality"], files: &["telemetry/src/family.rs"] },
    Terms { terms: &["text exposition format"], files: &["telemetry/src/prometheus.rs"] },
    Terms { terms: &["fault injection"], files: &["sim-node/src/fault.rs"] },
    Terms { terms: &["discrete-event simulation"], files: &["sim/src/event_queue.rs"] },
];

pub(super) fn presence(files: &[File]) -> Vec<Finding> {
    FIELD_TERMS.iter().flat_map(|terms| missing(terms, files)).collect()
}

fn missing(Terms { terms, files: paths }: &Terms, files: &[File]) -> Vec<Finding> {
    let paths: Vec<String> = paths.iter().map(|path| format!("crates/evenkeel-{path}")).collect();
    let found: Vec<Option<Vec<Word>>> = paths
        .iter()
        .map(|path| files.iter().find(|file| file.path == *path).map(|file| words(&file.text)))
        .collect();
    let finding = |path: &String, message| Finding { path: path.clone(), line: 1, message, rule: RULE };
    let mut findings = Vec::new();
    for (path, words) in paths.iter().zip(&found) {
        match words {
            None => findings
                .push(finding(path, format!("the file is missing; it must name: {}", terms.join(", ")))),
            Some(words) if 1 < paths.len() && !terms.iter().any(|term| contains(words, term)) => {
                findings.push(finding(path, format!("names none of its field terms: {}", terms.join(", "))));
            }
            Some(_) => {}
        }
    }
    if found.iter().all(Option::is_some) {
        let is_absent = |term: &&&str| !found.iter().flatten().any(|words| contains(words, term));
        for term in terms.iter().filter(is_absent) {
            let message = match &paths[1..] {
                [] => format!("does not name its field term \"{term}\""),
                others => format!("neither names the field term \"{term}\" nor does {}", others.join(" or ")),
            };
            findings.extend(paths.first().map(|path| finding(path, message)));
        }
    }
    findings
}

/// Reports whether a text contains a term, in any case, with any ending ("leases"), hyphenated or over a line break.
fn contains(found: &[Word], term: &str) -> bool {
    let term = words(term);
    (0..found.len()).any(|index| term.len() <= found.len() - index && matches_term(&found[index..], &term))
}

fn matches_term(found: &[Word], term: &[Word]) -> bool {
    term.iter().zip(found).enumerate().all(|(index, (expected, word))| {
        let is_last = index + 1 == term.len();
        let connected = index == 0 || is_gap(word.gap, expected.gap);
        let prefix = word.text.get(..expected.text.len()).unwrap_or("");
        let complete = is_last || word.text.len() == expected.text.len();
        connected && complete && prefix.eq_ignore_ascii_case(expected.text)
    })
}

/// Reports whether a gap matches that of the term; the parts of an identifier such as `CircuitBreaker` have no gap.
fn is_gap(gap: &str, expected: &str) -> bool {
    if expected.is_empty() || gap.is_empty() {
        return expected == gap;
    }
    gap == expected || matches!(gap, " " | "-") || is_line_break(gap)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    const ONE: Terms = Terms { terms: &["circuit breaker", "half-open"], files: &["a/src/b.rs"] };
    const TWO: Terms = Terms { terms: &["drop guard", "lost wake-up"], files: &["a/src/b.rs", "a/src/c.rs"] };

    #[test]
    fn a_term_is_found_in_any_spelling() {
        for (term, text) in [
            ("half-open", "a half open breaker"),
            ("half-open", "//! is Half-\n//! open"),
            ("circuit breaker", "//! Circuit\n//! breakers"),
            ("hot/cold", "hot/cold"),
            ("hot/cold", "hot-cold"),
            ("sans-I/O", "a sans-I/O machine"),
            ("CL.TE", "CL.TE"),
            ("SigV4", "AWS sigV4"),
            ("lease", "leases"),
        ] {
            assert!(contains(&words(text), term), "{term} in {text}");
        }
        for (term, text) in [
            ("circuit breaker", "CircuitBreaker, circuit_breaker, circuit. Breaker"),
            ("lease", "release"),
            ("half-open", "halfopen"),
        ] {
            assert!(!contains(&words(text), term), "{term} in {text}");
        }
    }

    #[test]
    fn a_missing_term_is_reported() {
        let files = [file("crates/evenkeel-a/src/b.rs", "//! Circuit breaker.")];
        assert_eq!(messages(&missing(&ONE, &files)), [(1, "does not name its field term \"half-open\"")]);
        let files = [file("crates/evenkeel-a/src/b.rs", "//! Circuit breaker: half-open.")];
        assert_eq!(messages(&missing(&ONE, &files)), []);
    }

    #[test]
    fn a_missing_file_is_reported_once() {
        assert_eq!(
            messages(&missing(&ONE, &[])),
            [(1, "the file is missing; it must name: circuit breaker, half-open")]
        );
    }

    #[test]
    fn with_two_files_each_must_contain_a_term_and_each_term_must_be_in_one() {
        let files =
            |b: &str, c: &str| [file("crates/evenkeel-a/src/b.rs", b), file("crates/evenkeel-a/src/c.rs", c)];
        assert_eq!(messages(&missing(&TWO, &files("drop guard", "lost wake-up"))), []);
        assert_eq!(
            messages(&missing(&TWO, &files("drop guard", "drop guard"))),
            [(1, "neither names the field term \"lost wake-up\" nor does crates/evenkeel-a/src/c.rs")]
        );
        assert_eq!(
            messages(&missing(&TWO, &files("", "drop guard, lost wake-up"))),
            [(1, "names none of its field terms: drop guard, lost wake-up")]
        );
    }
}
