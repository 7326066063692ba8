//! Message ids, which are also those of results, cannot be guessed; those of an earlier version stay valid.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

/// Id of the first message of the first key of the first queue, as earlier versions counted them.
const FIRST: &str = "00000001-0000-0000-0000-000000000001";

#[test]
fn nobody_finds_a_message_by_counting() {
    let dir = TestDir::new("message-ids");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(read(server.send("PUT", "/api/queues/jobs", "", &json!({}))).status, 201);
    let send = |server: &ServerProcess| {
        let sent = server.post("/api/queues/jobs/messages", &json!({"body": "x"})).json();
        sent["ids"][0].as_str().unwrap().to_owned()
    };
    let explain = |server: &ServerProcess, id: &str| server.get(&format!("/api/queues/jobs/messages/{id}"));
    let first = send(&server);
    let second = send(&server);
    assert_ne!(first[..18], second[..18], "two ids have no common part");
    assert_eq!(explain(&server, FIRST).status, 404, "the id of the first message is not its number");
    for id in [&first, &second] {
        assert_eq!(explain(&server, id).status, 200, "{id}");
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(explain(&server, &first).status, 200, "an id survives a restart");
    let received = server.post("/api/queues/jobs/receive", &json!({"max": 2})).json();
    let ids: Vec<&Value> = received["messages"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&json!(first), &json!(second)], "consumers see the ids that the sender got");
}

#[test]
fn ids_of_an_earlier_version_stay_valid_and_new_ones_are_not_counted() {
    let dir = TestDir::new("message-ids-upgrade");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/upgrade/before-owners.tar.gz");
    assert!(
        Command::new("tar").arg("xzf").arg(archive).current_dir(dir.file("")).status().unwrap().success()
    );
    let clients: Value = serde_json::from_str(&dir.read("evenkeel-data/clients.json")).unwrap();
    let old = clients["ids"]["ready"].as_str().unwrap();
    for _ in 0..2 {
        let server = ServerProcess::start(&dir, &[]);
        let explained = server.get(&format!("/api/queues/jobs/messages/{old}"));
        assert_eq!((explained.status, &explained.json()["state"]), (200, &json!("waiting")), "{explained:?}");
        // Messages are read from disk after the start.
        let is_peeked = (0..600).any(|_| {
            let peeked = server.get("/api/queues/jobs/messages?max=10").json();
            let is_found = peeked.to_string().contains(old);
            if !is_found {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_found
        });
        assert!(is_peeked, "{old} is not among the waiting messages");
        let sent = server.post("/api/queues/jobs/messages", &json!({"body": "new", "fairness_key": "acme"}));
        let new = sent.json()["ids"][0].as_str().unwrap().to_owned();
        assert_ne!(new[..8], old[..8], "{new}");
        assert_eq!(server.get(&format!("/api/queues/jobs/messages/{new}")).status, 200);
    }
}
