//! `Accept: text/csv`, read by another implementation of CSV.

use evenkeel_sql::datasource::sqlite::{SqliteDatasource, SqliteOptions};
use serde_json::json;

use crate::external_client::{python, run};
use crate::harness::{Setup, SqlServer, postgres};
use crate::postgres_api::database;

#[tokio::test(flavor = "multi_thread")]
async fn pythons_reader_reads_every_value_and_notices_a_cut() {
    let database = database().await;
    let directory = tempfile::tempdir().unwrap();
    let lite = SqliteDatasource::open(SqliteOptions::new(directory.path().join("lite.db"))).unwrap();
    let sources = vec![("main", postgres(&database.url(), 4)), ("lite", lite as _)];
    let server = SqlServer::start(sources, Setup::default()).await;
    let address = server.address.to_string();
    let script = move || run(python("csv_client.py").arg(address));
    tokio::task::spawn_blocking(script).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_which_does_not_show_a_cut_gets_an_error() {
    let database = database().await;
    let server = SqlServer::on_postgres(&database.url(), Setup::default()).await;
    let response = server.client().with("accept", "text/csv").query("select 1", json!([])).await;
    assert_eq!(response.status, 400);
    assert!(response.body.contains("CSV needs HTTP/1.1"), "{response:?}");
}
