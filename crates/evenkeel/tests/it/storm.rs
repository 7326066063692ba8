//! Thousands of client disconnects: no slot, connection or queue entry leaks, and no wake-up is lost.

use std::io::Read;
use std::net::{Shutdown, TcpStream};

use evenkeel_sim_node::SimOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fleet::{Backend, CHAT, Fleet, TIMEOUT, request};
use evenkeel_sim_node::testing::{chat, fast, stuck};

/// Limits that no request reaches: neither the queue length nor the timeout.
const CONFIG: &str = "
[load_manager]
max_waiting = 1000
default_timeout_secs = 300
";

/// Number of clients that connect and disconnect together.
///
/// The sockets of a wave must fit into 1024 file descriptors, and the last request of a wave must wait at most a third
/// of its timeout, because engines are slower on a slow machine.
const WAVE: usize = 100;
const WAVES: usize = 100;
const SLOTS: u32 = 16;

#[test]
fn ten_thousand_disconnects_while_queued_or_mid_stream_leak_nothing() {
    // The first token comes at once and the others take 40 s, so that a slow machine can start a whole wave.
    let engine = || Backend::Sim(SimOptions { slots: SLOTS, tokens_per_second: 1, ..fast() });
    let fleet = Fleet::start("storm", CONFIG, vec![("one", engine()), ("other", engine())]);
    let in_flight = 2 * u64::from(SLOTS);
    for wave in 0..WAVES {
        let mut clients: Vec<_> = (0..WAVE).map(|index| connect(&fleet, index)).collect();
        fleet.wait_status("full", |status| {
            status["in_flight"] == in_flight && status["waiting"] == WAVE as u64 - in_flight
        });
        // Alternates between disconnecting the running requests first and the queued ones first.
        if wave.is_multiple_of(2) {
            clients.reverse();
        }
        clients.into_iter().enumerate().for_each(|(index, client)| disconnect(client, index));
        fleet.wait_idle();
    }
    let counts = &fleet.status()["counts"];
    let ended = counts["cancelled"].as_u64().unwrap() + counts["finished"].as_u64().unwrap();
    assert_eq!(
        (ended, &counts["queue_full"], &counts["timed_out"]),
        ((WAVE * WAVES) as u64, &json!(0), &json!(0))
    );
    assert_only_idle_connections(&fleet);
    // Every slot is still usable.
    let clients: Vec<_> = (0..2 * SLOTS as usize).map(|index| connect(&fleet, index)).collect();
    fleet.wait_status("full", |status| status["in_flight"] == in_flight);
    drop(clients);
    fleet.wait_idle();
}

fn connect(fleet: &Fleet, index: usize) -> TcpStream {
    let body = chat(json!({"stream": !index.is_multiple_of(4), "user": index.to_string(), "max_tokens": 40}));
    fleet.send("none", CHAT, &body)
}

/// Disconnects in one of three ways: after a read, by a shutdown of the socket, or by closing it.
fn disconnect(mut client: TcpStream, index: usize) {
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

/// Checks that the engines' open connections are the idle ones of the gateway's pool.
fn assert_only_idle_connections(fleet: &Fleet) {
    fleet.wait_status("without active connections", |status| {
        let open: u32 = fleet.sims.iter().map(|sim| *sim.connections().borrow()).sum();
        status["pool"]["active_connections"] == 0 && status["pool"]["idle_connections"] == open
    });
}

#[test]
fn no_wake_up_is_lost_while_clients_connect_and_disconnect() {
    let engine = || Backend::Sim(SimOptions { slots: 1, ..fast() });
    let fleet = Fleet::start("wake-ups", CONFIG, vec![("one", engine()), ("other", engine())]);
    fleet.runtime.block_on(async {
        for round in 0..200_u64 {
            let mut clients = JoinSet::new();
            for index in 0..16_u64 {
                let address = fleet.address;
                let seed = round * 16 + index;
                clients.spawn(async move { run_client(address, seed).await });
            }
            // At the end of a round nothing else wakes the scheduler, so the round would hang after a lost wake-up.
            let all = async { while clients.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
            assert!(timeout(TIMEOUT, all).await.is_ok() && clients.is_empty(), "round {round}");
        }
    });
    fleet.wait_idle();
    assert_eq!(fleet.status()["counts"]["timed_out"], 0);
    assert_only_idle_connections(&fleet);
}

/// Reads the whole response, or disconnects after a number of yields.
async fn run_client(address: std::net::SocketAddr, seed: u64) {
    let draw = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let body = chat(json!({"stream": draw.is_multiple_of(2), "user": seed.to_string()}));
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.write_all(request("none", CHAT, &body).as_bytes()).await.unwrap();
    let mut response = String::new();
    let yields = async {
        for _ in 0..draw % 64 {
            tokio::task::yield_now().await;
        }
    };
    if draw.is_multiple_of(3) {
        let reading = socket.read_to_string(&mut response);
        tokio::select! { () = yields => {}, _ = reading => {} }
    } else {
        socket.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    }
}

#[test]
fn a_dead_model_with_a_full_queue_does_not_delay_another() {
    let dead = SimOptions { models: vec!["dead".to_owned()], slots: 1, ..stuck() };
    let nodes =
        vec![("dead", Backend::Sim(dead)), ("alive", Backend::Sim(SimOptions { slots: 1, ..fast() }))];
    let fleet = Fleet::start("dead-model", "", nodes);
    let body = |model: &str, user: usize| chat(json!({"model": model, "user": user.to_string()}));
    let stuck: Vec<_> = (0..120).map(|user| fleet.send("none", CHAT, &body("dead", user))).collect();
    let full = fleet.wait_status("done with admission", |status| {
        let number = |count: &serde_json::Value| count.as_u64().unwrap();
        number(&status["in_flight"]) + number(&status["waiting"]) + number(&status["counts"]["queue_full"])
            == 120
    });
    assert!(full["counts"]["queue_full"].as_u64() > Some(0) && full["state"] == "overloaded", "{full}");
    for user in 0..50 {
        let reply = fleet.post("none", CHAT, &body("sim", user));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.head.contains("x-queue-wait-ms: 0"), "{}", reply.head);
    }
    assert_eq!(fleet.status()["waiting"], full["waiting"], "requests of the dead model still wait");
    drop(stuck);
    fleet.wait_idle();
}
