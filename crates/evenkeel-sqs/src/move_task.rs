//! Move tasks: dead letters on their way back, in the background and at a pace.
//!
//! Bound: at most 100 at once, one per source; the last ten of each source are remembered until the gateway ends. A
//! task looks at every message that there was when it began, once, and moves no faster than it was told. One that the
//! gateway's end has cut short is shown as failed after the next start, until another begins.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::{Queue, QueueId, Queues, Rejection};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::api::{SqsApi, required};
use crate::attribute::hex;
use crate::base64;
use crate::error::SqsError;
use crate::limit::{MOVE_RATE, TASKS, TASKS_ACTIVE_MAX};
use crate::queue_metadata::{MoveTaskRecord, QueueMetadata};

/// Messages moved in one go when there is no hurry to slow down.
const BATCH: usize = 100;
/// So often in a row a queue may be too busy before its move is given up.
const TRIES_MAX: u32 = 10;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Why a task has failed that did not outlive the gateway.
const CUT_SHORT: &str = "GatewayStopped";
const NO_SOURCE: &str = "The resource that you specified for the SourceArn parameter doesn't exist.";
const NO_DESTINATION: &str =
    "The resource that you specified for the DestinationArn parameter doesn't exist.";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct StartMove {
    source_arn: Option<String>,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CancelMove {
    task_handle: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListMoves {
    source_arn: Option<String>,
    max_results: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct StartMoveResponse {
    task_handle: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CancelMoveResponse {
    approximate_number_of_messages_moved: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListMovesResponse {
    results: Vec<MoveTaskEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct MoveTaskEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    task_handle: Option<String>,
    status: &'static str,
    source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_number_of_messages_per_second: Option<u64>,
    approximate_number_of_messages_moved: u64,
    approximate_number_of_messages_to_move: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_reason: Option<&'static str>,
    started_timestamp: u64,
}

/// Every task that is remembered, the newest first.
#[derive(Default)]
pub(crate) struct MoveTasks(Mutex<VecDeque<Arc<Task>>>);

struct Task {
    id: String,
    source: QueueId,
    source_arn: String,
    destination_arn: Option<String>,
    rate: Option<u64>,
    started_ms: u64,
    to_move: u64,
    moved: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Cancelling,
    Cancelled,
    Completed,
    Failed(&'static str),
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Cancelling => "CANCELLING",
            Self::Cancelled => "CANCELLED",
            Self::Completed => "COMPLETED",
            Self::Failed(_) => "FAILED",
        }
    }

    const fn is_over(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed(_))
    }
}

impl SqsApi {
    pub(crate) async fn start_move_task(&self, wish: &StartMove) -> Result<StartMoveResponse, SqsError> {
        let (source, source_arn) = self.by_arn("SourceArn", wish.source_arn.as_deref(), NO_SOURCE)?;
        let destination = match wish.destination_arn.as_deref() {
            Some(arn) => Some(self.by_arn("DestinationArn", Some(arn), NO_DESTINATION)?),
            None => None,
        };
        let rate = wish.max_number_of_messages_per_second;
        if let Some(rate) = rate.filter(|rate| !MOVE_RATE.contains(rate)) {
            let reason = "Must be between 1 and 500, if provided.";
            return Err(SqsError::value("MaxNumberOfMessagesPerSecond", rate, reason));
        }
        if self.sources_of(source.id()).is_empty() {
            return Err(SqsError::invalid("Source queue must be configured as a Dead Letter Queue."));
        }
        if destination.as_ref().is_some_and(|(queue, _)| queue.id() == source.id()) {
            return Err(SqsError::invalid("Source queue and destination queue must not be the same."));
        }
        let order = source.descriptor().settings.order;
        if destination.as_ref().is_some_and(|(queue, _)| queue.descriptor().settings.order != order) {
            return Err(SqsError::invalid("Source queue and destination queue must be of the same type."));
        }
        let (to, destination_arn) = destination.map(|(queue, arn)| (queue.id(), arn)).unzip();
        let begun = MoveTaskRecord {
            id: new_id()?,
            source_arn,
            destination_arn,
            rate: rate.map(i64::unsigned_abs),
            started_ms: source.now().0,
            to_move: source.totals().pending,
        };
        let task = Arc::new(Task::new(source.id(), begun.clone(), 0, State::Running));
        self.moves.add(task.clone())?;
        let noted = self.change(&source, |shape| {
            shape.notes.move_task = Some(begun);
            Ok(())
        });
        if let Err(fault) = noted.await {
            *task.state.lock() = State::Failed(fault.code());
            return Err(fault);
        }
        let task_handle = task.handle();
        tokio::spawn(run(self.me.clone(), task, source, to, self.stopping.subscribe()));
        Ok(StartMoveResponse { task_handle })
    }

    /// Forgets that a move began, now that it is over.
    async fn end_move_task(&self, source: &Queue, id: &str) {
        let noted = self.change(source, |shape| {
            shape.notes.move_task = shape.notes.move_task.take().filter(|begun| begun.id != id);
            Ok(())
        });
        if let Err(fault) = noted.await {
            tracing::warn!(queue = source.id().0, %fault, "a move that is over will be shown as failed");
        }
    }

    pub(crate) fn cancel_move_task(&self, wish: &CancelMove) -> Result<CancelMoveResponse, SqsError> {
        let handle = required("TaskHandle", wish.task_handle.as_deref())?;
        let text = base64::decode(handle).and_then(|bytes| String::from_utf8(bytes).ok());
        let (id, arn) = text
            .as_deref()
            .and_then(|text| text.split_once(' '))
            .ok_or_else(|| SqsError::invalid("Value for parameter TaskHandle is invalid."))?;
        self.by_arn("SourceArn", Some(arn), NO_SOURCE)?;
        let found = self.moves.0.lock().iter().find(|task| task.id == id).cloned();
        let task = found.ok_or(SqsError::NoResource { message: "Task does not exist." })?;
        let mut state = task.state.lock();
        if *state != State::Running {
            let message = "Only active tasks can be cancelled.".to_owned();
            return Err(SqsError::Unsupported { message });
        }
        *state = State::Cancelling;
        Ok(CancelMoveResponse { approximate_number_of_messages_moved: task.moved.load(Ordering::Relaxed) })
    }

    pub(crate) fn list_move_tasks(&self, wish: &ListMoves) -> Result<ListMovesResponse, SqsError> {
        let (source, _) = self.by_arn("SourceArn", wish.source_arn.as_deref(), NO_SOURCE)?;
        let max = wish.max_results.unwrap_or(1);
        if !TASKS.contains(&max) {
            return Err(SqsError::value("MaxResults", max, "Must be between 1 and 10, if provided."));
        }
        let tasks = self.moves.0.lock();
        let of_source = tasks.iter().filter(|task| task.source == source.id());
        let results = of_source.take(usize::try_from(max).unwrap_or(1)).map(|task| task.listed()).collect();
        Ok(ListMovesResponse { results })
    }

    fn by_arn(
        &self,
        name: &'static str,
        arn: Option<&str>,
        missing: &'static str,
    ) -> Result<(Queue, String), SqsError> {
        let arn = required(name, arn)?;
        let queue_name = self.options.name_of_arn(arn).map_err(|_| {
            SqsError::invalid(format!(
                "You must use this format to specify the {name}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            ))
        })?;
        let queue = queue_name.and_then(|queue_name| self.queues.get(queue_name));
        Ok((queue.ok_or(SqsError::NoResource { message: missing })?, arn.to_owned()))
    }
}

impl MoveTasks {
    /// Remembers the tasks that the gateway's end has cut short.
    pub(crate) fn restore_interrupted(queues: &Queues) -> Self {
        let tasks = queues.list("", None, usize::MAX).into_iter().filter_map(|queue| {
            let begun = QueueMetadata::read(&queue.descriptor().metadata).move_task?;
            let moved = begun.to_move.saturating_sub(queue.totals().pending);
            Some(Arc::new(Task::new(queue.id(), begun, moved, State::Failed(CUT_SHORT))))
        });
        Self(Mutex::new(tasks.collect()))
    }

    fn add(&self, task: Arc<Task>) -> Result<(), SqsError> {
        let mut tasks = self.0.lock();
        let active = |task: &&Arc<Task>| !task.state.lock().is_over();
        if tasks.iter().filter(active).any(|other| other.source == task.source) {
            return Err(SqsError::invalid(
                "There is already a task running. Only one active task is allowed for a source queue arn at a \
                 given time.",
            ));
        }
        if TASKS_ACTIVE_MAX <= tasks.iter().filter(active).count() {
            let message = format!("{TASKS_ACTIVE_MAX} move tasks are active, which is the most");
            return Err(SqsError::OverLimit { message });
        }
        let source = task.source;
        tasks.push_front(task);
        let mut of_source = 0;
        tasks.retain(|task| {
            of_source += i64::from(task.source == source);
            task.source != source || of_source <= *TASKS.end()
        });
        // Of queues that are gone, too, only so much is remembered.
        tasks.truncate(TASKS_ACTIVE_MAX * usize::try_from(*TASKS.end()).unwrap_or(1));
        Ok(())
    }
}

impl Task {
    fn new(source: QueueId, begun: MoveTaskRecord, moved: u64, state: State) -> Self {
        let MoveTaskRecord { id, source_arn, destination_arn, rate, started_ms, to_move } = begun;
        let moved = AtomicU64::new(moved);
        let state = Mutex::new(state);
        Self { id, source, source_arn, destination_arn, rate, started_ms, to_move, moved, state }
    }

    fn handle(&self) -> String {
        base64::encode(format!("{} {}", self.id, self.source_arn).as_bytes())
    }

    fn listed(&self) -> MoveTaskEntry {
        let state = *self.state.lock();
        MoveTaskEntry {
            task_handle: (state == State::Running).then(|| self.handle()),
            status: state.as_str(),
            source_arn: self.source_arn.clone(),
            destination_arn: self.destination_arn.clone(),
            max_number_of_messages_per_second: self.rate,
            approximate_number_of_messages_moved: self.moved.load(Ordering::Relaxed),
            approximate_number_of_messages_to_move: self.to_move,
            failure_reason: match state {
                State::Failed(reason) => Some(reason),
                State::Running | State::Cancelling | State::Cancelled | State::Completed => None,
            },
            started_timestamp: self.started_ms,
        }
    }
}

/// Moves messages until there are no more, somebody cancels it, or the server stops.
async fn run(
    sqs: Weak<SqsApi>,
    task: Arc<Task>,
    source: Queue,
    to: Option<QueueId>,
    mut stopping: watch::Receiver<bool>,
) {
    let (batch, pause) = pace(task.rate);
    let mut cursor = MoveCursor::default();
    let mut tries = 0;
    let state = loop {
        if *task.state.lock() == State::Cancelling {
            break State::Cancelled;
        }
        let pause = match source.move_some(cursor, to, batch).await {
            Ok(step) => {
                task.moved.fetch_add(step.moved, Ordering::Relaxed);
                match step.next {
                    Some(next) => cursor = next,
                    // What was sent to the dead-letter queue itself came from nowhere.
                    None if step.left > 0 => break State::Failed("CouldNotDetermineMessageSource"),
                    None => break State::Completed,
                }
                tries = 0;
                // Messages that only were looked at use up no rate.
                if step.moved == 0 { Duration::ZERO } else { pause }
            }
            Err(Rejection::Busy | Rejection::Interrupted) if tries < TRIES_MAX => {
                tries += 1;
                TRY_AGAIN_AFTER
            }
            Err(rejection) => break State::Failed(SqsError::from(rejection).code()),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // What is left stays where it is, and the next start tells.
            _ = stopping.wait_for(|stopping| *stopping) => {
                return *task.state.lock() = State::Failed(CUT_SHORT);
            }
        }
    };
    if let Some(sqs) = sqs.upgrade() {
        sqs.end_move_task(&source, &task.id).await;
    }
    *task.state.lock() = state;
}

/// How many messages at a time, and how long between.
fn pace(rate: Option<u64>) -> (usize, Duration) {
    match rate {
        None => (BATCH, Duration::ZERO),
        Some(rate) => {
            // Ten times a second, or as often as there is a message to move.
            let batch = rate.div_ceil(10).max(1);
            (usize::try_from(batch).unwrap_or(1), Duration::from_secs_f64(batch as f64 / rate.max(1) as f64))
        }
    }
}

fn new_id() -> Result<String, SqsError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SqsError::Internal)?;
    let hex = hex(&bytes);
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_keeps_to_its_rate() {
        for rate in 1..=500 {
            let (batch, pause) = pace(Some(rate));
            let per_second = batch as f64 / pause.as_secs_f64();
            assert!((per_second - rate as f64).abs() < 1e-3, "{rate}: {per_second}");
            assert!(pause <= Duration::from_secs(1));
        }
        assert_eq!(pace(None), (BATCH, Duration::ZERO));
    }
}
