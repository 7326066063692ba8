//! Unmodified clients that know a full node.

use std::process::Command;

use serde_json::json;

use super::{CONNS, Setup, TestCluster, WHO};
use crate::external_client::{node, node_packages, python, run};

const PACKAGE: &str = "@neondatabase/serverless";

/// Starts two nodes of which `a` is full, runs a check, and expects its marks to be made by node `b`.
fn check_marks(test: &str, marks: usize, check: impl FnOnce(&str)) {
    let cluster = TestCluster::settled(test, 2, &Setup::default());
    let full = cluster.occupy(0, CONNS);
    check(&format!("http://{}", cluster.nodes[0].address));
    let executed = cluster.marks_by_node();
    assert_eq!(executed.into_iter().collect::<Vec<_>>(), [("b".to_owned(), marks)]);
    drop(full);
}

#[test]
fn curl_follows_a_redirect() {
    check_marks("curl", 1, |url| {
        let body = json!({"sql": "insert into marks values ('curl') returning node"}).to_string();
        // `-X POST` is not given, because it would override the method of the second request too.
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--location", "--noproxy", "*", "--data", &body])
            .args(["--header", "content-type: application/json", &format!("{url}/execute")])
            .output()
            .unwrap();
        let reply: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(reply["rows"], json!([["node-b"]]));
    });
}

#[test]
fn python_clients_follow_a_redirect_or_find_its_url_in_the_body() {
    check_marks("python", 3, |url| run(python("cluster_client.py").arg(url)));
}

#[test]
fn the_fetch_of_node_js_follows_a_redirect() {
    check_marks("fetch", 2, |url| run(node("cluster_client.cjs").args(["fetch", url])));
}

#[test]
fn the_driver_of_neon_is_served_by_a_peer_without_noticing() {
    check_marks("neon", 3, |url| {
        let installed = node_packages(PACKAGE);
        run(node("cluster_client.cjs").args(["neon", url]).arg(installed).arg(WHO));
    });
}
