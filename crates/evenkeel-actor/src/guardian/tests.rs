//! Supervision decisions, one failure after another.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn the_decider_sees_the_error_and_its_directive_is_followed() {
    let supervision = Supervision::default().with_decider(|error| match error.kind() {
        ErrorKind::Failed => SupervisionDirective::Resume,
        ErrorKind::Panicked => SupervisionDirective::Restart,
        ErrorKind::Mailbox => SupervisionDirective::Stop,
        ErrorKind::Escalated => SupervisionDirective::Escalate,
    });
    let mut child = Child::new(supervision);
    assert_eq!(child.fails_with(ActorError::new("a")), SupervisionDecision::Resume);
    assert_eq!(
        child.fails_with(ActorError::mailbox("b")),
        SupervisionDecision::Stop { reason: StopReason::Directed }
    );
    assert_eq!(child.fails_with(ActorError::escalated("c")), SupervisionDecision::Escalate);
    assert_eq!(child.history.restarts(), 0);
    assert!(matches!(child.fails_with(ActorError::panicked("d")), SupervisionDecision::Restart { .. }));
    assert_eq!(child.history.restarts(), 1);
}

#[test]
fn exactly_max_restarts_are_granted_and_the_next_failure_stops() {
    let mut child = Child::new(without_delay(3));
    for restarts in 1..=3 {
        assert_eq!(child.fails_after(SECOND), SupervisionDecision::Restart { after: Duration::ZERO });
        assert_eq!(child.history.restarts(), restarts);
    }
    let reason = StopReason::RestartsExhausted { max_restarts: 3, within: MINUTE };
    assert_eq!(child.fails_after(SECOND), SupervisionDecision::Stop { reason });
    assert_eq!(reason.to_string(), "the limit of 3 restarts within 60s is reached");
    assert_eq!(child.history.restarts(), 3, "a denied restart does not count");
}

#[test]
fn with_no_restart_allowed_the_first_failure_stops() {
    let mut child = Child::new(without_delay(0));
    assert!(child.is_stopped_after(SECOND));
}

#[test]
fn a_restart_leaves_the_window_exactly_at_its_end() {
    let mut child = Child::new(without_delay(1));
    assert!(!child.is_stopped_after(SECOND));
    assert!(child.is_stopped_after(MINUTE - Duration::from_nanos(1)));
    assert!(!child.is_stopped_after(Duration::from_nanos(1)));
}

#[test]
fn the_window_slides_with_each_restart_instead_of_starting_over() {
    let mut child = Child::new(without_delay(2));
    assert!(!child.is_stopped_after(40 * SECOND));
    assert!(!child.is_stopped_after(40 * SECOND));
    assert!(!child.is_stopped_after(40 * SECOND), "the first restart is 80 s old");
    assert!(child.is_stopped_after(15 * SECOND), "the second restart is 55 s old");
}

#[test]
fn a_clock_that_steps_back_grants_no_extra_restart() {
    let mut child = Child::new(without_delay(1));
    assert!(!child.is_stopped_after(10 * MINUTE));
    child.now = Instant::ORIGIN;
    assert!(child.is_stopped_after(SECOND));
}

#[test]
fn delays_grow_while_failures_follow_each_other() {
    let mut child = Child::new(Supervision::default());
    let delays: Vec<_> = (0..4).map(|_| child.delay_after(SECOND).as_millis()).collect();
    assert_eq!(delays, [10, 20, 40, 80]);
}

#[test]
fn a_window_without_failures_resets_the_delays() {
    let mut child = Child::new(Supervision::default());
    assert_eq!(child.delay_after(SECOND).as_millis(), 10);
    assert_eq!(child.delay_after(SECOND).as_millis(), 20);
    assert_eq!(child.delay_after(MINUTE - SECOND).as_millis(), 40);
    assert_eq!(child.delay_after(MINUTE).as_millis(), 10);
}

#[test]
fn waiting_for_a_restart_does_not_reset_the_delays() {
    let hour = 60 * MINUTE;
    let backoff = Backoff::new(hour, 100 * hour, 2, 0).unwrap();
    let mut child = Child::new(Supervision::default().with_backoff(backoff));
    let delays: Vec<_> = (0..4).map(|_| child.delay_after(SECOND)).collect();
    assert_eq!(delays, [hour, 2 * hour, 4 * hour, 8 * hour]);
}

#[test]
fn the_default_stops_a_restart_storm() {
    let mut child = Child::new(Supervision::default());
    let storm = core::iter::from_fn(|| match child.fails_after(Duration::ZERO) {
        SupervisionDecision::Restart { after } => Some(after),
        _ => None,
    });
    let delays: Vec<_> = storm.take(1_000).collect();
    assert_eq!(delays.len(), 10);
    assert_eq!(delays.iter().sum::<Duration>(), Duration::from_millis(10_230));
}

#[test]
fn a_history_costs_nothing_before_the_first_restart() {
    assert_eq!(RestartHistory::new(), RestartHistory::default());
    assert!(size_of::<RestartHistory>() <= 40, "{} bytes", size_of::<RestartHistory>());
}

fn without_delay(max_restarts: u32) -> Supervision {
    Supervision::default().with_backoff(Backoff::NONE).with_max_restarts(max_restarts, MINUTE).unwrap()
}

struct Child {
    supervision: Supervision,
    history: RestartHistory,
    now: Instant,
}

impl Child {
    fn new(supervision: Supervision) -> Self {
        Self { supervision, history: RestartHistory::new(), now: Instant::ORIGIN }
    }

    fn fails_with(&mut self, error: ActorError) -> SupervisionDecision {
        let decision = decide(&self.supervision, &mut self.history, &error, self.now, 0);
        if let SupervisionDecision::Restart { after } = decision {
            self.now += after;
        }
        decision
    }

    /// Runs the child for `run_time`, lets it fail, and waits for the delay of the decision.
    fn fails_after(&mut self, run_time: Duration) -> SupervisionDecision {
        self.now += run_time;
        self.fails_with(ActorError::new("any"))
    }

    fn is_stopped_after(&mut self, run_time: Duration) -> bool {
        matches!(self.fails_after(run_time), SupervisionDecision::Stop { .. })
    }

    fn delay_after(&mut self, run_time: Duration) -> Duration {
        match self.fails_after(run_time) {
            SupervisionDecision::Restart { after } => after,
            other => panic!("{other:?} is not a restart"),
        }
    }
}
