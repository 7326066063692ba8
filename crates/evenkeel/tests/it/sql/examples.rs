//! The example configs of `examples/sql`: each starts and serves, with its PostgreSQL replaced by one of the test.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;
use evenkeel_test_postgres::TestServer;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sql");
const POSTGRES_URL: &str = "postgres://app:secret@127.0.0.1:5432/orders";

#[test]
fn every_example_starts_and_serves() {
    let postgres = TestServer::start().unwrap();
    let roles = "CREATE ROLE app LOGIN PASSWORD 'secret'; CREATE ROLE orders_service; CREATE ROLE reports_service; \
                 GRANT orders_service, reports_service TO app";
    postgres.psql("postgres", roles).unwrap();
    let url = postgres.url_as("postgres", "app", "secret");
    let names: Vec<_> =
        fs::read_dir(Path::new(EXAMPLES)).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        let name = name.into_string().unwrap();
        let dir = TestDir::new(&format!("example-sql-{name}"));
        let text = fs::read_to_string(Path::new(EXAMPLES).join(&name)).unwrap();
        dir.write("evenkeel.toml", &text.replace(POSTGRES_URL, &url));
        let server = ServerProcess::start(&dir, &[]);
        let keys: &[&str] = if name == "tenants.toml" { &["orders", "reports"] } else { &[""] };
        for key in keys {
            let authorization = format!("authorization: Bearer ek-example-{key}\r\n");
            let reply = read(server.send("POST", "/query", &authorization, &json!({"sql": "select 1 as n"})));
            assert_eq!((reply.status, &reply.json()["rows"]), (200, &json!([[1]])), "{name}: {reply:?}");
        }
    }
}
