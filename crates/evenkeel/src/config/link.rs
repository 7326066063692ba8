//! `[link]`: shares and health of network paths, for links between sites and for nodes with several paths.

use std::time::Duration;

use evenkeel_link::RouteSettings;
use evenkeel_link::session::{CREDIT_INITIAL, SessionConfig};
use evenkeel_policy::path::{BondConfig, BondRule, HopConfig, PathConfig, PathRule, PruneConfig, PruneRule};
use evenkeel_policy::swrr::{PATHS_MAX, SwrrConfig, SwrrRules, WEIGHT_CAP};

use super::reader::Section;
use super::value::{Float, Integer};

/// Largest number of consecutive samples that a setting accepts.
const SAMPLES_MAX: Integer = Integer(1_000_000);

/// Largest number of relays on a path that a setting accepts.
const HOPS_MAX: u8 = 16;

/// `[link]`.
#[derive(Clone, Debug, Default)]
pub struct LinkConfig {
    /// Weights and shares of paths.
    pub swrr: SwrrConfig,
    /// Health of paths.
    pub path: PathConfig,
    /// Limits of a link's session.
    pub session: SessionConfig,
    /// Hops of paths over relays; the relays themselves are given elsewhere.
    pub routes: RouteSettings,
}

pub(super) fn read(section: &mut Section<'_>) -> LinkConfig {
    let swrr = read_swrr(section);
    let path = read_path(section);
    let session = read_session(section, &swrr, path);
    let routes = read_routes(section);
    LinkConfig { swrr, path, session, routes }
}

fn read_swrr(section: &mut Section<'_>) -> SwrrConfig {
    let default = SwrrConfig::default();
    let weight_scale = section.within("weight_scale", Float(default.weight_scale), Float(1.0)..=Float(1e6)).0;
    let weight_cap = Integer(i64::from(default.weight_cap));
    let weight_cap =
        section.within("weight_cap", weight_cap, Integer(1)..=Integer(i64::from(WEIGHT_CAP))).as_u32();
    let window = Integer(i64::from(default.window_picks));
    let window_picks = section.within("window", window, Integer(1)..=Integer(1_000_000)).as_u32();
    let mut fraction = |key, default, min| section.within(key, Float(default), Float(min)..=Float(1.0)).0;
    let loss_floor = fraction("loss_floor", default.loss_floor, 0.0);
    let change_min = fraction("change_min", default.change_min, 0.0);
    let ramp_start = fraction("ramp_start", default.ramp_start, 0.05);
    let degraded_factor = fraction("degraded_factor", default.degraded_factor, 0.01);
    let recovery_factor = fraction("recovery_factor", default.recovery_factor, 0.01);
    let unhealthy_share_max = Float(default.unhealthy_share_max);
    let unhealthy_share_max =
        section.within("unhealthy_share_max", unhealthy_share_max, Float(0.05)..=Float(0.95)).0;
    let raise_max = section.within("raise_max", Float(default.raise_max), Float(1.01)..=Float(100_000.0)).0;
    let raise_interval_min = millis(section, "raise_interval_ms", default.raise_interval_min, 3_600_000);
    SwrrConfig {
        weight_scale,
        weight_cap,
        loss_floor,
        change_min,
        raise_max,
        raise_interval_min,
        ramp_start,
        degraded_factor,
        recovery_factor,
        unhealthy_share_max,
        window_picks,
        ..default
    }
}

fn read_path(section: &mut Section<'_>) -> PathConfig {
    let default = PathConfig::default();
    let mut samples = |key, default: u32| {
        section.within(key, Integer(i64::from(default)), Integer(1)..=SAMPLES_MAX).as_u32()
    };
    let degrade_samples = samples("degrade_samples", default.degrade_samples);
    let recover_samples = samples("recover_samples", default.recover_samples);
    let settle_samples = samples("settle_samples", default.settle_samples);
    let failures_max = samples("failures_max", default.failures_max);
    let degrade_loss =
        section.within("degrade_loss", Float(default.degrade_loss), Float(0.001)..=Float(1.0)).0;
    let recover_loss = section
        .within(
            "recover_loss",
            Float(default.recover_loss.min(degrade_loss)),
            Float(0.001)..=Float(degrade_loss),
        )
        .0;
    let slow_factor =
        section.within("slow_factor", Float(default.slow_factor), Float(1.0)..=Float(1_000.0)).0;
    let ceiling_factor =
        section.within("ceiling_factor", Float(default.ceiling_factor), Float(1.0)..=Float(1_000.0)).0;
    let slow_min = millis(section, "slow_min_ms", default.slow_min, 86_400_000);
    let ceiling_min = millis(section, "ceiling_min_ms", default.ceiling_min, 86_400_000);
    let interval_min = millis(section, "interval_ms", default.interval_min, 60_000);
    let backoff_max = millis(section, "backoff_max_ms", default.backoff_max, 86_400_000);
    let backoff_min = millis(
        section,
        "backoff_min_ms",
        default.backoff_min.min(backoff_max),
        backoff_max.as_millis() as u64,
    );
    PathConfig {
        degrade_loss,
        degrade_samples,
        recover_loss,
        recover_samples,
        settle_samples,
        failures_max,
        backoff_min,
        backoff_max,
        interval_min,
        slow_factor,
        slow_min,
        ceiling_factor,
        ceiling_min,
        ..default
    }
}

fn read_session(section: &mut Section<'_>, swrr: &SwrrConfig, path: PathConfig) -> SessionConfig {
    let default = SessionConfig::default();
    let flows_max =
        section.within("flows_max", Integer(i64::from(default.flows_max)), Integer(1)..=Integer(16_384));
    let session_timeout = Integer(default.session_timeout.as_secs() as i64);
    let session_timeout =
        section.within("session_timeout_secs", session_timeout, Integer(1)..=Integer(3_600)).as_u32();
    let flows_max = flows_max.as_u32();
    let paths_active_max = Integer(i64::from(default.paths_active_max));
    let paths_active_max =
        section.within("paths_active_max", paths_active_max, Integer(1)..=Integer(PATHS_MAX as i64)).as_u32();
    let prune = read_prune(section);
    let bond = read_bond(section);
    SessionConfig {
        // Settings out of range were replaced by their defaults, each with an error.
        swrr: SwrrRules::new(swrr).unwrap_or_default(),
        path: PathRule::new(path).unwrap_or_default(),
        paths_active_max,
        prune: PruneRule::new(prune).unwrap_or_default(),
        bond: BondRule::new(bond).unwrap_or_default(),
        flows_max,
        // Twice the credit that every flow has at first.
        receive_budget: default.receive_budget.max(2 * CREDIT_INITIAL * u64::from(flows_max)),
        session_timeout: Duration::from_secs(session_timeout.into()),
        ..default
    }
}

fn read_routes(section: &mut Section<'_>) -> RouteSettings {
    let default = RouteSettings::default();
    let mut hops = |key, default: u8, min: u8, max: u8| {
        let value = section.within(key, Integer(default.into()), Integer(min.into())..=Integer(max.into()));
        u8::try_from(value.as_u32()).unwrap_or(max)
    };
    let hops_min = hops("hops_min", default.hops.hops_min, 1, HOPS_MAX);
    let hops_max = hops("hops_max", default.hops.hops_max.max(hops_min), hops_min, HOPS_MAX);
    let hops_start = default.hops.hops_start.clamp(hops_min, hops_max);
    let hops_start = hops("hops_start", hops_start, hops_min, hops_max);
    // An idle connection over a probed route lives for 30 s.
    let probe_interval = millis(section, "route_probe_ms", default.probe_interval, 20_000);
    RouteSettings {
        hops: HopConfig { hops_min, hops_max, hops_start, ..default.hops },
        probe_interval,
        ..default
    }
}

fn read_prune(section: &mut Section<'_>) -> PruneConfig {
    let default = PruneConfig::default();
    let samples = Integer(i64::from(default.samples));
    PruneConfig {
        prune_interval: millis(section, "prune_interval_ms", default.prune_interval, 86_400_000),
        margin: section.within("prune_margin", Float(default.margin), Float(0.0)..=Float(100.0)).0,
        samples: section.within("prune_samples", samples, Integer(1)..=SAMPLES_MAX).as_u32(),
    }
}

fn read_bond(section: &mut Section<'_>) -> BondConfig {
    let default = BondConfig::default();
    let interval = millis(section, "bonded_interval_ms", default.interval, 86_400_000);
    let gain_min = section.within("bonded_gain_min", Float(default.gain_min), Float(0.0)..=Float(1.0)).0;
    let delay_max = millis(section, "bonded_delay_max_ms", default.delay_max, 86_400_000);
    let backoff_max = millis(section, "bonded_backoff_max_ms", default.backoff_max, 86_400_000);
    let backoff_min = millis(
        section,
        "bonded_backoff_min_ms",
        default.backoff_min.min(backoff_max),
        backoff_max.as_millis() as u64,
    );
    BondConfig { interval, gain_min, delay_max, backoff_min, backoff_max }
}

fn millis(section: &mut Section<'_>, key: &'static str, default: Duration, max: u64) -> Duration {
    let default = Integer(default.as_millis() as i64);
    let max = Integer(i64::try_from(max).unwrap_or(i64::MAX));
    Duration::from_millis(section.within(key, default, Integer(1)..=max).as_u32().into())
}
