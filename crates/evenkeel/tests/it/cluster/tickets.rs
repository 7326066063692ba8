//! Tickets that are forged, replayed, moved or late, and nodes with different secrets.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::fake_peer::{TicketIssuer, TicketText};
use super::{
    CONNS, FORWARD, SECRET, Setup, TestCluster, error_of, eventually, first_value, follow, post, send,
};
use evenkeel_sim_node::testing::read;

fn insert() -> Value {
    json!({"sql": "insert into marks values ('ticket')"})
}

fn text(body: &Value) -> TicketText<'_> {
    TicketText { tenant: "open", path: "/execute", body, hops_left: 1, visited: &[] }
}

/// Presents a ticket at a node; returns the status and the message.
fn present(address: SocketAddr, path: &str, ticket: &str, body: &Value) -> (u16, String) {
    let reply = post(address, &format!("{path}?ticket={ticket}"), "", body);
    if reply.status == 200 {
        return (200, String::new());
    }
    let (status, code, message) = error_of(&reply);
    assert_eq!(code, "invalid_ticket", "{reply:?}");
    (status, message)
}

#[test]
fn a_ticket_is_valid_once_for_one_request_at_one_node() {
    let cluster = TestCluster::settled("tickets", 3, &Setup::default());
    let full = cluster.occupy(0, CONNS);
    let body = json!({"sql": "insert into marks values ('ticket')", "timeoutMs": 1_000});
    let redirected = || {
        let redirect = cluster.nodes[0].redirect("/execute", &body);
        let (_, ticket) = redirect.url.split_once("?ticket=").unwrap();
        (usize::from(redirect.node == "c") + 1, ticket.to_owned())
    };
    let (node, ticket) = redirected();
    let other_body = json!({"sql": "insert into marks values ('forged')"});
    let (status, message) = present(cluster.nodes[node].address, "/execute", &ticket, &other_body);
    assert!(status == 403 && message.contains("another body"), "{message}");
    let (status, message) = present(cluster.nodes[node].address, "/execute", &ticket, &body);
    assert!(status == 403 && message.contains("used already"), "a failed attempt uses it up: {message}");

    let (node, ticket) = redirected();
    for (other, path, part) in [
        (node, "/query", "another method or path"),
        (3 - node, "/execute", "is for node"),
        (0, "/execute", "is for node"),
    ] {
        let (status, message) = present(cluster.nodes[other].address, path, &ticket, &body);
        assert!(status == 403 && message.contains(part), "{message}");
    }
    for position in (0..ticket.len()).step_by(7) {
        let mut forged = ticket.clone().into_bytes();
        forged[position] = if forged[position] == b'A' { b'B' } else { b'A' };
        let (status, message) =
            present(cluster.nodes[node].address, "/execute", &String::from_utf8(forged).unwrap(), &body);
        assert_eq!(status, 403);
        assert!(message.contains("wrong signature") || message.contains("malformed"), "{message}");
    }
    for forged in ["", "x", &ticket[..ticket.len() - 1], &"A".repeat(4_000)] {
        assert_eq!(present(cluster.nodes[node].address, "/execute", forged, &body).0, 403);
    }
    assert_eq!(cluster.marks(), 0);
    // The attempts above did not use it up; of several uses at once, one succeeds.
    let address = cluster.nodes[node].address;
    let statuses: Vec<u16> = thread::scope(|scope| {
        let uses: Vec<_> =
            (0..16).map(|_| scope.spawn(|| present(address, "/execute", &ticket, &body).0)).collect();
        uses.into_iter().map(|used| used.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(cluster.marks(), 1);
    drop(full);
}

#[test]
fn a_ticket_expires_by_the_targets_clock_and_does_not_survive_its_restart() {
    let mut cluster = TestCluster::settled("late-tickets", 2, &Setup::default());
    let body = insert();
    // Tickets travel longer than a nanosecond.
    let hasty = TicketIssuer::join(&cluster.nodes, Duration::from_nanos(1));
    let (status, message) =
        present(cluster.nodes[1].address, "/execute", &hasty.issue(1, text(&body)), &body);
    assert!(status == 403 && message.contains("expired"), "{message}");
    let generous = TicketIssuer::join(&cluster.nodes, Duration::from_secs(3_600));
    let (status, message) =
        present(cluster.nodes[1].address, "/execute", &generous.issue(1, text(&body)), &body);
    assert!(status == 403 && message.contains("expires too late"), "{message}");

    let issuer = TicketIssuer::join(&cluster.nodes, Duration::from_secs(10));
    let (status, message) =
        present(cluster.nodes[1].address, "/execute", &issuer.issue(1, text(&body)), &body);
    assert_eq!((status, message.as_str()), (200, ""));
    let unknown = TicketText { tenant: "nobody", ..text(&body) };
    let ticket = issuer.issue(1, unknown);
    let reply = follow(&format!("http://{}/execute?ticket={ticket}", cluster.nodes[1].address), &body);
    let (status, _, message) = error_of(&reply);
    assert!([401, 403].contains(&status) && message.contains("nobody"), "{reply:?}");
    assert_eq!(cluster.marks(), 1);

    let before_restart = issuer.issue(1, text(&body));
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    let (status, message) = present(cluster.nodes[1].address, "/execute", &before_restart, &body);
    assert!(status == 403 && message.contains("before a restart"), "{message}");
    assert_eq!(cluster.marks(), 1);
}

#[test]
fn a_ticket_acts_for_its_tenant_with_the_settings_of_that_tenant() {
    let tenant = |name: &str, more: &str| {
        format!("[[tenants]]\nname = '{name}'\nset = {{ 'app.tenant' = '{name}' }}\n{more}\n")
    };
    let tenants = [tenant("acme", ""), tenant("globex", ""), tenant("off", "state = 'disabled'")];
    let setup = Setup { sections: tenants.concat(), ..Setup::default() };
    let cluster = TestCluster::start("tenant-tickets", &[SECRET; 2], &setup);
    let issuer = TicketIssuer::join(&cluster.nodes, Duration::from_secs(10));
    let body = json!({"sql": "select current_setting('app.tenant', true)"});
    let serve = |tenant: &str| {
        let ticket = issuer.issue(0, TicketText { tenant, path: "/query", ..text(&body) });
        follow(&format!("http://{}/query?ticket={ticket}", cluster.nodes[0].address), &body)
    };
    for _ in 0..2 {
        for tenant in ["acme", "globex"] {
            assert_eq!(first_value(&serve(tenant)), tenant);
        }
    }
    assert_eq!(error_of(&serve("off")).0, 403);
    assert_eq!(error_of(&serve("open")).0, 403);
    assert_eq!(cluster.nodes[0].post("/query", "", &body).status, 401, "without a ticket");
}

#[test]
fn nodes_with_different_secrets_serve_alone_and_say_why() {
    let cluster =
        TestCluster::start("secrets", &[SECRET, "another secret of that length ..."], &Setup::default());
    for (node, peer) in [(0, "b"), (1, "a")] {
        eventually("the difference is noticed", || {
            let (status, error) = cluster.nodes[node].peer_status(peer);
            status == "DOWN" && error.contains("secrets differ")
        });
    }
    let listed = cluster.nodes[0]
        .dir
        .run(&["node", "list", "--url", &format!("http://{}", cluster.nodes[0].address)])
        .ok();
    assert!(listed.contains("secrets differ"), "{listed}");
    let tx_id = cluster.nodes[1].begin();
    assert_eq!(error_of(&cluster.nodes[0].execute_in(&tx_id, "select 1")).1, "invalid_tx_id");

    let issuer = TicketIssuer::join(&cluster.nodes[..1], Duration::from_secs(10));
    let body = insert();
    let ticket = issuer.issue(0, text(&body));
    let (status, message) = present(cluster.nodes[1].address, "/execute", &ticket, &body);
    assert!(status == 403 && message.contains("wrong signature"), "{message}");

    let full = cluster.occupy(0, CONNS);
    for headers in ["", FORWARD] {
        let short = json!({"sql": "insert into marks values ('late')", "timeoutMs": 300});
        assert!([503, 504].contains(&cluster.nodes[0].post("/execute", headers, &short).status));
    }
    let waiting = send(cluster.nodes[0].address, "/execute", FORWARD, &body);
    eventually("the request waits at its node", || cluster.nodes[0].stats()["waitConnCount"] == 1);
    drop(full);
    assert_eq!(read(waiting).status, 200);
    assert_eq!(cluster.marks_by_node().into_iter().collect::<Vec<_>>(), [("a".to_owned(), 1)]);
}
