//! beanstalkd over its text protocol: `put`, `reserve-with-timeout 0` and `delete`, in one tube.

use std::io;
use std::net::SocketAddr;

use bench_support::HttpConnection;

use super::{ReceiptHandle, body, unexpected};

/// Time to run (lease) of a reserved message; longer than any turn.
const TTR_SECS: u32 = 120;

pub(crate) struct Beanstalk {
    connection: HttpConnection,
    put: Vec<u8>,
}

impl Beanstalk {
    pub(super) async fn connect(address: SocketAddr, queue: &str) -> io::Result<Self> {
        let put = format!("put 0 0 {TTR_SECS} {}\r\n{}\r\n", body().len(), body()).into_bytes();
        let mut client = Self { connection: HttpConnection::connect(address).await?, put };
        let hello = format!("use {queue}\r\nwatch {queue}\r\nignore default\r\n");
        client.connection.write(hello.as_bytes()).await?;
        client.expect(b"USING ").await?;
        client.expect(b"WATCHING 2").await?;
        client.expect(b"WATCHING 1").await?;
        Ok(client)
    }

    pub(super) async fn send(&mut self, count: usize) -> io::Result<()> {
        self.connection.write(&self.put.repeat(count)).await?;
        for _ in 0..count {
            self.expect(b"INSERTED ").await?;
        }
        Ok(())
    }

    pub(super) async fn receive(&mut self, max: usize) -> io::Result<Vec<ReceiptHandle>> {
        self.connection.write(&b"reserve-with-timeout 0\r\n".repeat(max)).await?;
        let mut receipts = Vec::with_capacity(max);
        for _ in 0..max {
            let line = self.connection.line().await?;
            if line == b"TIMED_OUT" {
                continue;
            }
            let mut words = line.split(|byte| *byte == b' ');
            let (Some(b"RESERVED"), Some(id), Some(length)) = (words.next(), words.next(), words.next())
            else {
                return Err(unexpected(line));
            };
            let length = std::str::from_utf8(length).ok().and_then(|length| length.parse::<usize>().ok());
            let id = id.to_vec();
            let length = length.ok_or_else(|| unexpected(line))?;
            self.connection.read_exact(length + 2).await?;
            receipts.push(id);
        }
        Ok(receipts)
    }

    pub(super) async fn acknowledge(&mut self, receipts: &[ReceiptHandle]) -> io::Result<()> {
        let delete = |receipt: &ReceiptHandle| [b"delete ", receipt.as_slice(), b"\r\n"].concat();
        self.connection.write(&receipts.iter().flat_map(delete).collect::<Vec<_>>()).await?;
        for _ in receipts {
            self.expect(b"DELETED").await?;
        }
        Ok(())
    }

    async fn expect(&mut self, start: &[u8]) -> io::Result<()> {
        let line = self.connection.line().await?;
        if line.starts_with(start) { Ok(()) } else { Err(unexpected(line)) }
    }
}
