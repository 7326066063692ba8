//! The peers part of `/api/sql`: their status, the age of their figures, and how each compares with this node.

use evenkeel_cluster::PeerSnapshot;
use evenkeel_pipeline::{PeerAssessment, PeerFigures};
use evenkeel_policy::score::RequestKind;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{status_name, to_json};
use crate::api::SqlApi;
use crate::database::Database;

/// Kinds of requests that can be handed over, with their names in the response.
const KINDS: [(&str, RequestKind); 3] =
    [("query", RequestKind::Query), ("execute", RequestKind::Execute), ("begin", RequestKind::BeginTx)];

/// Describes this node's view of the cluster; `null` without peers.
pub(super) fn describe_cluster(api: &SqlApi) -> Value {
    let Some(cluster) = &api.cluster else { return Value::Null };
    let peers: Vec<Value> = cluster.peers().iter().map(describe_peer).collect();
    let counts = api.scheduler.inspect(|pipeline| pipeline.status().counts);
    json!({
        "node": cluster.node(),
        "peers": peers,
        "noRoom": counts.no_room,
        "peersScored": counts.peers_scored,
        "redirected": counts.redirected,
        "redirectBudgetSpent": counts.redirect_budget_spent,
    })
}

fn describe_peer(peer: &PeerSnapshot) -> Value {
    json!({
        "name": *peer.name,
        "url": *peer.url,
        "weight": peer.weight.as_f64(),
        "status": status_name(peer.status),
        "error": peer.error.as_deref(),
        "ageMs": peer.report.as_ref().map(|report| report.age(Instant::now()).as_millis() as u64),
    })
}

/// Describes the peers that serve a database: for each kind of request their score, or the gate that excludes them.
///
/// `null` without a cluster, for SQLite, and until the identity of the database is known.
pub(super) fn describe(api: &SqlApi, database: &Database) -> Value {
    let Some(cluster) = api.cluster.as_ref().filter(|_| database.shared_id().is_some()) else {
        return Value::Null;
    };
    let snapshots = cluster.peers();
    let figures: Vec<PeerFigures> = snapshots.iter().filter_map(|peer| api.figures(peer, database)).collect();
    let own = api.node_stats(database);
    let now = api.scheduler.now();
    let redirector = database.redirector.lock();
    let mut own_scores = Map::new();
    let mut by_kind = Vec::new();
    for (name, kind) in KINDS {
        own_scores.insert(name.to_owned(), json!(redirector.own_score(now, &own, kind, &figures)));
        by_kind.push((name, redirector.assess(now, &own, kind, &figures)));
    }
    drop(redirector);
    let peers = figures.iter().enumerate().map(|(index, peer)| {
        let scores: Map<String, Value> =
            by_kind.iter().map(|(name, peers)| ((*name).to_owned(), assessment(&peers[index]))).collect();
        let snapshot = snapshots.iter().find(|snapshot| snapshot.index == peer.peer.0 as usize);
        json!({
            "name": snapshot.map(|snapshot| &*snapshot.name),
            "ageMs": by_kind.first().map(|(_, peers)| peers[index].age.as_millis() as u64),
            "scores": scores,
            "stats": to_json(&peer.stats),
        })
    });
    json!({"ownScores": own_scores, "peers": peers.collect::<Vec<_>>()})
}

/// A score, or the closed gate in words.
fn assessment(assessment: &PeerAssessment) -> Value {
    match &assessment.result {
        Ok(score) => json!(score),
        Err(gate) => json!(gate.to_string()),
    }
}
