//! Behaviours: an actor changes how it handles messages.

use std::num::NonZeroUsize;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::{Harness, Log, explore_with, restart_immediately, supervised};

#[test]
fn a_new_handler_applies_from_the_next_message() {
    check(|turnstile| {
        turnstile.send("pass open pass close pass");
        turnstile.expect("closed pass, closed open, open pass, open close, closed pass");
    });
}

#[test]
fn popping_returns_to_the_handler_below() {
    check(|turnstile| {
        turnstile.send("open lock pass unlock pass close pass");
        turnstile
            .expect("closed open, open lock, locked pass, locked unlock, open pass, open close, closed pass");
    });
}

#[test]
fn the_last_handler_cannot_be_popped() {
    check(|turnstile| {
        turnstile.send("unlock pass");
        turnstile.expect("closed unlock, nothing below, closed pass");
    });
}

#[test]
fn replacing_the_top_handler_keeps_those_below() {
    check(|turnstile| {
        turnstile.send("open lock weld unlock pass");
        turnstile.expect("closed open, open lock, locked weld, welded unlock, open pass");
    });
}

#[test]
fn at_most_64_handlers_are_below_the_current_one() {
    let mut behaviour = Behaviour::new(Turnstile::closed);
    (0..BEHAVIOURS_MAX).for_each(|_| behaviour.push(Turnstile::open).unwrap());
    let error = behaviour.push(Turnstile::open).unwrap_err();
    assert_eq!(
        (error, error.to_string().as_str()),
        (BehavioursFull, "the behaviour stack is full: 64 handlers")
    );
    assert!((0..BEHAVIOURS_MAX).all(|_| behaviour.pop()));
    assert!(!behaviour.pop());
}

#[test]
fn a_restart_begins_with_the_first_handler() {
    check(|turnstile| {
        turnstile.send("open lock break pass");
        turnstile.expect("closed open, open lock, locked break, closed pass");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_alternate_on_real_threads_without_missing_a_message() {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    let log = Log::default();
    let turnstile = system.spawn(&props(&log)).unwrap();
    for _ in 0..1_000 {
        turnstile.send(Msg::Command("open")).await.unwrap();
        turnstile.send(Msg::Command("close")).await.unwrap();
    }
    turnstile.ask(Msg::Sync).await.unwrap();
    assert_eq!(log.take(), ["closed open", "open close"].repeat(1_000));
}

/// A turnstile and the harness it runs in.
struct Case<'a> {
    harness: &'a Harness,
    turnstile: ActorRef<Msg>,
}

fn check(check: impl Fn(&Case<'_>)) {
    explore_with(supervised(restart_immediately()), |harness| {
        let turnstile = harness.system.spawn(&props(&harness.log)).unwrap();
        check(&Case { harness, turnstile });
    });
}

impl Case<'_> {
    fn send(&self, commands: &'static str) {
        commands.split(' ').for_each(|command| self.turnstile.tell(Msg::Command(command)));
    }

    fn expect(&self, lines: &str) {
        assert_eq!(self.harness.lines(), lines.split(", ").collect::<Vec<_>>());
    }
}

fn props(log: &Log) -> Props<Turnstile> {
    let log = log.clone();
    Props::new(move || Turnstile { behaviour: Behaviour::new(Turnstile::closed), log: log.clone() }).build()
}

struct Turnstile {
    behaviour: Behaviour<Self>,
    log: Log,
}

enum Msg {
    Command(&'static str),
    Sync(Reply<()>),
}

impl Turnstile {
    fn closed(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match self.record("closed", message) {
            "open" => self.behaviour.replace(Self::open),
            other => return self.in_any_state(other),
        }
        Ok(Flow::Continue)
    }

    fn open(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match self.record("open", message) {
            "close" => self.behaviour.replace(Self::closed),
            "lock" => self.behaviour.push(Self::locked).unwrap(),
            other => return self.in_any_state(other),
        }
        Ok(Flow::Continue)
    }

    fn locked(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match self.record("locked", message) {
            "weld" => self.behaviour.replace(Self::welded),
            other => return self.in_any_state(other),
        }
        Ok(Flow::Continue)
    }

    fn welded(&mut self, message: Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        let command = self.record("welded", message);
        self.in_any_state(command)
    }

    /// Handles the commands that every state handles alike.
    fn in_any_state(&mut self, command: &str) -> HandlerResult<Msg> {
        match command {
            "unlock" if !self.behaviour.pop() => self.log.record("nothing below"),
            "break" => return Err(ActorError::new("broken")),
            _ => {}
        }
        Ok(Flow::Continue)
    }

    fn record(&self, state: &str, message: Msg) -> &'static str {
        match message {
            Msg::Command(command) => {
                self.log.record(format!("{state} {command}"));
                command
            }
            Msg::Sync(reply) => {
                let _ = reply.send(());
                ""
            }
        }
    }
}

impl Actor for Turnstile {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        let receive = self.behaviour.current();
        receive(self, message, ctx)
    }
}
