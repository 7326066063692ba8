//! A flow of datagrams.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use crate::driver::Direction;
use crate::flow::ResetCode;
use crate::link::{FlowHandle, RecvFlow, SendFlow, reset_error, to_io_error};
use crate::session::Read;

/// Both directions of a flow of datagrams. Dropping it ends the flow.
pub struct DatagramFlow {
    handle: Arc<FlowHandle>,
}

impl DatagramFlow {
    /// Joins the halves of a flow whose lane has datagrams.
    pub fn new(send: SendFlow, _recv: RecvFlow) -> Self {
        Self { handle: send.into_handle() }
    }

    /// Sends a datagram, which may be lost; fails only if the flow has ended.
    pub fn send(&self, data: Bytes) -> io::Result<()> {
        let FlowHandle { driver, flow, .. } = &*self.handle;
        driver.with(|session, now| session.send_datagram(now, *flow, data)).map_err(to_io_error)
    }

    /// Waits for the next datagram; fails once the flow has ended.
    ///
    /// If the other side refuses the target, it fails with [`io::ErrorKind::ConnectionRefused`].
    pub async fn receive(&self) -> io::Result<Bytes> {
        let FlowHandle { driver, flow, .. } = &*self.handle;
        poll_fn(|context| {
            driver.poll_flow(*flow, Direction::Read, context, |session, _| {
                match session.receive_datagram(*flow) {
                    Read::Data(data) => Poll::Ready(Ok(data)),
                    Read::Pending => Poll::Pending,
                    Read::Finished => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Read::Reset(reason) => Poll::Ready(Err(reset_error(reason))),
                }
            })
        })
        .await
    }

    /// Ends the flow with a reason.
    pub fn reset(&self, code: ResetCode, text: &str) {
        self.handle.reset(code, text);
    }
}
