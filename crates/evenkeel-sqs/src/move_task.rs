//! Message move tasks: redrive dead letters to their source queues, or another queue, in the background.
//!
//! Limits: at most 100 active tasks per owner, one per source. The last ten tasks of each source are listed until the gateway stops.
//! Guarantees: a task visits every message that was in the source when the task started, once unless the queue's actor
//! restarts, and does not exceed its rate. A task that was interrupted by a stop of the gateway is listed as failed
//! after the next start, until another task starts.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::{Namespace, Queue, QueueId, Queues, Rejection};
use evenkeel_server::hex::hex;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::api::{RequestContext, SqsApi, required};
use crate::base64;
use crate::error::SqsError;
use crate::limit::{MOVE_RATE, TASKS, TASKS_ACTIVE_MAX};
use crate::queue_metadata::{MoveTaskRecord, QueueMetadata};
use crate::reason;

/// Maximum number of messages per step of a task without a rate.
const BATCH: usize = 100;
/// Tasks of a source that are listed.
const TASKS_LISTED_MAX: usize = *TASKS.end() as usize;
/// Tasks of an owner that are remembered.
const TASKS_OF_OWNER_MAX: usize = TASKS_ACTIVE_MAX * TASKS_LISTED_MAX;
/// Consecutive retries while the queue is busy before a task fails.
const RETRIES_MAX: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Failure reason of a task that was interrupted by a shutdown or crash.
const INTERRUPTED: &str = "GatewayStopped";
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

/// Contents of a task's handle, base64 of JSON as at AWS.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskHandle {
    task_id: String,
    source_arn: String,
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

/// Active and recent tasks, newest first.
#[derive(Default)]
pub(crate) struct MoveTasks(Mutex<VecDeque<Arc<Task>>>);

/// The queues of a task.
#[derive(Clone, Copy, Debug)]
struct TaskQueues {
    /// Namespace of the queues when the task started.
    namespace: Namespace,
    source: QueueId,
    /// `None` if each message returns to the queue that it came from.
    destination: Option<QueueId>,
}

struct Task {
    id: String,
    queues: TaskQueues,
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

    const fn is_finished(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed(_))
    }
}

impl SqsApi {
    pub(crate) async fn start_move_task(
        &self,
        context: &RequestContext,
        request: &StartMove,
    ) -> Result<StartMoveResponse, SqsError> {
        let lock = self.lock_changes().await;
        let (source, source_arn) =
            self.queue_by_arn(context, "SourceArn", request.source_arn.as_deref(), reason::NO_SOURCE)?;
        let destination = match request.destination_arn.as_deref() {
            Some(arn) => {
                Some(self.queue_by_arn(context, "DestinationArn", Some(arn), reason::NO_DESTINATION)?)
            }
            None => None,
        };
        let namespace = source.descriptor().namespace;
        if destination.as_ref().is_some_and(|(queue, _)| queue.descriptor().namespace != namespace) {
            return Err(SqsError::NoResource { message: reason::NO_DESTINATION });
        }
        let rate = request.max_number_of_messages_per_second;
        if rate.is_some_and(|rate| !MOVE_RATE.contains(&rate)) {
            return Err(SqsError::invalid(reason::MOVE_RATE));
        }
        if self.sources_of(source.id()).is_empty() {
            return Err(SqsError::invalid(reason::NOT_A_DEAD_LETTER_QUEUE));
        }
        if destination.as_ref().is_some_and(|(queue, _)| queue.id() == source.id()) {
            return Err(SqsError::invalid(reason::SAME_QUEUE));
        }
        let order = source.descriptor().settings.order;
        if destination.as_ref().is_some_and(|(queue, _)| queue.descriptor().settings.order != order) {
            return Err(SqsError::invalid(reason::QUEUE_TYPES_DIFFER));
        }
        let (to, destination_arn) = destination.map(|(queue, arn)| (queue.id(), arn)).unzip();
        let record = MoveTaskRecord {
            id: new_id()?,
            source_arn,
            destination_arn,
            rate: rate.map(i64::unsigned_abs),
            started_ms: source.now().0,
            to_move: source.settled_totals().await.pending,
        };
        let queues = TaskQueues { namespace, source: source.id(), destination: to };
        let task = Arc::new(Task::new(queues, record.clone(), 0, State::Running));
        self.moves.add(task.clone())?;
        let recorded = lock.change(&source, |spec| {
            spec.metadata.move_task = Some(record);
            Ok(())
        });
        if let Err(error) = recorded.await {
            *task.state.lock() = State::Failed(error.code());
            return Err(error);
        }
        let task_handle = task.handle();
        tokio::spawn(run(self.weak_self.clone(), task, source, self.stopping.subscribe()));
        Ok(StartMoveResponse { task_handle })
    }

    /// Removes the record of a finished task from its source.
    async fn remove_task_record(&self, source: &Queue, id: &str) {
        let lock = self.lock_changes().await;
        let removed = lock.change(source, |spec| {
            spec.metadata.move_task = spec.metadata.move_task.take().filter(|record| record.id != id);
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::warn!(
                queue = %source.descriptor().name,
                task = id,
                %error,
                "could not remove the record of a finished move task; after a restart it is listed as failed"
            );
        }
    }

    pub(crate) fn cancel_move_task(
        &self,
        context: &RequestContext,
        request: &CancelMove,
    ) -> Result<CancelMoveResponse, SqsError> {
        let handle = required("TaskHandle", request.task_handle.as_deref())?;
        let TaskHandle { task_id, source_arn } = base64::decode(handle)
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or_else(|| SqsError::invalid(reason::TASK_HANDLE))?;
        let (source, _) = self.queue_by_arn(context, "SourceArn", Some(&source_arn), reason::NO_SOURCE)?;
        let is_named = |task: &&Arc<Task>| task.id == task_id && task.queues.source == source.id();
        let found = self.moves.0.lock().iter().find(is_named).cloned();
        let task = found.ok_or(SqsError::NoResource { message: reason::NO_TASK })?;
        let mut state = task.state.lock();
        if *state != State::Running {
            return Err(SqsError::Unsupported { message: reason::TASK_NOT_ACTIVE });
        }
        *state = State::Cancelling;
        Ok(CancelMoveResponse { approximate_number_of_messages_moved: task.moved.load(Ordering::Relaxed) })
    }

    pub(crate) fn list_move_tasks(
        &self,
        context: &RequestContext,
        request: &ListMoves,
    ) -> Result<ListMovesResponse, SqsError> {
        let (source, _) =
            self.queue_by_arn(context, "SourceArn", request.source_arn.as_deref(), reason::NO_SOURCE)?;
        let max = request.max_results.unwrap_or(1);
        if !TASKS.contains(&max) {
            return Err(SqsError::invalid(reason::TASKS));
        }
        self.forget_tasks_of_previous_owners(&source);
        let tasks = self.moves.0.lock();
        let of_source = tasks.iter().filter(|task| task.queues.source == source.id());
        let results = of_source.take(usize::try_from(max).unwrap_or(1)).map(|task| task.to_entry()).collect();
        Ok(ListMovesResponse { results })
    }

    /// Removes the finished tasks from a queue that started under another owner, whose account they name.
    fn forget_tasks_of_previous_owners(&self, source: &Queue) {
        let namespace = source.descriptor().namespace;
        let is_of_owner = |task: &Task| {
            let named = self.options.queue_of_arn(&task.source_arn).ok().flatten();
            named.is_some_and(|named| named.namespace == Some(namespace))
        };
        self.moves
            .0
            .lock()
            .retain(|task| task.queues.source != source.id() || !task.is_finished() || is_of_owner(task));
    }

    /// Finds the queue of an ARN parameter; returns the queue and the ARN.
    fn queue_by_arn(
        &self,
        context: &RequestContext,
        name: &'static str,
        arn: Option<&str>,
        missing: &'static str,
    ) -> Result<(Queue, String), SqsError> {
        let arn = required(name, arn)?;
        let queue = self.options.queue_of_arn(arn).map_err(|_| {
            SqsError::invalid(format!(
                "You must use this format to specify the {name}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            ))
        })?;
        let queue = queue.and_then(|queue| self.find(&context.caller, queue, context.operation));
        Ok((queue.ok_or(SqsError::NoResource { message: missing })?, arn.to_owned()))
    }
}

impl MoveTasks {
    /// Restores the tasks that the last shutdown or crash interrupted, as failed.
    pub(crate) fn restore_interrupted(queues: &Queues) -> Self {
        let tasks = queues.all().into_iter().filter_map(|queue| {
            let record = QueueMetadata::read(&queue.descriptor().metadata).move_task?;
            let moved = record.to_move.saturating_sub(queue.totals().pending);
            let namespace = queue.descriptor().namespace;
            let queues = TaskQueues { namespace, source: queue.id(), destination: None };
            Some(Arc::new(Task::new(queues, record, moved, State::Failed(INTERRUPTED))))
        });
        Self(Mutex::new(tasks.collect()))
    }

    /// Reports whether a task that moves messages from or to a queue is active.
    pub(crate) fn is_active(&self, queue: QueueId) -> bool {
        let uses = |task: &Task| task.queues.source == queue || task.queues.destination == Some(queue);
        self.0.lock().iter().any(|task| uses(task) && !task.is_finished())
    }

    fn add(&self, task: Arc<Task>) -> Result<(), SqsError> {
        let mut tasks = self.0.lock();
        let TaskQueues { namespace, source, .. } = task.queues;
        let is_active = |task: &&Arc<Task>| !task.is_finished();
        if tasks.iter().filter(is_active).any(|other| other.queues.source == source) {
            return Err(SqsError::invalid(reason::TASK_RUNNING));
        }
        let active_of_owner =
            tasks.iter().filter(is_active).filter(|other| other.queues.namespace == namespace);
        if TASKS_ACTIVE_MAX <= active_of_owner.count() {
            let message = format!("{TASKS_ACTIVE_MAX} move tasks are active, which is the maximum");
            return Err(SqsError::OverLimit { message });
        }
        tasks.push_front(task);
        let mut of_source = 0;
        let mut of_owner = 0;
        tasks.retain(|task| {
            of_source += usize::from(task.queues.source == source);
            of_owner += usize::from(task.queues.namespace == namespace);
            let is_beyond_source = task.queues.source == source && TASKS_LISTED_MAX < of_source;
            // Bounds the tasks of deleted queues.
            let is_beyond_owner = task.queues.namespace == namespace && TASKS_OF_OWNER_MAX < of_owner;
            !task.is_finished() || !is_beyond_source && !is_beyond_owner
        });
        Ok(())
    }
}

impl Task {
    fn new(queues: TaskQueues, record: MoveTaskRecord, moved: u64, state: State) -> Self {
        let MoveTaskRecord { id, source_arn, destination_arn, rate, started_ms, to_move } = record;
        let moved = AtomicU64::new(moved);
        let state = Mutex::new(state);
        Self { id, queues, source_arn, destination_arn, rate, started_ms, to_move, moved, state }
    }

    fn is_finished(&self) -> bool {
        self.state.lock().is_finished()
    }

    fn handle(&self) -> String {
        let handle = TaskHandle { task_id: self.id.clone(), source_arn: self.source_arn.clone() };
        base64::encode(&serde_json::to_vec(&handle).expect("texts are JSON"))
    }

    fn to_entry(&self) -> MoveTaskEntry {
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

/// Moves messages until none are left, the task is cancelled, or the server stops.
async fn run(sqs: Weak<SqsApi>, task: Arc<Task>, source: Queue, mut stopping: watch::Receiver<bool>) {
    let (batch, pause) = pace(task.rate);
    let mut cursor = MoveCursor::default();
    let mut retries = 0;
    let state = loop {
        if *task.state.lock() == State::Cancelling {
            break State::Cancelled;
        }
        let pause = match source.move_some(cursor, task.queues.destination, batch).await {
            Ok(step) => {
                task.moved.fetch_add(step.moved, Ordering::Relaxed);
                match step.next {
                    Some(next) => cursor = next,
                    None if step.left > 0 => break State::Failed(reason_to_leave(task.queues.destination)),
                    None => break State::Completed,
                }
                retries = 0;
                // Messages that were visited but not moved do not count towards the rate.
                if step.moved == 0 { Duration::ZERO } else { pause }
            }
            Err(Rejection::Busy | Rejection::Interrupted) if retries < RETRIES_MAX => {
                retries += 1;
                RETRY_DELAY
            }
            Err(rejection) => break State::Failed(SqsError::from(rejection).code()),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The remaining messages stay in the source; the next start lists the task as failed.
            _ = stopping.wait_for(|stopping| *stopping) => {
                return *task.state.lock() = State::Failed(INTERRUPTED);
            }
        }
    };
    if let Some(sqs) = sqs.upgrade() {
        sqs.remove_task_record(&source, &task.id).await;
    }
    *task.state.lock() = state;
}

/// Returns the failure reason of a task that left messages in the source.
fn reason_to_leave(destination: Option<QueueId>) -> &'static str {
    match destination {
        // It was deleted, or has another owner.
        Some(_) => SqsError::NoQueue.code(),
        // Messages that were sent directly to the dead-letter queue have no source.
        None => "CouldNotDetermineMessageSource",
    }
}

/// Returns the messages per step and the pause between steps.
fn pace(rate: Option<u64>) -> (usize, Duration) {
    match rate {
        None => (BATCH, Duration::ZERO),
        Some(rate) => {
            // Ten steps per second, or one message per step at lower rates.
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

    fn task(namespace: Namespace, source: u32) -> Arc<Task> {
        let queues = TaskQueues { namespace, source: QueueId(source), destination: None };
        let record = MoveTaskRecord {
            id: source.to_string(),
            source_arn: String::new(),
            destination_arn: None,
            rate: None,
            started_ms: 0,
            to_move: 0,
        };
        Arc::new(Task::new(queues, record, 0, State::Running))
    }

    #[test]
    fn the_tasks_of_one_owner_do_not_use_up_the_limit_of_another() {
        let tasks = MoveTasks::default();
        let owner = Namespace::Account("111111111111".parse().unwrap());
        for source in 0..TASKS_ACTIVE_MAX as u32 {
            tasks.add(task(owner, source)).unwrap();
        }
        assert!(matches!(tasks.add(task(owner, 1_000)), Err(SqsError::OverLimit { .. })));
        tasks.add(task(Namespace::Shared, 1_001)).unwrap();
    }

    #[test]
    fn finished_tasks_are_forgotten_and_running_ones_are_not() {
        let tasks = MoveTasks::default();
        let running = task(Namespace::Shared, 0);
        tasks.add(running.clone()).unwrap();
        for source in 1..2 * TASKS_OF_OWNER_MAX as u32 {
            let finished = task(Namespace::Shared, source);
            tasks.add(finished.clone()).unwrap();
            *finished.state.lock() = State::Completed;
        }
        assert!(tasks.is_active(running.queues.source));
        assert_eq!(tasks.0.lock().len(), TASKS_OF_OWNER_MAX + 1);
    }

    #[test]
    fn batch_and_pause_match_the_rate() {
        for rate in 1..=500 {
            let (batch, pause) = pace(Some(rate));
            let per_second = batch as f64 / pause.as_secs_f64();
            assert!((per_second - rate as f64).abs() < 1e-3, "{rate}: {per_second}");
            assert!(pause <= Duration::from_secs(1));
        }
        assert_eq!(pace(None), (BATCH, Duration::ZERO));
    }
}
