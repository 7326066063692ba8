//! The names of the metrics, and what each one tells.
//!
//! The names up to [`DEAD_LETTERS_TOTAL`] are those of seed 004.

macro_rules! metrics {
    ($($name:ident = $text:literal: $help:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`: ", $help, ".")]
            pub const $name: &str = $text;
        )*

        /// Every name, in the order of this page.
        pub const ALL: &[&str] = &[$($name),*];

        /// Says in a phrase what a metric of ours tells.
        pub fn help(name: &str) -> Option<&'static str> {
            match name {
                $($text => Some($help),)*
                _ => None,
            }
        }
    };
}

metrics! {
    MAILBOX_ENQUEUED_TOTAL = "actor.mailbox.enqueued_total": "messages taken in, by actor and lane";
    MAILBOX_DEPTH = "actor.mailbox.depth": "messages that wait, by actor";
    READY_QUEUE_DEPTH = "scheduler.ready_queue.depth": "actors that wait for a worker";
    WORKER_BUSY_RATIO = "scheduler.worker.busy_ratio":
        "the part of its time a worker ran actors since the last reading";
    INVOKE_DURATION_MS = "scheduler.invoke.duration_ms": "how long a run of an actor took, one message or several; a sample, by actor";
    LATENCY_MS = "scheduler.latency_ms": "how long ready actors waited for a worker, a sample, by actor";
    DEAD_LETTERS_TOTAL = "dead_letters_total": "messages that reached no handler, by reason";
    MAILBOX_DEQUEUED_TOTAL = "actor.mailbox.dequeued_total": "messages taken out to be handled or buried, by actor and lane";
    MAILBOX_OVERFLOW_TOTAL = "actor.mailbox.overflow_total":
        "messages that found the mailbox full, by actor and what became of them";
    RESTARTS_TOTAL = "actor.restarts_total": "restarts, by actor";
    FAILURES_TOTAL = "actor.failures_total": "failures, by actor";
    ALIVE = "actor.alive": "actors that are not stopped, by actor";
    WORKERS_ACTIVE = "scheduler.workers_active": "workers that there are, asleep or not";
    RUNS_TOTAL = "scheduler.runs_total": "times a worker ran an actor";
    MESSAGES_TOTAL = "scheduler.messages_total": "messages a worker handed to actors";
    YIELDS_TOTAL = "scheduler.yields_total": "runs that used up their budget";
    STEALS_TOTAL = "scheduler.steals_total": "times a worker took actors from another";
    WAKES_TOTAL = "scheduler.wakes_total": "times a worker woke another";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_seed_are_kept_to_the_letter() {
        let seed = [
            "actor.mailbox.enqueued_total",
            "actor.mailbox.depth",
            "scheduler.ready_queue.depth",
            "scheduler.worker.busy_ratio",
            "scheduler.invoke.duration_ms",
            "scheduler.latency_ms",
            "dead_letters_total",
        ];
        assert_eq!(ALL[..seed.len()], seed);
    }

    #[test]
    fn every_metric_says_what_it_tells() {
        assert!(ALL.iter().all(|name| help(name).is_some()));
        assert_eq!(help("somebody.elses_total"), None);
    }
}
