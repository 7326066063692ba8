//! Workers cooperate with tokio: its other tasks and its I/O make progress while actors are never idle.

use std::time::Duration;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    Actor, ActorRef, ActorSystemConfig, ActorSystemRunner, Context, Flow, HandlerResult, Props, StopMode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const CASE_MAX: Duration = Duration::from_secs(30);
const ROUND_TRIPS: u8 = 50;

/// Forwards every token, so that an actor is always ready.
struct Forwarder;

impl Actor for Forwarder {
    type Msg = Token;

    fn receive(&mut self, Token(to): Token, ctx: &mut Context<'_, Self>) -> HandlerResult<Token> {
        to.tell(Token(ctx.me()));
        Ok(Flow::Continue)
    }
}

/// A message with the actor to forward it to.
struct Token(ActorRef<Token>);

async fn echo_round_trips() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).await.unwrap() == 1 {
            stream.write_all(&byte).await.unwrap();
        }
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    for number in 0..ROUND_TRIPS {
        stream.write_all(&[number]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), number);
    }
}

#[tokio::test]
async fn on_a_single_thread_sockets_are_served_while_actors_are_never_idle() {
    let runtime = TokioRuntime::current().unwrap();
    let system = ActorSystemRunner::new(ActorSystemConfig::default()).start(runtime).unwrap();
    let props = Props::of_values().build();
    let one = system.spawn_value(Forwarder, &props).unwrap();
    let other = system.spawn_value(Forwarder, &props).unwrap();
    one.tell(Token(other.clone()));
    assert!(
        timeout(CASE_MAX, echo_round_trips()).await.is_ok(),
        "the test did not finish within {CASE_MAX:?}"
    );
    [one, other].iter().for_each(|actor| actor.stop(StopMode::Now));
}
