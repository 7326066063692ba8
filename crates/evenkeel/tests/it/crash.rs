//! The gateway is killed again and again while SQS clients send, receive, delete and give back; what they were told is
//! written down here, outside of it, and must be true after any number of its deaths.

mod client;
mod ledger;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::json;

use self::client::{Client, Habit};
use self::ledger::{Book, Death};
use crate::folder::Folder;
use crate::server_process::Served;

const KILLS: u64 = 20;
const STOPS: u64 = 5;
/// How long the next answer may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn twenty_kills_of_the_gateway_lose_nothing_confirmed_and_repeat_nothing_deleted() {
    let book = die_again_and_again(&Folder::new("killed"), KILLS, Death::Sudden);
    assert!(book.unheard() > 0, "no request was under way when the gateway was killed");
}

#[test]
fn a_gateway_that_is_asked_to_stop_ends_well_and_has_answered_whatever_it_did() {
    die_again_and_again(&Folder::new("stopped"), STOPS, Death::Asked);
}

/// Lives through so many deaths under load, then empties the queue and compares.
fn die_again_and_again(folder: &Folder, deaths: u64, death: Death) -> Book {
    folder.write("evenkeel.toml", "[queue]\ndurability = 'fsync'\n");
    let book = Book::default();
    for round in 0..deaths {
        let served = Served::start(folder, &[]);
        let (done, answers) = channel();
        if round == 0 {
            let first = Client::new(served.address, 0, round, book.clone(), done.clone());
            first.ask("CreateQueue", &json!({"QueueName": client::QUEUE})).expect("a gateway that lives");
        }
        let clients: Vec<_> = Habit::ALL
            .into_iter()
            .enumerate()
            .map(|(name, habit)| {
                let client = Client::new(served.address, name, round, book.clone(), done.clone());
                std::thread::spawn(move || client.live(habit))
            })
            .collect();
        drop(done);
        await_answers(&answers, answers_of(round));
        book.record_death(death);
        served.signal(match death {
            Death::Sudden => "KILL",
            Death::Asked => "TERM",
        });
        for client in clients {
            client.join().unwrap();
        }
        let code = served.wait();
        if death == Death::Asked {
            assert_eq!(code, Some(0), "in round {round}");
        }
        book.record_life();
    }
    empty(folder, &book);
    book.check(deaths);
    book
}

/// A gateway dies after so many answers, which is some hundred milliseconds of work and never the same.
fn answers_of(round: u64) -> u64 {
    100 + (round * 7_919) % 900
}

fn await_answers(answers: &Receiver<()>, count: u64) {
    for _ in 0..count {
        answers.recv_timeout(PATIENCE).expect("clients that are answered");
    }
}

/// Receives and deletes until nothing is there, visible or not.
fn empty(folder: &Folder, book: &Book) {
    let served = Served::start(folder, &[]);
    book.record_end();
    let (done, _answers) = channel();
    let client = Client::new(served.address, 0, KILLS, book.clone(), done);
    let names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
    loop {
        client.consume(Habit::DeleteBatch).expect("a gateway that lives");
        let asked = json!({"QueueUrl": client::QUEUE, "AttributeNames": names});
        let told = client.ask("GetQueueAttributes", &asked).expect("a gateway that lives");
        if names.iter().all(|name| told["Attributes"][name] == "0") {
            return;
        }
    }
}
