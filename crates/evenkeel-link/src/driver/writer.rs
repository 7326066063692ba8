//! Tasks that write a path's streams and datagrams.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use tokio::sync::{Mutex, Notify, mpsc};

use super::Driver;
use crate::flow::FlowId;
use crate::quic::{PathConnection, SendDatagramError, SendStream, WriteError};
use crate::session::{LinkSession, StreamKey};

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
    datagrams: mpsc::UnboundedSender<Bytes>,
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
        let (datagrams, queue) = mpsc::unbounded_channel();
        tokio::spawn(context.clone().write_datagrams(queue));
        Self { context, bonded, datagrams, flows: HashMap::new() }
    }

    /// Queues a datagram.
    pub(super) fn send_datagram(&mut self, data: Bytes) {
        // Fails if the connection has ended.
        let _ = self.datagrams.send(data);
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

    /// Passes datagrams to the connection while it has room.
    async fn write_datagrams(self, mut queue: mpsc::UnboundedReceiver<Bytes>) {
        while let Some(data) = queue.recv().await {
            let len = data.len() as u64;
            // A datagram may be lost anyway: also one that is too long since the path's MTU has shrunk.
            if let Err(SendDatagramError::ConnectionLost(_)) = self.connection.send_datagram_wait(data).await
            {
                return;
            }
            if let Some(driver) = self.driver.upgrade() {
                let tell = |session: &mut LinkSession| session.handle_datagram_sent(self.path, len);
                driver.record_taken(self.path, self.generation, tell);
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
            let tell = |session: &mut LinkSession| session.handle_written(self.path, key, len);
            driver.record_taken(self.path, self.generation, tell);
        }
        Ok(())
    }
}
