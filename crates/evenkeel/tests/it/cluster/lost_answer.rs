//! A peer that is killed after it has received a request and before it has answered.
//!
//! An advisory lock, held by a transaction of node `c`, stops the statement at the point that a test needs.

use std::net::TcpStream;

use evenkeel_sim_node::testing::read;
use serde_json::{Value, json};

use super::{CONNS, FORWARD, Setup, TestCluster, error_of, eventually, send};

const LOCK: &str = "select pg_advisory_xact_lock(7)";
/// Makes a commit wait for the lock.
const LOCK_AT_COMMIT: &str = "create function lock() returns trigger language plpgsql as \
     $$ begin perform pg_advisory_xact_lock(7); return null; end $$; \
     create constraint trigger at_commit after insert on marks deferrable initially deferred \
     for each row execute function lock()";

/// End of the statement that waits for the lock when its node is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It commits while the node is stopped, so that the node cannot answer any more.
    Committed,
    /// PostgreSQL finds the client gone and rolls it back.
    RolledBack,
}

/// Three nodes of which `a` is full and `c` holds the lock.
struct LockedCluster {
    cluster: TestCluster,
    holder: String,
}

impl LockedCluster {
    fn start(test: &str) -> Self {
        let cluster = TestCluster::settled(test, 3, &Setup::default());
        let holder = cluster.nodes[2].begin();
        assert_eq!(cluster.nodes[2].execute_in(&holder, LOCK).status, 200);
        Self { cluster, holder }
    }

    /// Kills node `b` while PostgreSQL executes its statement, and checks that the client learns the truth: nothing.
    fn kill_owner(mut self, waiting: TcpStream, statement: &str, end: End) -> TestCluster {
        let on_lock = format!(
            "wait_event = 'advisory' and query ilike '%{statement}%' and application_name = 'node-b'"
        );
        let on_lock = super::activity("count(*)", &on_lock);
        eventually("node b's statement waits for the lock", || self.cluster.count(&on_lock) == 1);
        match end {
            End::Committed => {
                let server = self.cluster.nodes[1].server();
                server.signal("STOP");
                eventually("all threads of node b are stopped", || is_stopped(server.pid()));
                self.release();
                eventually("the statement is committed", || self.cluster.marks() == 1);
                self.cluster.nodes[1].kill();
            }
            End::RolledBack => {
                self.cluster.nodes[1].kill();
                eventually("PostgreSQL notices", || self.cluster.connections("b") == 0);
                self.release();
            }
        }
        let reply = read(waiting);
        let (status, code, message) = error_of(&reply);
        assert_eq!((status, code.as_str()), (502, "08007"), "{reply:?}");
        assert!(message.contains("node \"b\"") && message.contains("unknown"), "{message}");
        eventually("the dead node's connections are closed", || self.cluster.connections("b") == 0);
        let executed = usize::from(end == End::Committed);
        assert_eq!(self.cluster.marks(), executed, "{:?}", self.cluster.marks_by_node());
        self.cluster
    }

    fn release(&self) {
        assert_eq!(self.cluster.nodes[2].end(&self.holder, "rollback").status, 200);
    }
}

/// Reports whether every thread of a process is stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut stats =
        threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
    // The state follows the name, which is in parentheses.
    stats.all(|stat| stat.rsplit(')').next().unwrap().starts_with(" T"))
}

#[test]
fn a_forwarded_statement_whose_answer_is_lost_is_never_sent_again() {
    for (end, test) in [(End::Committed, "lost-committed"), (End::RolledBack, "lost-rolled-back")] {
        let locked = LockedCluster::start(test);
        // Node c has fewer free connections than b, and one that is full gets nothing.
        let full = locked.cluster.occupy(0, CONNS);
        let more = locked.cluster.occupy(2, CONNS - 1);
        eventually("node a knows that c is full", || {
            locked.cluster.nodes[0].peers()["c"]["scores"]["execute"].is_string()
        });
        let sql = format!("with locked as materialized ({LOCK}) insert into marks select 'once' from locked");
        let waiting = send(locked.cluster.nodes[0].address, "/execute", FORWARD, &json!({"sql": sql}));
        eventually("the statement arrives at b", || locked.cluster.running("b", "materialized") == 1);
        // From here on, c has room: it would take the statement if it were sent again.
        drop(more);
        eventually("node c has room again", || locked.cluster.running("c", "pg_sleep") == 0);
        let cluster = locked.kill_owner(waiting, "materialized", end);
        drop(full);
        drop(cluster);
    }
}

#[test]
fn a_forwarded_commit_whose_answer_is_lost_is_never_sent_again() {
    for (end, test) in [(End::Committed, "commit-committed"), (End::RolledBack, "commit-rolled-back")] {
        let locked = LockedCluster::start(test);
        locked.cluster.database.psql(LOCK_AT_COMMIT).unwrap();
        let tx_id = locked.cluster.nodes[1].begin();
        let inserted = locked.cluster.nodes[0].execute_in(&tx_id, "insert into marks values ('once')");
        assert_eq!(inserted.status, 200, "{inserted:?}");
        let commit: Value = json!({"txId": tx_id});
        let waiting = send(locked.cluster.nodes[0].address, "/tx/commit", "", &commit);
        let cluster = locked.kill_owner(waiting, "commit", end);
        // Repeating the commit does not execute anything, and says so.
        let repeated = cluster.nodes[0].end(&tx_id, "commit");
        assert_eq!(error_of(&repeated).1, "owner_unreachable", "{repeated:?}");
    }
}
