//! An actor that awaits a response over TCP: it is suspended meanwhile, and its messages stay queued in order.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorError, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props, Reply,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

/// Sends texts to an echo server, one after another.
struct EchoClient {
    server: SocketAddr,
    calls: u32,
}

enum Msg {
    Send(String, Reply<String>),
    /// The server's response.
    Received(io::Result<String>, Reply<String>),
}

impl Actor for EchoClient {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            Msg::Send(text, reply) => {
                let server = self.server;
                Ok(Flow::wait(async move { Msg::Received(send_and_receive(server, &text).await, reply) }))
            }
            Msg::Received(response, reply) => {
                self.calls += 1;
                let response = response.map_err(|error| ActorError::new(error.to_string()))?;
                // Fails if the asker no longer waits.
                let _ = reply.send(format!("{response} (call {})", self.calls));
                Ok(Flow::Continue)
            }
        }
    }
}

async fn send_and_receive(server: SocketAddr, text: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

async fn run_echo_server(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let (mut from, mut to) = stream.split();
        copy(&mut from, &mut to).await?;
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let server_task = tokio::spawn(run_echo_server(listener));

    let workers = NonZeroUsize::new(2).ok_or("the number of workers is zero")?;
    let runtime = TokioRuntime::current().ok_or("no current Tokio runtime")?;
    let system = ActorSystemRunner::new(ActorSystemConfig::with_workers(workers)).start(runtime)?;
    let client = system.spawn(&Props::new(move || EchoClient { server, calls: 0 }).build())?;

    let texts = ["hello", "is anyone there", "goodbye"];
    let replies = texts.map(|text| client.ask(|reply| Msg::Send(text.to_owned(), reply)));
    for reply in replies {
        println!("{}", reply.await?);
    }

    system.graceful_shutdown(Duration::from_secs(1)).await;
    server_task.abort();
    Ok(())
}
