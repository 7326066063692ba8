//! Metric names and their help texts.
//!
//! The names up to [`DEAD_LETTERS_TOTAL`] are given by a specification; see docs/specs.md, actor scheduler facade.

macro_rules! metrics {
    ($($name:ident = $text:literal: $help:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`: ", $help, ".")]
            pub const $name: &str = $text;
        )*

        /// Every name, in the order of this file.
        pub const ALL: &[&str] = &[$($name),*];

        /// Returns the help text of a metric of this crate.
        pub fn help(name: &str) -> Option<&'static str> {
            match name {
                $($text => Some($help),)*
                _ => None,
            }
        }
    };
}

metrics! {
    MAILBOX_ENQUEUED_TOTAL = "actor.mailbox.enqueued_total": "messages enqueued, by actor and mailbox queue";
    MAILBOX_DEPTH = "actor.mailbox.depth": "messages waiting in mailboxes, by actor";
    READY_QUEUE_DEPTH = "scheduler.ready_queue.depth": "actors waiting for a worker";
    WORKER_BUSY_RATIO = "scheduler.worker.busy_ratio":
        "share of time since the last snapshot in which the worker was not parked";
    INVOKE_DURATION_MS = "scheduler.invoke.duration_ms": "duration of an actor's run of one or more messages, sampled, by actor";
    LATENCY_MS = "scheduler.latency_ms": "time between becoming ready and running, sampled, by actor";
    DEAD_LETTERS_TOTAL = "dead_letters_total": "messages that reached no handler, by reason";
    MAILBOX_DEQUEUED_TOTAL = "actor.mailbox.dequeued_total": "messages dequeued to be handled or dead-lettered, by actor and mailbox queue";
    MAILBOX_OVERFLOW_TOTAL = "actor.mailbox.overflow_total":
        "sends to a full mailbox, by actor and outcome";
    MAILBOX_FAILURES_TOTAL = "actor.mailbox.failures_total":
        "mailboxes that failed and lost their messages, by actor";
    RESTARTS_TOTAL = "actor.restarts_total": "restarts, by actor";
    FAILURES_TOTAL = "actor.failures_total": "failures, by actor";
    ALIVE = "actor.alive": "live actors, by actor name";
    WORKERS_ACTIVE = "scheduler.workers_active": "running workers, including parked ones";
    RUNS_TOTAL = "scheduler.runs_total": "runs of actors";
    MESSAGES_TOTAL = "scheduler.messages_total": "messages handled";
    YIELDS_TOTAL = "scheduler.yields_total": "runs that used up their budget";
    STEALS_TOTAL = "scheduler.steals_total": "times the worker stole actors from another worker";
    WAKES_TOTAL = "scheduler.wakes_total": "times the worker woke another worker";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specified_names_are_unchanged() {
        let specified = [
            "actor.mailbox.enqueued_total",
            "actor.mailbox.depth",
            "scheduler.ready_queue.depth",
            "scheduler.worker.busy_ratio",
            "scheduler.invoke.duration_ms",
            "scheduler.latency_ms",
            "dead_letters_total",
        ];
        assert_eq!(ALL[..specified.len()], specified);
    }

    #[test]
    fn every_metric_has_a_help_text() {
        assert!(ALL.iter().all(|name| help(name).is_some()));
        assert_eq!(help("other.metric_total"), None);
    }
}
