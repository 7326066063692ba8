//! A data directory that was written before queues had owners, and clients that did not change since.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::external_client::{python, run};
use crate::owners::{account, sqs_client};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

#[test]
fn clients_of_a_gateway_from_before_owners_work_unchanged_and_its_queues_can_be_assigned() {
    let dir = TestDir::new("upgrade");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/upgrade/before-owners.tar.gz");
    let unpacked = Command::new("tar").arg("xzf").arg(archive).current_dir(dir.file("")).status().unwrap();
    assert!(unpacked.success());
    let server = ServerProcess::start(&dir, &[]);
    let warning = server.wait_log("queues without an owner");
    assert!(
        warning["message"].as_str().unwrap().contains("evenkeel queue assign QUEUE --owner TENANT"),
        "{warning}"
    );
    assert_eq!(warning["queues"], "dead, hooks, jobs, orders.fifo, poison, policied", "{warning}");
    let clients = dir.file("evenkeel-data/clients.json");
    let mut script = python("upgrade/client.py");
    run(script.arg(format!("http://{}", server.address)).arg(clients).arg(account(&dir, "acme")));
    // The jobs that the old gateway was running or had queued are still there.
    let hooks: Value = serde_json::from_str(&dir.run(&["queue", "stats", "hooks", "--json"]).ok()).unwrap();
    let count = |state: &str| hooks[state].as_u64().unwrap();
    assert_eq!(count("pending") + count("in_flight") + count("delayed"), 2, "{hooks}");
    let refused = dir.run(&["queue", "assign", "jobs", "--owner", "acme"]).failed();
    assert!(refused.contains("dead-letter queue, which have the same owner"), "{refused}");
    dir.run(&["queue", "assign", "jobs", "poison", "dead", "--owner", "acme"]).ok();
    let old_url = "http://127.0.0.1:7070/000000000000/jobs";
    for tenant in ["acme", "beta"] {
        let gone = sqs_client(&dir, &server, tenant, "receive_message", &format!("QueueUrl={old_url}"));
        assert_eq!(gone["error"], "AWS.SimpleQueueService.NonExistentQueue", "{gone}");
    }
    let received = sqs_client(&dir, &server, "acme", "receive_message", "QueueUrl=jobs WaitTimeSeconds=20");
    assert_eq!(received["Messages"][0]["Body"], "kept by assign", "{received}");
    let policy =
        sqs_client(&dir, &server, "acme", "get_queue_attributes", "QueueUrl=poison AttributeNames=All");
    let target = policy["Attributes"]["RedrivePolicy"].as_str().unwrap().to_owned();
    assert!(target.contains(&format!(":{}:dead", account(&dir, "acme"))), "{target}");
}
