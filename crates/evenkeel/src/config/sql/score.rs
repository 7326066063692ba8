//! `[sql.score]`: the constants by which nodes compare themselves with their peers, under the names of the specification.

use evenkeel_policy::score::{Limits, LimitsConfig, ScoreConfig, TOP_K_MAX};

use crate::config::reader::Section;
use crate::config::value::{Float, Integer};

/// Largest count that a setting accepts.
const COUNT_MAX: Integer = Integer(1_000_000);

pub(super) fn read(section: &mut Section<'_>) -> ScoreConfig {
    let limits = read_limits(section);
    let default = ScoreConfig::default();
    let top_k = Integer(default.top_k as i64);
    let top_k = section.within("top_k", top_k, Integer(1)..=Integer(TOP_K_MAX as i64)).as_usize();
    let relative_k = section.within("k", Float(default.relative_k), Float(1.5)..=Float(3.0)).0;
    let power = Integer(i64::from(default.power));
    let power = section.within("power", power, Integer(1)..=Integer(16)).as_u32();
    // Settings out of range were replaced by their defaults, each with an error.
    let limits = Limits::new(limits).unwrap_or_default();
    ScoreConfig { limits, top_k, power, relative_k, ..default }
}

fn read_limits(section: &mut Section<'_>) -> LimitsConfig {
    let default = LimitsConfig::default();
    let lat_bad_ms = Float(default.lat_bad_ms);
    let lat_bad_ms = section.within("lat_bad_ms", lat_bad_ms, Float(1.0)..=Float(3_600_000.0)).0;
    let err_bad = section.within("err_bad", Float(default.err_bad), Float(0.0001)..=Float(1.0)).0;
    let mut count =
        |key, default: u32| section.within(key, Integer(i64::from(default)), Integer(1)..=COUNT_MAX).as_u32();
    let to_bad = count("to_bad", default.to_bad);
    let wait_bad = count("wait_bad", default.wait_bad);
    let uptime_ok_sec = count("uptime_ok", default.uptime_ok_sec);
    let tx_wait_max = count("tx_wait_max", default.tx_wait_max);
    let tx_free_min = section.within("tx_free_min", Float(default.tx_free_min), Float(0.0)..=Float(1.0)).0;
    LimitsConfig { lat_bad_ms, err_bad, to_bad, wait_bad, uptime_ok_sec, tx_free_min, tx_wait_max, ..default }
}
