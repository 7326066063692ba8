//! The matrix of engines and demands in which an adaptive limit must find the knee.

use evenkeel_pipeline::Slots;
use evenkeel_policy::concurrency_limit::{LimitConfig, ResponseDelivery};
use evenkeel_policy::time::Duration;

use super::engine::{EngineShape, TIME_PER_TOKEN, prefill_time};
use super::{KneeDemand, KneePlan, KneeRun, Scraping, run_knee};
use crate::simulation::SimError;

/// Time by which the limit must have found the knee, also after the knee changed.
const FOUND: Duration = Duration::from_secs(60);
/// Time at which the knee is halved.
const HALVED: Duration = Duration::from_secs(600);
const END: Duration = Duration::from_secs(720);

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KneeCell {
    pub shape: EngineShape,
    pub knee: u32,
    /// Demand, as a multiple of the knee's throughput.
    pub demand: f64,
    pub service: Service,
    pub prompts: Prompts,
}

/// Duration of a whole response, compared with the time to first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// 1.5 times the time to first token.
    Near,
    /// 20 times the time to first token.
    Far,
}

/// Prompt lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// All of 2000 tokens.
    Equal,
    /// Half of 100 tokens, half of 8000.
    Mixed,
}

/// Figures of a cell.
#[derive(Clone, Copy, Debug)]
pub struct KneeCellResult {
    /// Number of requests at which the engine's throughput stops growing.
    pub knee: f64,
    /// Limit one minute after the start.
    pub limit: u32,
    /// Share of the time from the first to the tenth minute in which the limit was within a factor of two of the knee; at
    /// a demand below the knee, at most twice the knee.
    pub within: f64,
    /// Largest relative error of a baseline in the tenth minute.
    pub baseline_error: f64,
    /// Throughput from the first to the tenth minute, relative to what the knee allows; at a demand up to the knee's
    /// throughput, relative to a fixed limit at the knee.
    pub throughput: f64,
    /// Limit one minute after the knee was halved; `None` for a knee of one.
    pub limit_after: Option<u32>,
}

/// Returns the cells of a shape.
pub fn knee_cells(shape: EngineShape) -> Vec<KneeCell> {
    let mut cells = Vec::new();
    for knee in [1, 4, 16, 64] {
        for demand in [0.5, 1.0, 2.0, 50.0] {
            for service in [Service::Near, Service::Far] {
                for prompts in [Prompts::Equal, Prompts::Mixed] {
                    cells.push(KneeCell { shape, knee, demand, service, prompts });
                }
            }
        }
    }
    cells
}

/// Runs a cell with an adaptive limit.
pub fn measure_knee_cell(cell: &KneeCell, seed: u64) -> Result<KneeCellResult, SimError> {
    let adaptive = run_knee(&cell.plan(seed, Slots::Adaptive(LimitConfig::default()), END))?;
    let knee = cell.effective_knee();
    let achievable = if cell.demand > 1.0 {
        knee / cell.service_time().as_secs_f64()
    } else {
        run_knee(&cell.plan(seed, Slots::Fixed(knee.round() as u32), HALVED))?.throughput(FOUND, HALVED)
    };
    let settled: Vec<u32> = adaptive.between(FOUND, HALVED).map(|sample| sample.limit).collect();
    let within = settled.iter().filter(|limit| cell.is_within(**limit, knee)).count();
    let around = |run: &KneeRun, at: Duration| {
        run.median_limit(at.saturating_sub(Duration::from_secs(5)), at + Duration::from_secs(5))
    };
    Ok(KneeCellResult {
        knee,
        limit: around(&adaptive, FOUND),
        within: within as f64 / settled.len().max(1) as f64,
        baseline_error: cell.baseline_error(&adaptive),
        throughput: adaptive.throughput(FOUND, HALVED) / achievable,
        limit_after: (cell.knee > 1).then(|| around(&adaptive, HALVED + FOUND)),
    })
}

impl KneeCell {
    /// Returns the goals that the cell misses.
    pub fn misses(&self, result: &KneeCellResult) -> Vec<&'static str> {
        let goals = [
            ("limit after a minute", self.is_within(result.limit, result.knee)),
            ("limit in 95 % of the time", 0.95 <= result.within),
            ("baseline", result.baseline_error <= 0.2),
            ("throughput", 0.9 <= result.throughput),
            (
                "limit after the knee was halved",
                result.limit_after.is_none_or(|limit| self.is_within(limit, result.knee / 2.0)),
            ),
        ];
        goals.into_iter().filter(|(_, is_met)| !is_met).map(|(goal, _)| goal).collect()
    }

    /// Reports whether a limit is within a factor of two of the knee; a demand below the knee need not reach it.
    fn is_within(&self, limit: u32, knee: f64) -> bool {
        let limit = f64::from(limit);
        limit <= 2.0 * knee && (self.demand < 1.0 || knee <= 2.0 * limit)
    }

    /// Returns the number of requests at which throughput stops growing.
    ///
    /// Where only responses share the engine, prompts in process do not count.
    fn effective_knee(&self) -> f64 {
        let knee = f64::from(self.knee);
        match self.shape {
            EngineShape::SharedDecode => {
                knee * self.service_time().as_secs_f64() / self.decode().as_secs_f64()
            }
            EngineShape::Slots | EngineShape::Shared | EngineShape::Steps => knee,
        }
    }

    fn prompt_lengths(&self) -> Vec<u64> {
        match self.prompts {
            Prompts::Equal => vec![2_000],
            Prompts::Mixed => vec![100, 8_000],
        }
    }

    /// Returns the mean time to first token without a queue.
    fn first_token(&self) -> Duration {
        let lengths = self.prompt_lengths();
        lengths.iter().map(|prompt| prefill_time(*prompt)).sum::<Duration>() / lengths.len() as u32
    }

    /// Returns the mean duration of a request that is alone.
    fn service_time(&self) -> Duration {
        self.first_token() + self.decode()
    }

    fn decode(&self) -> Duration {
        match self.service {
            Service::Near => self.first_token().mul_f64(0.5),
            Service::Far => self.first_token() * 19,
        }
    }

    fn plan(&self, seed: u64, slots: Slots, duration: Duration) -> KneePlan {
        let output = (self.decode().as_secs_f64() / TIME_PER_TOKEN.as_secs_f64()).round() as u64;
        let halved = (self.knee / 2).max(1);
        // A queue that is always full is as good as arrivals of which nearly all are rejected, and faster to simulate.
        let per_second = self.demand.min(4.0) * self.effective_knee() / self.service_time().as_secs_f64();
        KneePlan {
            seed,
            duration,
            demand: KneeDemand::Rate { per_second, waiting_max: 20 + 2 * self.effective_knee() as usize },
            prompts: self.prompt_lengths(),
            output,
            delivery: ResponseDelivery::Stream,
            slots,
            scrapes: Scraping::Disabled,
            shape: self.shape,
            knees: vec![(Duration::ZERO, self.knee), (HALVED, halved)],
        }
    }

    fn baseline_error(&self, run: &KneeRun) -> f64 {
        let true_millis: Vec<f64> = self
            .prompt_lengths()
            .iter()
            .map(|prompt| prefill_time(*prompt).as_secs_f64() * 1_000.0)
            .collect();
        // The lengths' times differ so much that the nearest one is meant.
        let error = |baseline: f64| {
            true_millis.iter().map(|millis| (baseline / millis - 1.0).abs()).fold(f64::MAX, f64::min)
        };
        run.between(HALVED.saturating_sub(FOUND), HALVED)
            .map(|sample| sample.baseline_ms.map_or(f64::MAX, error))
            .fold(0.0, f64::max)
    }
}
