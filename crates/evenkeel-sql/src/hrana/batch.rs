//! Batches: steps with conditions.

use evenkeel_server::api_error::ApiError;
use serde::Deserialize;

use super::request::{HranaStatement, STEPS_MAX};
use crate::request::{BoundedList, invalid};

/// Statements that run one after the other.
#[derive(Deserialize)]
pub(super) struct Batch {
    steps: BoundedList<BatchStep, STEPS_MAX>,
}

/// A statement, and the condition on which it runs.
#[derive(Deserialize)]
pub(super) struct BatchStep {
    pub(super) condition: Option<StepCondition>,
    pub(super) stmt: HranaStatement,
}

/// Condition of a step. Its depth is limited by the depth of JSON that is parsed.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum StepCondition {
    Ok { step: usize },
    Error { step: usize },
    Not { cond: Box<StepCondition> },
    And { conds: Vec<StepCondition> },
    Or { conds: Vec<StepCondition> },
    IsAutocommit,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Ok,
    Error,
    Skipped,
}

impl StepOutcome {
    /// Returns the outcome of a step that may not have run.
    pub(super) fn of<T, E>(result: Option<&Result<T, E>>) -> Self {
        match result {
            Some(Ok(_)) => Self::Ok,
            Some(Err(_)) => Self::Error,
            None => Self::Skipped,
        }
    }
}

impl Batch {
    pub(super) fn steps(&self) -> &[BatchStep] {
        &self.steps.0
    }

    /// Rejects conditions about steps that do not precede theirs.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        for (index, step) in self.steps().iter().enumerate() {
            if let Some(other) = step.condition.as_ref().and_then(|condition| condition.step_from(index)) {
                let message = format!("the condition of step {index} refers to step {other}");
                return Err(invalid("condition", message));
            }
        }
        Ok(())
    }
}

impl BatchStep {
    /// Decides whether the step runs after steps with these outcomes.
    pub(super) fn is_due(&self, outcomes: &[StepOutcome], is_autocommit: bool) -> bool {
        self.condition.as_ref().is_none_or(|condition| condition.holds(outcomes, is_autocommit))
    }
}

impl StepCondition {
    fn holds(&self, outcomes: &[StepOutcome], is_autocommit: bool) -> bool {
        let has = |step: usize, outcome| outcomes.get(step) == Some(&outcome);
        match self {
            Self::Ok { step } => has(*step, StepOutcome::Ok),
            Self::Error { step } => has(*step, StepOutcome::Error),
            Self::Not { cond } => !cond.holds(outcomes, is_autocommit),
            Self::And { conds } => conds.iter().all(|cond| cond.holds(outcomes, is_autocommit)),
            Self::Or { conds } => conds.iter().any(|cond| cond.holds(outcomes, is_autocommit)),
            Self::IsAutocommit => is_autocommit,
        }
    }

    /// Returns a step that the condition refers to and that has this index or a later one.
    fn step_from(&self, index: usize) -> Option<usize> {
        match self {
            Self::Ok { step } | Self::Error { step } => Some(*step).filter(|step| index <= *step),
            Self::Not { cond } => cond.step_from(index),
            Self::And { conds } | Self::Or { conds } => conds.iter().find_map(|cond| cond.step_from(index)),
            Self::IsAutocommit => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(json: &str, is_autocommit: bool) -> bool {
        let condition: StepCondition = serde_json::from_str(json).unwrap();
        condition.holds(&[StepOutcome::Ok, StepOutcome::Error, StepOutcome::Skipped], is_autocommit)
    }

    #[test]
    fn conditions_follow_the_outcomes() {
        let step = |kind: &str, step: usize| format!(r#"{{"type": "{kind}", "step": {step}}}"#);
        let outcomes =
            [0, 1, 2].map(|index| (holds(&step("ok", index), true), holds(&step("error", index), true)));
        assert_eq!(outcomes, [(true, false), (false, true), (false, false)]);
        let both =
            |kind: &str| format!(r#"{{"type": "{kind}", "conds": [{}, {}]}}"#, step("ok", 0), step("ok", 1));
        assert!(!holds(&both("and"), true));
        assert!(holds(&both("or"), true));
        assert!(holds(&format!(r#"{{"type": "not", "cond": {}}}"#, step("ok", 1)), true));
        for is_autocommit in [true, false] {
            assert_eq!(holds(r#"{"type": "is_autocommit"}"#, is_autocommit), is_autocommit);
        }
        assert!(holds(r#"{"type": "and", "conds": []}"#, true));
        assert!(!holds(r#"{"type": "or", "conds": []}"#, true));
    }

    #[test]
    fn the_depth_of_a_condition_is_limited() {
        let nested = |depth: usize| {
            let condition = r#"{"type": "not", "cond": "#.repeat(depth)
                + r#"{"type": "is_autocommit"}"#
                + &"}".repeat(depth);
            serde_json::from_str::<StepCondition>(&condition).is_ok()
        };
        assert!(nested(50));
        assert!(!nested(1_000));
    }
}
