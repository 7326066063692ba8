use super::*;
use alloc::string::ToString;
use alloc::vec::Vec;

const BASELINE: Duration = Duration::from_millis(100);

#[test]
fn the_limit_starts_at_one_and_doubles_up_to_the_knee() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(30);
    assert!((12..=20).contains(&engine.limit.limit()), "{}", engine.limit.status());
    assert_eq!(TestEngine::new(16).limit.limit(), 1);
}

#[test]
fn the_limit_falls_when_the_knee_does() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(30);
    engine.knee = 4;
    engine.run_rounds(60);
    assert!((2..=8).contains(&engine.limit.limit()), "{}", engine.limit.status());
}

#[test]
fn the_limit_does_not_rise_while_demand_leaves_slots_free() {
    let mut engine = TestEngine::new(64);
    engine.demand = 3;
    engine.run_rounds(200);
    assert!(engine.limit.status().limit <= 4, "{}", engine.limit.status());
}

#[test]
fn a_permanent_queue_does_not_raise_the_baseline() {
    let mut engine = TestEngine::new(4);
    engine.run_rounds(20);
    let class = PromptClass::default();
    engine.limit.config.min = 12;
    engine.limit.keep(engine.now, 12);
    engine.run_rounds(200);
    let baseline = engine.limit.baseline_ms(class).unwrap();
    assert!((80.0..=120.0).contains(&baseline), "{baseline} ms, {}", engine.limit.status());
}

#[test]
fn a_slower_engine_is_distinguished_from_a_full_one() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(40);
    let before = engine.limit.status().limit;
    engine.slowdown = 2;
    engine.run_rounds(400);
    let baseline = engine.limit.baseline_ms(PromptClass::default()).unwrap();
    assert!((160.0..=240.0).contains(&baseline), "{baseline} ms");
    assert!(before / 2 <= engine.limit.status().limit, "{}", engine.limit.status());
}

#[test]
fn single_refusals_leave_the_limit_alone() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(40);
    let before = engine.limit.status().limit;
    for _ in 0..100 {
        let sent = engine.limit.on_send(engine.now, 5, PromptClass::default());
        engine.limit.on_refusal(sent);
        engine.limit.on_end(engine.now, sent, 4);
    }
    assert_eq!(engine.limit.status().limit, before);
}

#[test]
fn refusals_after_a_rise_undo_it() {
    let mut engine = TestEngine::new(64);
    engine.refuses_above = Some(10);
    engine.run_rounds(100);
    // A trial may be in progress.
    assert!((5..=11).contains(&engine.limit.status().limit), "{}", engine.limit.status());
}

#[test]
fn a_queue_that_the_engine_reports_lowers_the_limit_once_per_change() {
    let mut limit = new_limit(8);
    limit.on_engine_queue(Instant::ORIGIN, 1, 8);
    assert_eq!(limit.limit(), 8, "one of eight may wait for the next batch step");
    limit.on_engine_queue(Instant::ORIGIN, 9, 8);
    assert_eq!(limit.limit(), 6);
    limit.on_engine_queue(Instant::ORIGIN, 9, 8);
    assert_eq!(limit.limit(), 6, "more than the new limit are still in flight");
    limit.on_engine_queue(Instant::ORIGIN, 9, 2);
    assert_eq!(limit.limit(), 6, "the queue is caused by other clients");
    limit.on_engine_queue(Instant::ORIGIN, 9, 6);
    assert_eq!(limit.limit(), 5);
}

#[test]
fn without_streams_the_limit_doubles_while_the_engine_reports_no_queue() {
    let mut limit = new_limit(4);
    limit.on_engine_queue(Instant::ORIGIN, 0, 2);
    assert_eq!(limit.limit(), 4, "too little of the limit is in use");
    for expected in [8, 16, 32] {
        limit.on_engine_queue(Instant::ORIGIN, 0, limit.limit());
        assert_eq!(limit.limit(), expected);
    }
    limit.on_engine_queue(Instant::ORIGIN, 9, 32);
    assert_eq!(limit.limit(), 24);
    limit.on_engine_queue(Instant::ORIGIN, 0, 24);
    assert_eq!(limit.limit(), 27, "after a queue, by an eighth");
}

#[test]
fn a_probe_ends_after_a_minute_without_streams() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(40);
    engine.limit.start_probe(engine.now);
    let sent = engine.limit.on_send(engine.now, 1, PromptClass::default());
    engine.limit.on_end(engine.now + Duration::from_secs(59), sent, 0);
    assert!(engine.limit.probe.is_some());
    engine.limit.on_end(engine.now + Duration::from_secs(60), sent, 0);
    assert!(engine.limit.probe.is_none());
}

#[test]
fn probes_take_at_most_a_twentieth_of_the_time_and_are_jittered() {
    let probed: Vec<(Duration, Duration)> = [1, 2]
        .map(|seed| {
            let mut engine = TestEngine::new(16);
            engine.limit = ConcurrencyLimit::new(LimitConfig::default(), seed).unwrap();
            let mut probing = Duration::ZERO;
            for _ in 0..20_000 {
                let before = engine.now;
                let was_probing = engine.limit.probe.is_some();
                engine.run_round();
                if was_probing {
                    probing += engine.now.since(before);
                }
            }
            (probing, engine.now.since(Instant::ORIGIN))
        })
        .into();
    for (probing, total) in &probed {
        assert!(!probing.is_zero() && *probing * 20 <= *total, "{probing:?} of {total:?}");
    }
    assert_ne!(probed[0], probed[1]);
}

#[test]
fn new_settings_keep_what_was_learned() {
    let mut engine = TestEngine::new(16);
    engine.run_rounds(40);
    let learned = engine.limit.baseline_ms(PromptClass::default());
    let config = LimitConfig { max: 6, ..LimitConfig::default() };
    engine.limit.set_config(engine.now, config).unwrap();
    assert_eq!((engine.limit.limit(), engine.limit.baseline_ms(PromptClass::default())), (6, learned));
}

#[test]
fn settings_out_of_range_are_rejected() {
    let error = |config: LimitConfig| ConcurrencyLimit::new(config, 0).unwrap_err().to_string();
    let default = LimitConfig::default();
    assert_eq!(error(LimitConfig { min: 0, ..default }), "min 0 is not between 1 and 65536");
    assert_eq!(error(LimitConfig { max: 0, ..default }), "max 0 is not between 1 and 65536");
    assert_eq!(error(LimitConfig { initial: 300, ..default }), "initial 300 is not between 1 and 256");
    assert_eq!(error(LimitConfig { tolerance: 1.0, ..default }), "tolerance 1 is not between 1.05 and 10");
}

#[test]
fn the_status_displays_the_latencies_once_known() {
    let mut engine = TestEngine::new(4);
    assert_eq!(engine.limit.status().to_string(), "limit 1");
    engine.run_round();
    assert_eq!(engine.limit.status().to_string(), "limit 1, first tokens 100 ms, 100 ms without a queue");
}

fn new_limit(initial: u32) -> ConcurrencyLimit {
    ConcurrencyLimit::new(LimitConfig { initial, ..LimitConfig::default() }, 0).unwrap()
}

/// An engine that serves rounds of requests: all that the limit allows start together, `knee` at a time.
struct TestEngine {
    limit: ConcurrencyLimit,
    now: Instant,
    knee: u32,
    demand: u32,
    slowdown: u32,
    refuses_above: Option<u32>,
}

impl TestEngine {
    fn new(knee: u32) -> Self {
        Self {
            limit: new_limit(1),
            now: Instant::ORIGIN,
            knee,
            demand: u32::MAX,
            slowdown: 1,
            refuses_above: None,
        }
    }

    fn run_rounds(&mut self, rounds: u32) {
        (0..rounds).for_each(|_| self.run_round());
    }

    /// Sends as many requests as the limit allows; each has a first token after the baseline and takes twice that.
    fn run_round(&mut self) {
        let count = self.limit.limit().min(self.demand);
        let mut sent = Vec::new();
        for in_flight in 1..=count {
            sent.push(self.limit.on_send(self.now, in_flight, PromptClass::default()));
        }
        let mut in_flight = count;
        for group in sent.chunks(self.knee as usize) {
            self.now += BASELINE * self.slowdown;
            group.iter().for_each(|sent| self.limit.on_first_token(self.now, *sent));
            let since = self.now;
            self.now += BASELINE * self.slowdown;
            for sent in group {
                let output = Output { amount: 64, since, delivery: ResponseDelivery::Stream };
                self.limit.on_output(self.now, &output);
                in_flight -= 1;
                if self.refuses_above.is_some_and(|accepted| accepted < count) {
                    self.limit.on_refusal(*sent);
                }
                self.limit.on_end(self.now, *sent, in_flight);
            }
        }
    }
}
