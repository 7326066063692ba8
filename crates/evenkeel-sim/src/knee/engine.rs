//! Engines with a knee: a number of requests beyond which more of them bring no more throughput.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_policy::time::{Duration, Instant};

/// Time in which a response grows by a token, up to the knee.
pub(super) const TIME_PER_TOKEN: Duration = Duration::from_millis(20);
const PREFILL_BASE_TIME: Duration = Duration::from_millis(50);
const PREFILL_TIME_PER_TOKEN: Duration = Duration::from_micros(100);
/// Additional duration of a step per response, in an engine that works in steps.
const STEP_TIME_PER_SEQUENCE: Duration = Duration::from_micros(300);

/// Behaviour of an engine beyond its knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineShape {
    /// The knee is a number of slots; the rest waits, first come, first served.
    Slots,
    /// All requests are processed at once, prompts and responses more slowly.
    Shared,
    /// All requests are processed at once; only responses become slower, so the time to first token shows nothing.
    SharedDecode,
    /// Continuous batching in steps: as `Slots`, but every running request prolongs the step of all others.
    Steps,
}

/// Returns the time that an idle engine takes to process a prompt.
pub(super) fn prefill_time(prompt: u64) -> Duration {
    PREFILL_BASE_TIME + PREFILL_TIME_PER_TOKEN * prompt as u32
}

/// Work of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
}

/// Index of a job, in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(pub(super) usize);

#[derive(Clone, Copy, Debug)]
pub(super) enum EngineProgress {
    FirstToken(JobId),
    Ended(JobId),
}

/// An engine that processes jobs on the caller's clock.
#[derive(Debug)]
pub(super) struct KneeEngine {
    shape: EngineShape,
    knee: f64,
    now: Instant,
    jobs: Vec<Job>,
    queue: VecDeque<JobId>,
    prefill: EngineStage,
    decode: EngineStage,
}

/// Jobs in one stage, by the stage's clock, which runs at the speed of each of its jobs.
#[derive(Debug, Default)]
struct EngineStage {
    clock: f64,
    due: BinaryHeap<Reverse<(u64, JobId)>>,
}

impl EngineStage {
    fn add(&mut self, job: JobId, work: Duration) {
        self.due.push(Reverse(((self.clock + work.as_nanos() as f64) as u64, job)));
    }

    fn take_due(&mut self) -> Option<JobId> {
        let Reverse((due, job)) = *self.due.peek()?;
        (due as f64 <= self.clock + 1.0).then(|| {
            self.due.pop();
            job
        })
    }

    fn next_after(&self, speed: f64) -> Option<Duration> {
        let Reverse((due, _)) = self.due.peek()?;
        let left = (*due as f64 - self.clock).max(0.0);
        Some(Duration::from_nanos((left / speed).ceil() as u64))
    }
}

impl KneeEngine {
    pub(super) fn new(shape: EngineShape, knee: f64) -> Self {
        Self {
            shape,
            knee,
            now: Instant::ORIGIN,
            jobs: Vec::new(),
            queue: VecDeque::new(),
            prefill: EngineStage::default(),
            decode: EngineStage::default(),
        }
    }

    pub(super) fn set_knee(&mut self, now: Instant, knee: f64) {
        self.advance(now);
        self.knee = knee;
        self.admit();
    }

    pub(super) fn submit(&mut self, now: Instant, job: Job) -> JobId {
        self.advance(now);
        let id = JobId(self.jobs.len());
        self.jobs.push(job);
        self.queue.push_back(id);
        self.admit();
        id
    }

    pub(super) fn running(&self) -> usize {
        self.prefill.due.len() + self.decode.due.len()
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time of the next first token or end.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let [prefill, decode] = self.speeds();
        let after = [self.prefill.next_after(prefill), self.decode.next_after(decode)];
        after.into_iter().flatten().min().map(|after| self.now + after)
    }

    /// Returns the next first token or end that is due.
    pub(super) fn poll(&mut self, now: Instant) -> Option<EngineProgress> {
        self.advance(now);
        if let Some(job) = self.prefill.take_due() {
            self.decode.add(job, self.jobs[job.0].decode);
            return Some(EngineProgress::FirstToken(job));
        }
        let job = self.decode.take_due()?;
        self.admit();
        Some(EngineProgress::Ended(job))
    }

    /// Returns the responses in progress, with the number of tokens generated.
    pub(super) fn responses(&mut self, now: Instant) -> impl Iterator<Item = (JobId, u64)> {
        self.advance(now);
        self.decode.due.iter().map(|Reverse((due, job))| {
            let left = (*due as f64 - self.decode.clock).max(0.0);
            let done = self.jobs[job.0].decode.as_nanos() as f64 - left;
            (*job, (done / TIME_PER_TOKEN.as_nanos() as f64) as u64)
        })
    }

    fn advance(&mut self, now: Instant) {
        let elapsed = now.since(self.now).as_nanos() as f64;
        let [prefill, decode] = self.speeds();
        self.prefill.clock += elapsed * prefill;
        self.decode.clock += elapsed * decode;
        self.now = now;
    }

    fn admit(&mut self) {
        let is_queueing = matches!(self.shape, EngineShape::Slots | EngineShape::Steps);
        while !is_queueing || (self.running() as f64) < self.knee {
            let Some(job) = self.queue.pop_front() else { break };
            self.prefill.add(job, self.jobs[job.0].prefill);
        }
    }

    /// Returns the speeds of prefill and decode, relative to an idle engine.
    fn speeds(&self) -> [f64; 2] {
        let share = |running: usize| (self.knee / running.max(1) as f64).min(1.0);
        match self.shape {
            EngineShape::Slots => [1.0, 1.0],
            EngineShape::Shared => [share(self.running()); 2],
            EngineShape::SharedDecode => [1.0, share(self.decode.due.len())],
            EngineShape::Steps => {
                let base = TIME_PER_TOKEN.as_secs_f64();
                let more = STEP_TIME_PER_SEQUENCE.as_secs_f64() * self.running() as f64;
                [base / (base + more); 2]
            }
        }
    }
}
