//! A busy node's rest: how long it is spared, and how it is asked again.
//!
//! Bounds: while it rests it is asked nothing; rested, it is asked by one request at a time until one is answered, or was
//! not refused for `trial_max`. So a node that stays busy refuses one request per rest, however many wait for it; and
//! each rest in a row is at least twice as long as the one before had to be, until that is `trial_max`.

use evenkeel_policy::time::{Duration, Instant};

use crate::accept::RequestId;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cooldown {
    /// A node that has no room says so at once; who has waited this long is being worked on.
    trial_max: Duration,
    state: State,
    /// Rests since it last had room.
    rests: u32,
}

/// The shortest rest.
const REST_MIN: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Cooling {
        until: Instant,
    },
    /// Rested, and nobody has asked since.
    ProbeDue,
    /// Rested, and one asks.
    Probing {
        by: RequestId,
        until: Instant,
    },
}

impl Cooldown {
    pub(super) fn new(trial_max: Duration) -> Self {
        Self { trial_max, state: State::Ready, rests: 0 }
    }

    /// Tells whether one more request may be sent.
    pub(super) fn admits(&self) -> bool {
        matches!(self.state, State::Ready | State::ProbeDue)
    }

    /// Until when it rests, if it does.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Cooling { until } => Some(until),
            State::Ready | State::ProbeDue | State::Probing { .. } => None,
        }
    }

    /// Begins a rest as long as asked for, or prolongs it; the point at which it ends.
    pub(crate) fn begin(&mut self, now: Instant, asked: Duration) -> Instant {
        self.rests = match self.state {
            State::Ready => 0,
            State::ProbeDue | State::Probing { .. } => self.rests.saturating_add(1),
            State::Cooling { .. } => self.rests,
        };
        let least = (REST_MIN * (1 << self.rests.min(20))).min(self.trial_max);
        let until = now + asked.max(least);
        let until = self.until().map_or(until, |before| before.max(until));
        self.state = State::Cooling { until };
        until
    }

    pub(super) fn on_send(&mut self, now: Instant, request: RequestId) {
        if self.state == State::ProbeDue {
            self.state = State::Probing { by: request, until: now + self.trial_max };
        }
    }

    pub(crate) fn on_answer(&mut self, request: RequestId) {
        if self.is_probe(request) {
            self.state = State::Ready;
        }
    }

    /// Notes that a request gave its slot back without saying anything about the node.
    pub(super) fn on_release(&mut self, request: RequestId) {
        if self.is_probe(request) {
            self.state = State::ProbeDue;
        }
    }

    pub(crate) fn on_time(&mut self, now: Instant) {
        self.state = match self.state {
            State::Cooling { until } if until <= now => State::ProbeDue,
            State::Probing { until, .. } if until <= now => State::Ready,
            state => state,
        };
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        match self.state {
            State::Cooling { until } | State::Probing { until, .. } => Some(until),
            State::Ready | State::ProbeDue => None,
        }
    }

    /// Who asks a rested node, if anybody does.
    pub(crate) fn probe_request(&self) -> Option<RequestId> {
        match self.state {
            State::Probing { by, .. } => Some(by),
            State::Ready | State::Cooling { .. } | State::ProbeDue => None,
        }
    }

    fn is_probe(&self, request: RequestId) -> bool {
        self.probe_request() == Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: RequestId = RequestId(1);
    const OTHER: RequestId = RequestId(2);

    #[test]
    fn a_rested_node_is_asked_by_one_until_that_is_answered() {
        let mut rest = rested();
        rest.on_send(at(3), FIRST);
        assert!(!rest.admits());
        rest.on_answer(OTHER);
        assert!(!rest.admits(), "who was there before the rest says nothing");
        rest.on_answer(FIRST);
        assert!(rest.admits() && rest.timeout().is_none());
    }

    #[test]
    fn one_who_leaves_is_followed_by_another() {
        let mut rest = rested();
        rest.on_send(at(3), FIRST);
        rest.on_release(FIRST);
        rest.on_send(at(3), OTHER);
        assert!(!rest.admits());
    }

    #[test]
    fn one_who_is_not_refused_for_a_while_is_taken() {
        let mut rest = rested();
        rest.on_send(at(3), FIRST);
        assert_eq!(rest.timeout(), Some(at(4)));
        rest.on_time(at(4));
        assert!(rest.admits());
    }

    #[test]
    fn a_rest_is_as_long_as_the_longest_asked_for() {
        let mut rest = Cooldown::new(Duration::from_secs(1));
        assert_eq!(rest.begin(at(0), Duration::from_secs(9)), at(9));
        assert_eq!(rest.begin(at(0), Duration::from_secs(2)), at(9));
        rest.on_time(at(8));
        assert_eq!(rest.until(), Some(at(9)));
    }

    /// Whatever it asks for: who refuses for half a minute is asked forty times, not thirty thousand.
    #[test]
    fn rests_in_a_row_get_longer_up_to_the_usual_one() {
        let mut rest = Cooldown::new(Duration::from_secs(1));
        let mut now = at(0);
        let mut asked = 0;
        while now < at(30) {
            rest.on_send(now, FIRST);
            now = rest.begin(now, Duration::ZERO);
            rest.on_time(now);
            asked += 1;
        }
        assert_eq!(asked, 39);
        rest.on_send(now, FIRST);
        rest.on_answer(FIRST);
        assert_eq!(rest.begin(now, Duration::ZERO), now + REST_MIN, "it had room in between");
    }

    fn rested() -> Cooldown {
        let mut rest = Cooldown::new(Duration::from_secs(1));
        rest.begin(at(0), Duration::from_secs(3));
        assert!(!rest.admits());
        rest.on_time(at(3));
        rest
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
