//! `llm-bench backend`: two model servers with canned responses, so that only the gateway in front is measured.
//!
//! They listen on two ports of one process with one thread, which exits when its standard input is closed.

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

/// Number of simulated model servers.
pub(crate) const NODES: usize = 2;

/// Serves until standard input is closed; prints one address per line.
pub(crate) fn main() -> io::Result<()> {
    std::thread::spawn(|| {
        // Standard input closes when the parent process exits, however it exits.
        drop(io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let responses = Arc::new(CannedResponses::new());
        for _ in 0..NODES {
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
            println!("{}", listener.local_addr()?);
            tokio::spawn(accept(listener, responses.clone()));
        }
        io::stdout().flush()?;
        pending().await
    })
}

struct CannedResponses {
    chat: Vec<u8>,
    models: Vec<u8>,
    health: Vec<u8>,
    not_found: Vec<u8>,
}

impl CannedResponses {
    fn new() -> Self {
        let models = format!(
            "{{\"object\":\"list\",\"data\":[{{\"id\":\"{MODEL}\",\"object\":\"model\",\"created\":1760000000,\
             \"owned_by\":\"vllm\",\"root\":\"{MODEL}\",\"max_model_len\":32768}}]}}"
        );
        Self {
            chat: chat::response(),
            models: chat::json(200, &models),
            health: chat::json(200, "{}"),
            not_found: chat::json(404, "{\"error\":{\"message\":\"no such path\"}}"),
        }
    }

    fn for_request(&self, request_line: &[u8]) -> &[u8] {
        let path = request_line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        match path {
            b"/v1/chat/completions" => &self.chat,
            b"/v1/models" => &self.models,
            b"/health" | b"/health_generate" | b"/liveness" | b"/readiness" => &self.health,
            _ => &self.not_found,
        }
    }
}

async fn accept(listener: TcpListener, responses: Arc<CannedResponses>) {
    loop {
        // Accept errors and broken connections show up at the client.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let responses = responses.clone();
        tokio::spawn(async move {
            if let Ok(connection) = HttpConnection::new(stream) {
                drop(serve(connection, &responses).await);
            }
        });
    }
}

async fn serve(mut connection: HttpConnection, responses: &CannedResponses) -> io::Result<()> {
    let mut body = Vec::new();
    while let Some(mut head) = connection.head().await? {
        body.clear();
        while head.body != Body::Done {
            body.extend_from_slice(connection.part(&mut head.body).await?);
        }
        match chat_mode(&body) {
            ChatMode::Whole => connection.write(responses.for_request(&head.line)).await?,
            ChatMode::Stream { frames, interval_ms } => stream(&mut connection, frames, interval_ms).await?,
        }
    }
    Ok(())
}

/// Extracts the response mode without parsing the rest of the request.
fn chat_mode(body: &[u8]) -> ChatMode {
    let number = |name: &str| {
        let digits = &body[memmem::find(body, name.as_bytes())? + name.len()..];
        let digits = digits.split(|byte| !byte.is_ascii_digit()).next()?;
        std::str::from_utf8(digits).ok()?.parse::<u32>().ok()
    };
    match (number("\"interval_ms\":"), number("\"max_tokens\":")) {
        (Some(interval_ms), Some(frames)) => {
            ChatMode::Stream { frames: frames as usize, interval_ms: u64::from(interval_ms) }
        }
        _ => ChatMode::Whole,
    }
}

async fn stream(connection: &mut HttpConnection, frames: usize, interval_ms: u64) -> io::Result<()> {
    connection.write(chat::STREAM_HEAD).await?;
    let mut due = Instant::now();
    for _ in 0..frames {
        due += Duration::from_millis(interval_ms);
        sleep_until(due).await;
        connection.write(&chat::frame(shared_ns())).await?;
    }
    connection.write(&chat::stream_end(frames)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_mode_of_a_request_is_recognized() {
        for mode in [ChatMode::Whole, ChatMode::Stream { frames: 12, interval_ms: 3 }] {
            assert_eq!(chat_mode(&chat::request(0, "", mode)), mode);
        }
    }
}
