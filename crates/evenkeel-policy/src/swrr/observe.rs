//! Read access to the paths of a scheduler.

use super::SwrrScheduler;
use super::path::Path;
use super::share::{ShareWindow, normalised_entropy};
use super::weight::{Health, ReweightCounts, whole_weight};
use crate::id::PathId;
use crate::time::Duration;

impl SwrrScheduler {
    /// Returns the weight in force as a whole number of at least 1; `None` unless the path is active.
    pub fn weight(&self, path: PathId) -> Option<u32> {
        self.credits.index_of(path).map(|index| whole_weight(self.credits.weights()[index]))
    }

    /// Returns the share of picks that the path's weight entitles it to while all active paths are eligible; `None`
    /// unless it is active.
    pub fn share(&self, path: PathId) -> Option<f64> {
        let index = self.credits.index_of(path)?;
        Some(self.credits.weights()[index] as f64 / self.credits.total() as f64)
    }

    /// Returns the picks (or units of cost) that the path is owed, negative if it is ahead; `None` unless it is active.
    pub fn owed(&self, path: PathId) -> Option<f64> {
        let index = self.credits.index_of(path)?;
        Some(self.credits.credit(index) as f64 / self.credits.total() as f64)
    }

    /// Returns the smoothed RTT; `None` before the first sample.
    pub fn rtt(&self, path: PathId) -> Option<Duration> {
        self.known(path)?.rtt()
    }

    /// Returns the smoothed deviation of the RTT; `None` before the first sample.
    pub fn rtt_deviation(&self, path: PathId) -> Option<Duration> {
        self.known(path)?.rtt_deviation()
    }

    /// Returns the smoothed loss rate, 0 before the first sample; `None` if the path is unknown.
    pub fn loss_rate(&self, path: PathId) -> Option<f64> {
        Some(self.known(path)?.loss_rate())
    }

    /// Returns the health that was last set; `None` if the path is unknown.
    pub fn health(&self, path: PathId) -> Option<Health> {
        Some(self.known(path)?.weight.health())
    }

    /// Returns the active paths in the order of their ids.
    pub fn active(&self) -> &[PathId] {
        self.credits.ids()
    }

    /// Returns the shares of the last complete window; `None` before the first.
    pub fn last_window(&self) -> Option<&ShareWindow> {
        self.window.last()
    }

    /// Returns the evenness of the weights: 1 when all are equal, near 0 when one path has everything; `None` with
    /// fewer than two active paths.
    pub fn weight_entropy(&self) -> Option<f64> {
        normalised_entropy(&self.credits)
    }

    /// Returns how often weights changed and how often a change was suppressed.
    pub const fn reweights(&self) -> ReweightCounts {
        self.reweights
    }

    fn known(&self, path: PathId) -> Option<&Path> {
        self.find(path).ok().map(|index| &self.paths[index])
    }
}
