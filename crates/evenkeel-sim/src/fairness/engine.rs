//! An engine that says one token of every answer at each step, as continuous batching does.
//!
//! Its figures are those of the published runs, one A10G with a 7B model: 55 ms to read a prompt of 256 tokens, 1.75
//! requests of 256 + 256 tokens a second once 20 of them, which is what its memory holds, are worked on at once.

use evenkeel_policy::time::Duration;

/// How many requests it works on at once.
pub(super) const SLOTS: u32 = 20;

/// How long a step takes in which every answer grows by a token.
const STEP: Duration = Duration::from_millis(40);

/// How much longer a step takes for each token of a prompt that is read in it.
const READING: Duration = Duration::from_micros(214);

/// What the engine works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) number: usize,
    pub(super) client: usize,
    pub(super) input: u64,
    pub(super) output: u64,
    /// Tokens generated so far.
    pub(super) generated: u64,
}

impl Sequence {
    /// Whether the prompt was read in the step that just ended.
    pub(super) fn has_just_begun(&self) -> bool {
        self.generated == 1
    }

    pub(super) fn is_done(&self) -> bool {
        self.output <= self.generated
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct TokenEngine {
    running: Vec<Sequence>,
    joining: Vec<Sequence>,
}

impl TokenEngine {
    /// Takes in a request that is worked on from the next step on.
    pub(super) fn join(&mut self, sequence: Sequence) {
        self.joining.push(sequence);
    }

    /// Begins a step and says how long it takes; `None` without work.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        let prompts: u64 = self.joining.iter().map(|sequence| sequence.input).sum();
        self.running.append(&mut self.joining);
        (!self.running.is_empty()).then(|| STEP + READING * prompts as u32)
    }

    /// Ends the step: every answer that was worked on is a token longer, and those that are done leave.
    pub(super) fn end(&mut self) -> Vec<Sequence> {
        self.running.iter_mut().for_each(|sequence| sequence.generated += 1);
        let stepped = self.running.clone();
        self.running.retain(|sequence| !sequence.is_done());
        stepped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the published runs took, within 2 %.
    #[test]
    fn full_it_does_1_75_requests_of_256_and_256_tokens_a_second() {
        let mut engine = TokenEngine::default();
        let request = Sequence { number: 0, client: 0, input: 256, output: 256, generated: 0 };
        (0..SLOTS).for_each(|_| engine.join(request));
        let mut done = 0;
        let mut took = Duration::ZERO;
        while done < 200 {
            took += engine.begin().unwrap();
            for sequence in engine.end() {
                if sequence.is_done() {
                    done += 1;
                    engine.join(request);
                }
            }
        }
        let rate = f64::from(done) / took.as_secs_f64();
        assert!((1.72..1.79).contains(&rate), "{rate} requests a second");
    }

    #[test]
    fn a_step_reads_new_prompts_and_says_one_token_of_everything() {
        let mut engine = TokenEngine::default();
        engine.join(Sequence { number: 1, client: 0, input: 1_000, output: 2, generated: 0 });
        assert_eq!(engine.begin(), Some(Duration::from_millis(254)));
        assert!(engine.end()[0].has_just_begun());
        assert_eq!(engine.begin(), Some(STEP));
        assert!(engine.end()[0].is_done());
        assert_eq!(engine.begin(), None);
    }
}
