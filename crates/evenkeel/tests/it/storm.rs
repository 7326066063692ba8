//! Clients that leave by the thousand, and slots that come free by their leaving: nothing is left behind, nobody is
//! forgotten.

use std::io::Read;
use std::net::{Shutdown, TcpStream};

use evenkeel_sim_node::SimOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fleet::{Behind, CHAT, Fleet, PATIENCE, request};
use crate::raw::{chat, fast, stuck};

/// Room for everybody to wait, for as long as it takes.
const CONFIG: &str = "
[load_manager]
max_waiting = 1000
default_timeout_secs = 300
";

/// Few enough that the sockets of a wave fit a process with 1024 descriptors, and that the last of a wave could be served
/// in a third of the time that it may wait: on a slow machine the engines seem slower than they are.
const WAVE: usize = 100;
const WAVES: usize = 100;
const SLOTS: u32 = 16;

#[test]
fn ten_thousand_clients_that_leave_while_queued_or_mid_stream_leave_nothing() {
    // A first token at once, the others while clients leave: 40 seconds, so that a slow machine has its wave in time.
    let engine = || Behind::Sim(SimOptions { slots: SLOTS, tokens_per_second: 1, ..fast() });
    let fleet = Fleet::start("storm", CONFIG, vec![("one", engine()), ("other", engine())]);
    let in_flight = 2 * u64::from(SLOTS);
    for wave in 0..WAVES {
        let mut clients: Vec<_> = (0..WAVE).map(|index| arrive(&fleet, index)).collect();
        fleet.wait_status("full", |status| {
            status["in_flight"] == in_flight && status["waiting"] == WAVE as u64 - in_flight
        });
        // Those with a slot go first, and their slots go to others who leave; or those who wait go first.
        if wave.is_multiple_of(2) {
            clients.reverse();
        }
        clients.into_iter().enumerate().for_each(|(index, client)| leave(client, index));
        fleet.wait_idle();
    }
    let counts = &fleet.status()["counts"];
    let left = counts["cancelled"].as_u64().unwrap() + counts["finished"].as_u64().unwrap();
    assert_eq!(
        (left, &counts["queue_full"], &counts["timed_out"]),
        ((WAVE * WAVES) as u64, &json!(0), &json!(0))
    );
    assert_only_idle_connections(&fleet);
    // Every slot is still there.
    let clients: Vec<_> = (0..2 * SLOTS as usize).map(|index| arrive(&fleet, index)).collect();
    fleet.wait_status("full", |status| status["in_flight"] == in_flight);
    drop(clients);
    fleet.wait_idle();
}

fn arrive(fleet: &Fleet, index: usize) -> TcpStream {
    let body = chat(json!({"stream": !index.is_multiple_of(4), "user": index.to_string(), "max_tokens": 40}));
    fleet.send("none", CHAT, &body)
}

/// Leaves as clients do: with or without having read what came, with a word or without one.
fn leave(mut client: TcpStream, index: usize) {
    client.set_nonblocking(true).unwrap();
    match index % 3 {
        0 => {
            let _ = client.read(&mut [0; 4_096]);
        }
        1 => {
            let _ = client.shutdown(Shutdown::Both);
        }
        _ => {}
    }
}

/// Sees that the engines' connections are those that the gateway keeps for later.
fn assert_only_idle_connections(fleet: &Fleet) {
    fleet.wait_status("closed", |status| {
        let open: u32 = fleet.sims.iter().map(|sim| *sim.connections().borrow()).sum();
        status["pool"]["active_connections"] == 0 && status["pool"]["idle_connections"] == open
    });
}

#[test]
fn no_wake_up_is_lost_among_clients_that_come_and_go() {
    let engine = || Behind::Sim(SimOptions { slots: 1, ..fast() });
    let fleet = Fleet::start("wake-ups", CONFIG, vec![("one", engine()), ("other", engine())]);
    fleet.runtime.block_on(async {
        for round in 0..200_u64 {
            let mut clients = JoinSet::new();
            for index in 0..16_u64 {
                let address = fleet.address;
                let seed = round * 16 + index;
                clients.spawn(async move { come_and_go(address, seed).await });
            }
            // Nothing else happens by the end of a round: who was forgotten stays forgotten.
            let all = async { while clients.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
            assert!(timeout(PATIENCE, all).await.is_ok() && clients.is_empty(), "round {round}");
        }
    });
    fleet.wait_idle();
    assert_eq!(fleet.status()["counts"]["timed_out"], 0);
    assert_only_idle_connections(&fleet);
}

/// Stays to the end of its answer, or leaves after so many turns of others.
async fn come_and_go(address: std::net::SocketAddr, seed: u64) {
    let draw = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let body = chat(json!({"stream": draw.is_multiple_of(2), "user": seed.to_string()}));
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.write_all(request("none", CHAT, &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    let turns = async {
        for _ in 0..draw % 64 {
            tokio::task::yield_now().await;
        }
    };
    if draw.is_multiple_of(3) {
        let stayed = socket.read_to_string(&mut answer);
        tokio::select! { () = turns => {}, _ = stayed => {} }
    } else {
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[test]
fn a_dead_model_with_a_full_ring_does_not_delay_another() {
    let dead = SimOptions { models: vec!["dead".to_owned()], slots: 1, ..stuck() };
    let nodes = vec![("dead", Behind::Sim(dead)), ("alive", Behind::Sim(SimOptions { slots: 1, ..fast() }))];
    let fleet = Fleet::start("dead-model", "", nodes);
    let ask = |model: &str, user: usize| chat(json!({"model": model, "user": user.to_string()}));
    let stuck: Vec<_> = (0..120).map(|user| fleet.send("none", CHAT, &ask("dead", user))).collect();
    let full = fleet.wait_status("decided", |status| {
        let of = |count: &serde_json::Value| count.as_u64().unwrap();
        of(&status["in_flight"]) + of(&status["waiting"]) + of(&status["counts"]["queue_full"]) == 120
    });
    assert!(full["counts"]["queue_full"].as_u64() > Some(0) && full["state"] == "overloaded", "{full}");
    for user in 0..50 {
        let reply = fleet.post("none", CHAT, &ask("sim", user));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.head.contains("x-queue-wait-ms: 0"), "{}", reply.head);
    }
    assert_eq!(fleet.status()["waiting"], full["waiting"], "the dead model's are served");
    drop(stuck);
    fleet.wait_idle();
}
