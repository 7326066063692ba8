//! Behaviours: an actor changes how it handles messages.

use std::num::NonZeroUsize;

use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::{Log, World, at_once, explore_with, supervised};

#[test]
fn a_new_handler_applies_from_the_next_message() {
    claim(|door| {
        door.told("pass open pass close pass");
        door.heard("closed pass, closed open, open pass, open close, closed pass");
    });
}

#[test]
fn a_popped_handler_uncovers_the_one_below() {
    claim(|door| {
        door.told("open lock pass unlock pass close pass");
        door.heard("closed open, open lock, locked pass, locked unlock, open pass, open close, closed pass");
    });
}

#[test]
fn the_last_handler_cannot_be_popped() {
    claim(|door| {
        door.told("unlock pass");
        door.heard("closed unlock, nothing under, closed pass");
    });
}

#[test]
fn replacing_the_top_handler_keeps_those_below() {
    claim(|door| {
        door.told("open lock weld unlock pass");
        door.heard("closed open, open lock, locked weld, welded unlock, open pass");
    });
}

#[test]
fn at_most_64_handlers_lie_below_the_current_one() {
    let mut behaviour = Behaviour::new(Door::closed);
    (0..BEHAVIOURS_MAX).for_each(|_| behaviour.push(Door::open).unwrap());
    let refused = behaviour.push(Door::open).unwrap_err();
    assert_eq!(
        (refused, refused.to_string().as_str()),
        (BehavioursFull, "the behaviour stack is full: 64 handlers")
    );
    assert!((0..BEHAVIOURS_MAX).all(|_| behaviour.pop()));
    assert!(!behaviour.pop());
}

#[test]
fn a_restart_begins_with_the_first_handler() {
    claim(|door| {
        door.told("open lock break pass");
        door.heard("closed open, open lock, locked break, closed pass");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_threads_handlers_alternate_without_missing_a_message() {
    let config = ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap());
    let system = ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap();
    let log = Log::default();
    let door = system.spawn(&props(&log)).unwrap();
    for _ in 0..1_000 {
        door.send(Told::Word("open")).await.unwrap();
        door.send(Told::Word("close")).await.unwrap();
    }
    door.ask(Told::Sync).await.unwrap();
    assert_eq!(log.take(), ["closed open", "open close"].repeat(1_000));
}

/// A door in some world.
struct Scene<'a> {
    world: &'a World,
    door: ActorRef<Told>,
}

fn claim(claim: impl Fn(&Scene<'_>)) {
    explore_with(supervised(at_once()), |world| {
        let door = world.system.spawn(&props(&world.log)).unwrap();
        claim(&Scene { world, door });
    });
}

impl Scene<'_> {
    fn told(&self, words: &'static str) {
        words.split(' ').for_each(|word| self.door.tell(Told::Word(word)));
    }

    fn heard(&self, lines: &str) {
        assert_eq!(self.world.lines(), lines.split(", ").collect::<Vec<_>>());
    }
}

fn props(log: &Log) -> Props<Door> {
    let log = log.clone();
    Props::new(move || Door { behaviour: Behaviour::new(Door::closed), log: log.clone() }).build()
}

struct Door {
    behaviour: Behaviour<Self>,
    log: Log,
}

enum Told {
    Word(&'static str),
    Sync(Reply<()>),
}

impl Door {
    fn closed(&mut self, told: Told, _ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        match self.note("closed", told) {
            "open" => self.behaviour.replace(Self::open),
            other => return self.anywhere(other),
        }
        Ok(Flow::Continue)
    }

    fn open(&mut self, told: Told, _ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        match self.note("open", told) {
            "close" => self.behaviour.replace(Self::closed),
            "lock" => self.behaviour.push(Self::locked).unwrap(),
            other => return self.anywhere(other),
        }
        Ok(Flow::Continue)
    }

    fn locked(&mut self, told: Told, _ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        match self.note("locked", told) {
            "weld" => self.behaviour.replace(Self::welded),
            other => return self.anywhere(other),
        }
        Ok(Flow::Continue)
    }

    fn welded(&mut self, told: Told, _ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        let word = self.note("welded", told);
        self.anywhere(word)
    }

    /// What is the same in every state.
    fn anywhere(&mut self, word: &str) -> HandlerResult<Told> {
        match word {
            "unlock" if !self.behaviour.pop() => self.log.note("nothing under"),
            "break" => return Err(ActorError::new("broken")),
            _ => {}
        }
        Ok(Flow::Continue)
    }

    fn note(&self, state: &str, told: Told) -> &'static str {
        match told {
            Told::Word(word) => {
                self.log.note(format!("{state} {word}"));
                word
            }
            Told::Sync(reply) => {
                let _late = reply.send(());
                ""
            }
        }
    }
}

impl Actor for Door {
    type Msg = Told;

    fn receive(&mut self, told: Told, ctx: &mut Context<'_, Self>) -> HandlerResult<Told> {
        let receive = self.behaviour.current();
        receive(self, told, ctx)
    }
}
