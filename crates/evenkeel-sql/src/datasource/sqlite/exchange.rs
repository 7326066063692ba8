//! Hands statements from a connection to its thread, and rows and replies back.
//!
//! Guarantees:
//! - One mutex guards the state, and an interrupt is sent under it and only while its job runs. It can therefore never
//!   reach a later job.
//! - SQLite ignores an interrupt that arrives before a statement's first step. The progress handler, which asks
//!   [`Exchange::is_interrupted`], notices it.
//! - At most [`BATCHES_MAX`] batches wait (and the last one of a result). The thread blocks until one is taken, the
//!   statement is stopped, or its deadline passes.

use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::InterruptHandle;

use super::batch::RowBatch;
use super::params::BoundParam;
use super::pool::Release;
use crate::datasource::{AccessMode, StatementDescription, TransactionEnd, TransactionStatus};
use crate::error::DatabaseError;

/// Batches that wait for the connection's task.
const BATCHES_MAX: usize = 2;

/// WorkItem for a thread.
#[derive(Debug)]
pub(super) enum WorkerJob {
    Run(RunJob),
    Describe(RunJob),
    Begin(BeginJob),
    End(TransactionEnd),
}

/// A statement to run.
#[derive(Debug)]
pub(super) struct RunJob {
    pub(super) owner: u64,
    pub(super) sql: String,
    pub(super) params: Vec<BoundParam>,
    pub(super) sent_at: Instant,
    /// `None` if it is too far away to be represented.
    pub(super) deadline: Option<Instant>,
}

/// A transaction to begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct BeginJob {
    pub(super) owner: u64,
    pub(super) access: AccessMode,
    pub(super) foreign_keys: ForeignKeys,
}

/// Enforcement of foreign keys in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignKeys {
    Enforced,
    Ignored,
}

/// A thread's reply to a job.
#[derive(Debug)]
pub(super) struct WorkerReply {
    pub(super) result: Result<StatementSummary, DatabaseError>,
    pub(super) status: TransactionStatus,
    pub(super) health: Health,
}

/// Result of a statement besides its rows; empty for `BEGIN` and the end of a transaction.
#[derive(Debug, Default)]
pub(super) struct StatementSummary {
    pub(super) command: String,
    /// Rows that an `INSERT`, `UPDATE` or `DELETE` changed.
    pub(super) changes: Option<u64>,
    /// Row id of the last row that an `INSERT` added.
    pub(super) last_insert_rowid: Option<i64>,
    /// Reply to [`WorkerJob::Describe`].
    pub(super) description: Option<StatementDescription>,
    pub(super) first_response: Duration,
}

/// Fitness of a connection for another lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    /// The connection is discarded when it is released.
    Broken,
}

/// Next thing for a thread to do.
pub(super) enum WorkItem {
    Job(WorkerJob),
    Release(Release),
    Exit,
}

/// Next thing for a connection to handle.
pub(super) enum WorkerOutput {
    Rows(RowBatch),
    Done(WorkerReply),
}

/// Request to end a statement early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No more rows are wanted. A statement that writes is completed.
    Rows,
    /// The statement is to have no effect, if it has not ended yet.
    Statement,
}

/// The meeting point of a connection and its thread.
pub(super) struct Exchange {
    state: Mutex<State>,
    /// Wakes the thread.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<WorkerJob>,
    /// True from the submission of a job until the thread has finished it.
    is_running: bool,
    /// True while the running statement writes.
    is_writing: bool,
    deadline: Option<Instant>,
    stop: Option<Stop>,
    interrupt: Option<InterruptHandle>,
    batches: VecDeque<RowBatch>,
    reply: Option<WorkerReply>,
    waker: Option<Waker>,
    release: Option<Release>,
    must_exit: bool,
}

impl State {
    fn is_interrupted(&self) -> bool {
        let is_stopped = match self.stop {
            None => false,
            Some(Stop::Rows) => !self.is_writing,
            Some(Stop::Statement) => true,
        };
        is_stopped || self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

impl Exchange {
    /// Creates an exchange whose thread is about to open its database; the thread then finishes this first job.
    pub(super) fn opening() -> Self {
        Self { state: Mutex::new(State { is_running: true, ..State::default() }), changed: Condvar::new() }
    }

    /// Creates an exchange whose thread is ready for jobs.
    pub(super) fn ready() -> Self {
        Self { state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    /// Hands a job to the thread; the reply to the previous job has been taken.
    pub(super) fn submit(&self, job: WorkerJob) {
        let mut state = self.state.lock();
        state.is_running = true;
        state.job = Some(job);
        drop(state);
        self.changed.notify_one();
    }

    /// Reports whether a job runs, or its reply has not been taken.
    pub(super) fn is_occupied(&self) -> bool {
        let state = self.state.lock();
        state.is_running || state.reply.is_some()
    }

    /// Takes the next rows or, after the last of them, the reply.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<WorkerOutput> {
        let mut state = self.state.lock();
        if let Some(batch) = state.batches.pop_front() {
            drop(state);
            self.changed.notify_one();
            return Poll::Ready(WorkerOutput::Rows(batch));
        }
        if let Some(reply) = state.reply.take() {
            return Poll::Ready(WorkerOutput::Done(reply));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the running job early and drops its waiting rows; does nothing if no job runs.
    pub(super) fn stop(&self, stop: Stop) {
        let mut state = self.state.lock();
        state.batches.clear();
        if !state.is_running {
            return;
        }
        if state.stop != Some(Stop::Statement) {
            state.stop = Some(stop);
        }
        if state.is_interrupted()
            && let Some(interrupt) = &state.interrupt
        {
            interrupt.interrupt();
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Asks the thread to cancel its job, to roll back, and to return the connection to the pool.
    pub(super) fn release(&self, release: Release) {
        self.stop(Stop::Statement);
        self.state.lock().release = Some(release);
        self.changed.notify_one();
    }

    /// Asks the thread to end; nobody holds the connection.
    pub(super) fn exit(&self) {
        self.state.lock().must_exit = true;
        self.changed.notify_one();
    }

    /// Waits for work.
    pub(super) fn next(&self) -> WorkItem {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.job.take() {
                return WorkItem::Job(job);
            }
            if let Some(release) = state.release.take() {
                state.batches.clear();
                state.reply = None;
                state.waker = None;
                return WorkItem::Release(release);
            }
            if state.must_exit {
                return WorkItem::Exit;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Sets the connection that interrupts are sent to.
    pub(super) fn set_interrupt(&self, interrupt: InterruptHandle) {
        self.state.lock().interrupt = Some(interrupt);
    }

    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        self.state.lock().deadline = deadline;
    }

    /// Notes that the running statement writes, which decides how it can be stopped.
    pub(super) fn set_writing(&self) {
        self.state.lock().is_writing = true;
    }

    /// Returns the request to end the running statement early; a passed deadline is one.
    pub(super) fn stop_request(&self) -> Option<Stop> {
        let state = self.state.lock();
        let is_late = state.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if is_late { Some(Stop::Statement) } else { state.stop }
    }

    /// Reports whether the running statement must end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.state.lock().is_interrupted()
    }

    /// Pauses the thread, at most until its statement is interrupted.
    pub(super) fn pause(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.is_interrupted() {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// Sends rows; blocks while too many wait. An error is the request that ended the wait.
    pub(super) fn send_rows(&self, batch: RowBatch) -> Result<(), Stop> {
        let mut state = self.state.lock();
        loop {
            if let Some(stop) = state.stop {
                return Err(stop);
            }
            if state.batches.len() < BATCHES_MAX {
                break;
            }
            match state.deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return Err(Stop::Statement);
                    }
                }
            }
        }
        state.batches.push_back(batch);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Ends the job: the last rows and the reply reach the connection with one wake-up.
    ///
    /// From here on no interrupt is sent.
    pub(super) fn finish(&self, last: Option<RowBatch>, reply: WorkerReply) {
        let mut state = self.state.lock();
        if state.stop.is_none() {
            state.batches.extend(last);
        }
        state.reply = Some(reply);
        state.is_running = false;
        state.is_writing = false;
        state.deadline = None;
        state.stop = None;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
