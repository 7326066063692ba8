//! Tasks that write a path's streams.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use tokio::sync::{Mutex, Notify, mpsc};

use super::Driver;
use crate::flow::FlowId;
use crate::quic::{PathConnection, SendStream, WriteError};
use crate::session::StreamKey;

/// Number of streams that share a path's bonded chunks; the receive window of one stream (2.4 MB) is smaller than the
/// congestion window of a fast path.
const BONDED_STREAMS: usize = 4;

/// Command for the writer of one stream.
pub(super) enum StreamWork {
    Frame { header: Bytes, data: Bytes },
    Finish,
    Abandon,
}

/// Queues of a path's streams; the session bounds their length.
pub(super) struct PathWriter {
    context: WriterContext,
    bonded: mpsc::UnboundedSender<StreamWork>,
    flows: HashMap<FlowId, FlowQueue>,
}

/// Queue of one flow's stream.
struct FlowQueue {
    queue: mpsc::UnboundedSender<StreamWork>,
    /// Notified to reset the stream at once, with everything that is queued.
    abandoned: Arc<Notify>,
}

#[derive(Clone)]
struct WriterContext {
    driver: Weak<Driver>,
    connection: PathConnection,
    path: PathId,
    generation: u64,
}

impl PathWriter {
    pub(super) fn new(
        driver: &Arc<Driver>,
        connection: &PathConnection,
        path: PathId,
        generation: u64,
    ) -> Self {
        let context = WriterContext {
            driver: Arc::downgrade(driver),
            connection: connection.clone(),
            path,
            generation,
        };
        let (bonded, queue) = mpsc::unbounded_channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..BONDED_STREAMS {
            tokio::spawn(context.clone().write_bonded(queue.clone()));
        }
        Self { context, bonded, flows: HashMap::new() }
    }

    /// Queues work for a stream, which is opened if it does not exist.
    pub(super) fn send(&mut self, stream: StreamKey, work: StreamWork) {
        // A queue whose task has ended belongs to a connection that has ended too.
        let StreamKey::Flow(flow) = stream else {
            let _ = self.bonded.send(work);
            return;
        };
        let entry = self.flows.entry(flow).or_insert_with(|| {
            let (queue, queued) = mpsc::unbounded_channel();
            let abandoned = Arc::new(Notify::new());
            tokio::spawn(self.context.clone().write_flow(flow, queued, abandoned.clone()));
            FlowQueue { queue, abandoned }
        });
        match work {
            StreamWork::Frame { .. } => {
                let _ = entry.queue.send(work);
            }
            StreamWork::Finish => {
                // The task ends once it has written the queue, which finishes the stream.
                self.flows.remove(&flow);
            }
            StreamWork::Abandon => {
                entry.abandoned.notify_one();
                self.flows.remove(&flow);
            }
        }
    }
}

impl WriterContext {
    /// Writes the frames of one flow to a stream of its own, until its queue is closed or the stream abandoned.
    async fn write_flow(
        self,
        flow: FlowId,
        mut queue: mpsc::UnboundedReceiver<StreamWork>,
        abandoned: Arc<Notify>,
    ) {
        let mut stream: Option<SendStream> = None;
        let writing = async {
            while let Some(StreamWork::Frame { header, data }) = queue.recv().await {
                if self.write(&mut stream, StreamKey::Flow(flow), header, data).await.is_err() {
                    return;
                }
            }
        };
        let is_abandoned = tokio::select! {
            biased;
            () = abandoned.notified() => true,
            () = writing => false,
        };
        // A stream that is not reset is finished when it is dropped.
        if is_abandoned && let Some(mut stream) = stream {
            // A stream that has ended already needs no reset.
            let _ = stream.reset(0_u32.into());
        }
    }

    /// Writes bonded chunks to one of the path's shared streams.
    async fn write_bonded(self, queue: Arc<Mutex<mpsc::UnboundedReceiver<StreamWork>>>) {
        let mut stream = None;
        loop {
            let work = queue.lock().await.recv().await;
            let Some(StreamWork::Frame { header, data }) = work else { return };
            if self.write(&mut stream, StreamKey::Bonded, header, data).await.is_err() {
                return;
            }
        }
    }

    async fn write(
        &self,
        stream: &mut Option<SendStream>,
        key: StreamKey,
        header: Bytes,
        data: Bytes,
    ) -> Result<(), WriteError> {
        let len = (header.len() + data.len()) as u64;
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(self.connection.open_stream().await?),
        };
        stream.write_all_chunks(&mut [header, data]).await?;
        if let Some(driver) = self.driver.upgrade() {
            driver.record_written(self.path, self.generation, key, len);
        }
        Ok(())
    }
}
