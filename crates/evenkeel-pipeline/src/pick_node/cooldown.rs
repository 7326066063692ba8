//! Cooldown: an overloaded node (429 or 503) gets no traffic for a while, and is then probed with one request.
//!
//! An overloaded node is not failed: its circuit breaker stays closed.
//!
//! Guarantees: no request is sent during the cooldown; afterwards one probe at a time, until a probe is answered or has
//! not been refused for `probe_timeout`. So a node that stays overloaded refuses one request per cooldown, however many
//! wait for it. The minimum doubles with each consecutive cooldown, up to `probe_timeout`.

use evenkeel_policy::id::RequestId;
use evenkeel_policy::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cooldown {
    /// An overloaded node refuses at once; a probe that has lasted this long is being served.
    probe_timeout: Duration,
    state: State,
    /// Consecutive cooldowns before the current one.
    consecutive: u32,
}

/// The shortest cooldown.
const COOLDOWN_MIN: Duration = Duration::from_millis(1);

/// Effect of a slot that is freed during a cooldown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// A request may probe the node at once.
    EndsIt,
    /// None: the node said when to retry.
    ChangesNothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Cooling {
        until: Instant,
        room: Room,
    },
    /// The cooldown has ended and no request has been sent since.
    ProbeDue,
    /// The cooldown has ended and one request is probing the node.
    Probing {
        request: RequestId,
        until: Instant,
    },
}

impl Cooldown {
    pub(super) fn new(probe_timeout: Duration) -> Self {
        Self { probe_timeout, state: State::Ready, consecutive: 0 }
    }

    /// Reports whether one more request may be sent.
    pub(super) fn allows(&self) -> bool {
        matches!(self.state, State::Ready | State::ProbeDue)
    }

    /// Reports whether the node cools down or is to be probed.
    pub(crate) fn is_cooling(&self) -> bool {
        self.state != State::Ready
    }

    /// Returns the end of the current cooldown.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Cooling { until, .. } => Some(until),
            State::Ready | State::ProbeDue | State::Probing { .. } => None,
        }
    }

    /// Starts or extends a cooldown of at least `requested`; returns its end.
    pub(crate) fn begin(&mut self, now: Instant, requested: Duration, room: Room) -> Instant {
        self.consecutive = match self.state {
            State::Ready => 0,
            State::ProbeDue | State::Probing { .. } => self.consecutive.saturating_add(1),
            State::Cooling { .. } => self.consecutive,
        };
        let minimum = (COOLDOWN_MIN * (1 << self.consecutive.min(20))).min(self.probe_timeout);
        let until = now + requested.max(minimum);
        let until = self.until().map_or(until, |before| before.max(until));
        self.state = State::Cooling { until, room };
        until
    }

    /// Ends a cooldown because a slot was freed, unless the node said when to retry.
    pub(crate) fn on_room(&mut self) {
        if let State::Cooling { room: Room::EndsIt, .. } = self.state {
            self.state = State::ProbeDue;
        }
    }

    pub(super) fn on_send(&mut self, now: Instant, request: RequestId) {
        if self.state == State::ProbeDue {
            self.state = State::Probing { request, until: now + self.probe_timeout };
        }
    }

    pub(crate) fn on_response(&mut self, request: RequestId) {
        if self.is_probe(request) {
            self.state = State::Ready;
        }
    }

    /// Lets another request be the probe if this one ended without a verdict on the node.
    pub(super) fn on_release(&mut self, request: RequestId) {
        if self.is_probe(request) {
            self.state = State::ProbeDue;
        }
    }

    pub(crate) fn on_time(&mut self, now: Instant) {
        self.state = match self.state {
            State::Cooling { until, .. } if until <= now => State::ProbeDue,
            State::Probing { until, .. } if until <= now => State::Ready,
            state => state,
        };
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        match self.state {
            State::Cooling { until, .. } | State::Probing { until, .. } => Some(until),
            State::Ready | State::ProbeDue => None,
        }
    }

    /// Returns the request that probes the node.
    pub(crate) fn probe_request(&self) -> Option<RequestId> {
        match self.state {
            State::Probing { request, .. } => Some(request),
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
    fn after_a_cooldown_one_request_probes_the_node_until_it_is_answered() {
        let mut cooldown = after_cooldown();
        cooldown.on_send(at(3), FIRST);
        assert!(!cooldown.allows());
        cooldown.on_response(OTHER);
        assert!(!cooldown.allows(), "a request sent before the cooldown is no probe");
        cooldown.on_response(FIRST);
        assert!(cooldown.allows() && cooldown.timeout().is_none());
    }

    #[test]
    fn a_cancelled_probe_is_followed_by_another() {
        let mut cooldown = after_cooldown();
        cooldown.on_send(at(3), FIRST);
        cooldown.on_release(FIRST);
        cooldown.on_send(at(3), OTHER);
        assert!(!cooldown.allows());
    }

    #[test]
    fn a_probe_that_is_not_refused_for_a_while_counts_as_served() {
        let mut cooldown = after_cooldown();
        cooldown.on_send(at(3), FIRST);
        assert_eq!(cooldown.timeout(), Some(at(4)));
        cooldown.on_time(at(4));
        assert!(cooldown.allows());
    }

    #[test]
    fn a_cooldown_lasts_as_long_as_the_longest_requested() {
        let mut cooldown = Cooldown::new(Duration::from_secs(1));
        assert_eq!(cooldown.begin(at(0), Duration::from_secs(9), Room::ChangesNothing), at(9));
        assert_eq!(cooldown.begin(at(0), Duration::from_secs(2), Room::ChangesNothing), at(9));
        cooldown.on_time(at(8));
        assert_eq!(cooldown.until(), Some(at(9)));
    }

    /// Half a minute of refusals with no `Retry-After` costs 39 probes, not 30 000.
    #[test]
    fn consecutive_cooldowns_get_longer_up_to_the_default() {
        let mut cooldown = Cooldown::new(Duration::from_secs(1));
        let mut now = at(0);
        let mut probes = 0;
        while now < at(30) {
            cooldown.on_send(now, FIRST);
            now = cooldown.begin(now, Duration::ZERO, Room::ChangesNothing);
            cooldown.on_time(now);
            probes += 1;
        }
        assert_eq!(probes, 39);
        cooldown.on_send(now, FIRST);
        cooldown.on_response(FIRST);
        assert_eq!(
            cooldown.begin(now, Duration::ZERO, Room::ChangesNothing),
            now + COOLDOWN_MIN,
            "an answered probe resets the minimum"
        );
    }

    #[test]
    fn a_freed_slot_ends_a_cooldown_unless_the_node_said_when_to_retry() {
        for (room, is_ended) in [(Room::EndsIt, true), (Room::ChangesNothing, false)] {
            let mut cooldown = Cooldown::new(Duration::from_secs(1));
            cooldown.begin(at(0), Duration::from_secs(3), room);
            cooldown.on_room();
            assert_eq!(cooldown.allows(), is_ended, "{room:?}");
        }
    }

    fn after_cooldown() -> Cooldown {
        let mut cooldown = Cooldown::new(Duration::from_secs(1));
        cooldown.begin(at(0), Duration::from_secs(3), Room::ChangesNothing);
        assert!(!cooldown.allows());
        cooldown.on_time(at(3));
        cooldown
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
