//! Byte stream of a connection: TCP, TLS over TCP, or a unix socket.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::PathBuf;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Address of the server that a connection reached; its statements are cancelled at the same one.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Transport {
    /// Reports whether a password may be sent over it in clear text.
    pub(crate) fn is_private(&self, peer: &Peer) -> bool {
        match (self, peer) {
            (Self::Tls(_), _) | (Self::Unix(_), _) | (_, Peer::Unix(_)) => true,
            (Self::Tcp(_), Peer::Tcp(address)) => address.ip().is_loopback(),
        }
    }

    /// Reports whether the runtime has not heard from the server, without a system call.
    pub(crate) fn seems_quiet(&self) -> bool {
        let mut byte = [0];
        let result = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
            Self::Tls(stream) => stream.get_ref().0.try_read(&mut byte),
        };
        result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reports whether the server has sent nothing and has not closed the connection, without waiting.
    pub(crate) fn is_quiet(&self) -> bool {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
            Self::Tls(stream) => SockRef::from(stream.get_ref().0),
        };
        // PostgreSQL sends nothing over TLS either, neither session tickets nor key updates.
        let peeked = socket.peek(&mut [MaybeUninit::uninit()]);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes without waiting; bytes that the socket does not accept are lost.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(_)) = Pin::new(&mut *self).poll_write(&mut cx, bytes) {
            let _ = Pin::new(self).poll_flush(&mut cx);
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
