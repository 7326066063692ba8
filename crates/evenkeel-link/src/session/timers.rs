//! Timers of a session.

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{PathState, Probe};
use evenkeel_policy::time::{Duration, Instant};

use super::link_path::{LinkPath, SilenceStep};
use super::{Datagram, LinkSession, SessionError, SessionEvent, TICK};
use crate::flow::Side;
use crate::frame::encode_probe;

/// Time between two checks for overdue data while a path is unhealthy.
const HEDGE_INTERVAL: Duration = Duration::from_millis(25);

impl LinkSession {
    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due; `None` once the session has ended.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.has_ended {
            return None;
        }
        let acks = self.paths.connected().next().and_then(|_| self.acks.due_at());
        let of_paths = self.paths.iter().flat_map(|path| {
            let probing = [path.silence_due_at(), path.probe_due_at(), path.probe_expires_at()];
            probing.into_iter().chain([path.stats.retry_at()]).flatten()
        });
        let hedge = self.has_unhealthy_path().then_some(self.hedge_at);
        let datagrams = self.datagrams_due_at();
        acks.into_iter().chain(of_paths).chain(hedge).chain(datagrams).chain([self.tick_at]).min()
    }

    fn has_unhealthy_path(&self) -> bool {
        // The next check looks at the paths as they are then.
        let at = self.hedge_at;
        let is_unhealthy = |path: &&LinkPath| path.stats.state() != PathState::Active;
        self.paths.connected().filter(is_unhealthy).any(|path| self.hedge_after(at, path).is_some())
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.has_ended {
            return;
        }
        for path in self.paths.ids() {
            self.handle_path_timeout(now, path);
        }
        self.release_due_datagrams(now);
        if self.hedge_at <= now {
            self.hedge_at = now + HEDGE_INTERVAL;
            self.recover(now);
        }
        if self.tick_at <= now {
            self.tick_at = now + TICK;
            self.unblock_datagrams();
            self.paths.refresh(now);
            self.review_active_set(now);
            self.review_bonded_lane(now);
            self.request_acks(now);
            self.check_alive(now);
        }
    }

    fn handle_path_timeout(&mut self, now: Instant, path: PathId) {
        let transition = self.paths.on_time(now, path);
        self.report(now, path, transition);
        while self.paths.get_mut(path).is_some_and(|path| path.expire_probe(now)) {
            let transition = self.paths.on_probe(now, path, Probe::Lost);
            self.report(now, path, transition);
        }
        self.poll_interval(now, path);
        let step = self.paths.get_mut(path).map(|path| path.count_silence(now));
        match step {
            Some(SilenceStep::Timeout) => self.recover(now),
            Some(SilenceStep::SecondTimeout) => {
                self.events.push_back(SessionEvent::PathSilent { path });
                let transition = self.paths.on_silence(now, path);
                self.report(now, path, transition);
                self.recover(now);
            }
            Some(SilenceStep::Unchanged) | None => {}
        }
        if let Some(known) = self.paths.get_mut(path)
            && known.probe_due_at().is_some_and(|due| due <= now)
        {
            known.record_probe(now);
            self.next_probe += 1;
            self.packets.push_back(Datagram { path, data: encode_probe(self.next_probe) });
        }
    }

    /// Ends the session if no path has answered for too long.
    fn check_alive(&mut self, now: Instant) {
        let timeout = self.config.session_timeout;
        if self.side == Side::Connecting && !self.has_been_connected && self.flows.len() == 0 {
            // Nothing is lost while the peer has not been reached yet. On the listening side, a session without its
            // first path takes the place of another one.
            self.alive_at = now;
        }
        if timeout < now.since(self.alive_at) {
            self.fail(now, SessionError::Timeout { timeout });
        }
    }
}
