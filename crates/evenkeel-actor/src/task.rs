//! Runs a future as an actor that accepts no messages from outside.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

use crate::actor::{Actor, Flow, HandlerResult};
use crate::context::Context;

/// An actor that stops when its future completes; `None` once `started` has taken the future.
pub(crate) struct TaskActor(Option<Pin<Box<dyn Future<Output = TaskDone> + Send>>>);

/// The actor's only message: the output of its completed future.
pub(crate) struct TaskDone;

impl TaskActor {
    pub(crate) fn new(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(async move {
            task.await;
            TaskDone
        })))
    }
}

impl Actor for TaskActor {
    type Msg = TaskDone;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<TaskDone> {
        Ok(self.0.take().map_or(Flow::Stop, Flow::Await))
    }

    fn receive(&mut self, _done: TaskDone, _ctx: &mut Context<'_, Self>) -> HandlerResult<TaskDone> {
        Ok(Flow::Stop)
    }
}
