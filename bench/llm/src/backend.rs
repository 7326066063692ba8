//! `llm-bench backend`: an engine that has every answer ready, so that what is measured is whoever stands before it.
//!
//! It listens on two ports, as two nodes, on one thread of a process of its own, and ends with its standard input.

use std::future::pending;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use crate::chat::{self, ChatMode, MODEL};
use crate::clock::shared_ns;
use bench_support::{Body, HttpConnection};

/// How many nodes it plays.
pub(crate) const NODES: usize = 2;

/// Serves until the standard input ends; prints its addresses, a line each.
pub(crate) fn main() -> io::Result<()> {
    std::thread::spawn(|| {
        // Whoever started it is gone, however that went.
        drop(io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answers = Arc::new(CannedResponses::new());
        for _ in 0..NODES {
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
            println!("{}", listener.local_addr()?);
            tokio::spawn(accept(listener, answers.clone()));
        }
        io::stdout().flush()?;
        pending().await
    })
}

struct CannedResponses {
    chat: Vec<u8>,
    models: Vec<u8>,
    health: Vec<u8>,
    missing: Vec<u8>,
}

impl CannedResponses {
    fn new() -> Self {
        let models = format!(
            "{{\"object\":\"list\",\"data\":[{{\"id\":\"{MODEL}\",\"object\":\"model\",\"created\":1760000000,\
             \"owned_by\":\"vllm\",\"root\":\"{MODEL}\",\"max_model_len\":32768}}]}}"
        );
        Self {
            chat: chat::answer(),
            models: chat::json(200, &models),
            health: chat::json(200, "{}"),
            missing: chat::json(404, "{\"error\":{\"message\":\"no such path\"}}"),
        }
    }

    fn to(&self, request: &[u8]) -> &[u8] {
        let path = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        match path {
            b"/v1/chat/completions" => &self.chat,
            b"/v1/models" => &self.models,
            b"/health" | b"/health_generate" | b"/liveness" | b"/readiness" => &self.health,
            _ => &self.missing,
        }
    }
}

async fn accept(listener: TcpListener, answers: Arc<CannedResponses>) {
    loop {
        // A connection that ended before it was taken is none; one that ends badly is noticed at its other end.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let answers = answers.clone();
        tokio::spawn(async move {
            if let Ok(wire) = HttpConnection::new(stream) {
                drop(serve(wire, &answers).await);
            }
        });
    }
}

async fn serve(mut wire: HttpConnection, answers: &CannedResponses) -> io::Result<()> {
    let mut body = Vec::new();
    while let Some(mut head) = wire.head().await? {
        body.clear();
        while head.body != Body::Done {
            body.extend_from_slice(wire.part(&mut head.body).await?);
        }
        match delivery(&body) {
            ChatMode::Whole => wire.write(answers.to(&head.line)).await?,
            ChatMode::Stream { frames, every_ms } => stream(&mut wire, frames, every_ms).await?,
        }
    }
    Ok(())
}

/// Reads how an answer is wanted, without reading the rest.
fn delivery(body: &[u8]) -> ChatMode {
    let number = |name: &str| {
        let digits = &body[memmem::find(body, name.as_bytes())? + name.len()..];
        let digits = digits.split(|byte| !byte.is_ascii_digit()).next()?;
        std::str::from_utf8(digits).ok()?.parse::<u32>().ok()
    };
    match (number("\"every_ms\":"), number("\"max_tokens\":")) {
        (Some(every_ms), Some(frames)) => {
            ChatMode::Stream { frames: frames as usize, every_ms: u64::from(every_ms) }
        }
        _ => ChatMode::Whole,
    }
}

async fn stream(wire: &mut HttpConnection, frames: usize, every_ms: u64) -> io::Result<()> {
    wire.write(chat::STREAM_HEAD).await?;
    let mut due = Instant::now();
    for _ in 0..frames {
        due += Duration::from_millis(every_ms);
        sleep_until(due).await;
        wire.write(&chat::frame(shared_ns())).await?;
    }
    wire.write(&chat::stream_end(frames)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_question_asks_for_is_understood() {
        for wanted in [ChatMode::Whole, ChatMode::Stream { frames: 12, every_ms: 3 }] {
            assert_eq!(delivery(&chat::request(0, "", wanted)), wanted);
        }
    }
}
