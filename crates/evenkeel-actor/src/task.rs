//! A future as an actor: it is waited for, and nothing else.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

use crate::actor::{Actor, Flow, Handled};
use crate::context::Context;

/// An actor that is done when its future is.
pub(crate) struct TaskActor(Option<Pin<Box<dyn Future<Output = Done> + Send>>>);

/// Says that a task is done.
pub(crate) struct Done;

impl TaskActor {
    pub(crate) fn new(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(async move {
            task.await;
            Done
        })))
    }
}

impl Actor for TaskActor {
    type Msg = Done;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> Handled<Done> {
        Ok(self.0.take().map_or(Flow::Stop, Flow::Await))
    }

    fn receive(&mut self, _done: Done, _ctx: &mut Context<'_, Self>) -> Handled<Done> {
        Ok(Flow::Stop)
    }
}
