//! A statement that takes longer than its transaction may be idle.

use std::time::Duration;

use evenkeel_sql::SqlLimits;
use serde_json::json;

use crate::cancel::is_idle;
use crate::harness::{Setup, SqlServer, eventually};
use crate::outside::{Outside, database_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_outlives_the_idle_limit_and_the_idle_time_begins_at_its_end() {
    let database = database_with("create table t (id int)").await;
    let limits = SqlLimits { transaction_idle_max: Duration::from_secs(1), ..SqlLimits::default() };
    let server = SqlServer::on_postgres(&database.url(), Setup { limits, ..Setup::default() }).await;
    let client = server.client();
    for accept in ["application/json", "application/x-ndjson"] {
        let client = client.clone().with("accept", accept);
        let tx_id = client.begin(json!({})).await;
        let insert = json!({"sql": "insert into t select 1 from pg_sleep(3) returning 1", "txId": tx_id});
        let slow = client.post("/execute", insert).await;
        assert_eq!(slow.status, 200, "{slow:?}");
        assert!(!slow.body.contains("error"), "{slow:?}");
        assert_eq!(database.backends().await.idle_in_transaction, 1, "it is still open in the database");
        assert_eq!(client.execute_in(&tx_id, "select 1").await.status, 200);
        eventually("the idle transaction is rolled back", async || is_idle(&server).await).await;
        let late = client.post("/tx/commit", json!({"txId": tx_id})).await;
        assert_eq!(late.error(), (410, "transaction_ended".to_owned()));
        assert!(late.body.contains("idle for too long"), "{late:?}");
        assert_eq!(database.sql("select count(*) from t").await, "0");
        assert_eq!(database.backends().await.idle_in_transaction, 0);
    }
}
