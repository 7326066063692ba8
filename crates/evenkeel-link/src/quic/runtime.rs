//! Tokio runtime for noq that sends the first packets of a connection one by one.
//!
//! noq 1.4 writes the frame ACK_FREQUENCY without checking that it fits into the packet. It sends the frame once, in the
//! first packets of a connection, and again if it is lost. In a batch for segmentation offload, all packets are as long as
//! the first, so after a short probe the frame may not fit. noq then panics and, in a destructor, aborts the process.
//! A packet that is sent alone has room.
//!
//! Guarantees: a connection sends no batch before its [`SINGLE_PACKETS`] first packets. To have sent so many, it must
//! have received acknowledgements, also of the frame.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpSender};

/// Packets that a connection sends one by one: many times the initial congestion window.
const SINGLE_PACKETS: u32 = 1_000;

/// Runtime of all endpoints.
#[derive(Debug)]
pub(super) struct PathRuntime;

impl Runtime for PathRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        Ok(Box::new(PathSocket(TokioRuntime.wrap_udp_socket(socket)?)))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// Socket whose senders begin with single packets.
#[derive(Debug)]
struct PathSocket(Box<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for PathSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(PacketSender { inner: self.0.create_sender(), single_left: SINGLE_PACKETS })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.0.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

/// Sender of one connection.
struct PacketSender {
    inner: Pin<Box<dyn UdpSender>>,
    /// Packets that are still sent one by one.
    single_left: u32,
}

impl UdpSender for PacketSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let sent = ready!(this.inner.as_mut().poll_send(transmit, cx));
        this.single_left = this.single_left.saturating_sub(1);
        Poll::Ready(sent)
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        if self.single_left > 0 { NonZeroUsize::MIN } else { self.inner.max_transmit_segments() }
    }
}

impl fmt::Debug for PacketSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketSender").field("single_left", &self.single_left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_sends_batches_only_after_its_first_packets() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = PathRuntime.wrap_udp_socket(socket).unwrap();
        let batch_max = TokioRuntime
            .wrap_udp_socket(UdpSocket::bind("127.0.0.1:0").unwrap())
            .unwrap()
            .create_sender()
            .max_transmit_segments();
        let mut sender = socket.create_sender();
        for _ in 0..SINGLE_PACKETS {
            assert_eq!(sender.max_transmit_segments(), NonZeroUsize::MIN);
            let packet = Transmit {
                destination: address,
                ecn: None,
                contents: b"x",
                segment_size: None,
                src_ip: None,
            };
            std::future::poll_fn(|cx| sender.as_mut().poll_send(&packet, cx)).await.unwrap();
        }
        assert_eq!(sender.max_transmit_segments(), batch_max);
    }
}
