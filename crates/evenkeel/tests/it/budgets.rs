//! Budgets of tenants and their statements, with the binary as a process and simulated nodes.

use std::io::Write;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, open, read, stuck};
use serde_json::{Value, json};

use crate::external_client::{self, python};
use crate::fleet::{Backend, CHAT, Fleet, TIMEOUT, request, tenant};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const PRICES: &str = "[llm]\ncurrency = 'EUR'\n[[llm.prices]]\nmodel = 'sim'\ninput = 1\noutput = 1000\n";
/// A model whose name a spreadsheet would run, and that is quoted in CSV.
const FORMULA: &str = "=1+1,2";

/// A server with the tenant `acme`, and a node.
struct BudgetTest {
    server: ServerProcess,
    dir: TestDir,
    node: TestNode,
    key: String,
}

impl BudgetTest {
    fn start(name: &str, engine: SimOptions, budgets: &[&str]) -> Self {
        let dir = TestDir::new(name);
        let models = format!("{:?}", engine.models);
        let node = TestNode::start(engine);
        write_config(&dir, PRICES, &node, &models);
        let key = dir.run(&[&["tenant", "add", "acme"], budgets].concat()).ok().trim().to_owned();
        let server = ServerProcess::start(&dir, &[]);
        Self { server, dir, node, key }
    }

    fn post(&self, body: &Value) -> RawResponse {
        read(self.send(body))
    }

    fn send(&self, body: &Value) -> std::net::TcpStream {
        let key = format!("authorization: Bearer {}\r\n", self.key);
        self.server.send("POST", CHAT, &key, body)
    }

    /// Returns the tenant's own view of its usage.
    fn usage(&self) -> Value {
        self.server.get_with_key("/api/usage", &self.key).json()
    }

    /// Returns the only budget, as administrators see it.
    fn budget(&self) -> Value {
        self.server.get("/api/tenants").json()["tenants"][0]["budgets"][0].clone()
    }

    /// Waits until this many requests are in the statement; a response ends before its usage is recorded.
    #[track_caller]
    fn wait_requests(&self, count: u64) -> Value {
        wait_for(&format!("{count} requests in the statement"), || {
            let usage = self.usage();
            (usage["rows"][0]["requests"] == count).then_some(usage)
        })
    }

    fn set(&self, settings: &Value) {
        let reply = self.server.patch("/api/tenants/acme", settings);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn write_config(dir: &TestDir, prices: &str, node: &TestNode, models: &str) {
    let url = format!("http://{}", node.address());
    let node =
        format!("[[llm.nodes]]\nname = 'one'\nurl = '{url}'\nmodels = {models}\nmax_concurrency = 8\n");
    dir.write("evenkeel.toml", &format!("{prices}\n{node}"));
}

#[track_caller]
fn wait_for<T>(expected: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {expected}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn openai_python_and_anthropic_python_get_one_error_without_retries_once_the_budget_is_used_up() {
    let config = tenant("acme", "tokens_per_month = 1");
    let fleet = Fleet::start("budget-clients", &config, vec![("one", Backend::Sim(fast()))]);
    let url = format!("http://{}", fleet.address);
    external_client::run(python("budget_client.py").arg(url).env("OPENAI_API_KEY", "ek-acme"));
    fleet.wait_idle();
}

#[test]
fn usage_survives_a_kill_and_a_restart_does_not_reset_the_budget() {
    let test = BudgetTest::start("budget-kill", fast(), &["--tokens-per-month", "100000"]);
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    let used = test.wait_requests(1)["rows"][0].clone();
    let tokens = used["input_tokens"].as_u64().unwrap() + used["output_tokens"].as_u64().unwrap();
    assert!(tokens > 8, "{used}");
    let directory = test.dir.file("evenkeel-data/usage");
    let is_stored = |path: std::path::PathBuf| {
        // Before it replaces the file, a new version has another extension.
        let is_file = path.extension().is_some_and(|extension| extension == "json");
        is_file && std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"requests\":1"))
    };
    wait_for("stored usage", || {
        let mut entries = std::fs::read_dir(&directory).ok()?.flatten();
        entries.any(|entry| is_stored(entry.path())).then_some(())
    });
    let BudgetTest { server, dir, node, key } = test;
    server.signal("KILL");
    server.wait();
    let server = ServerProcess::start(&dir, &[]);
    let test = BudgetTest { server, dir, node, key };
    assert_eq!(test.usage()["rows"], json!([used]));
    assert_eq!(test.budget()["used"], tokens);
    test.set(&json!({"tokens_per_month": tokens}));
    let refused = test.post(&chat(json!({})));
    assert_eq!(refused.status, 429, "{refused:?}");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    let expected = format!("budget tokens_per_month reached: {tokens} tokens of {tokens} tokens used");
    assert!(message.starts_with(&expected), "{message}");
    // A graceful stop loses nothing, even if it comes at once.
    test.set(&json!({"tokens_per_month": null}));
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    test.wait_requests(2);
    test.server.signal("TERM");
    assert_eq!(test.server.wait(), Some(0));
    let offline = test.dir.run(&["tenant", "statement", "acme", "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&offline).unwrap()["rows"][0]["requests"], 2);
}

#[test]
fn requests_in_flight_together_do_not_exceed_a_budget() {
    let test = BudgetTest::start("budget-in-flight", stuck(), &["--tokens-per-month", "1000000"]);
    let first = test.send(&chat(json!({})));
    test.node.wait_for(1, 0);
    let estimate = test.budget()["reserved"].as_u64().unwrap();
    assert!(estimate > 0);
    test.set(&json!({"tokens_per_month": 3 * estimate}));
    let others = [test.send(&chat(json!({}))), test.send(&chat(json!({})))];
    test.node.wait_for(3, 0);
    assert_eq!(test.budget()["remaining"], 0);
    let refused = test.post(&chat(json!({})));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.head.contains("\r\nretry-after: 1\r\n"), "{refused:?}");
    assert!(!refused.head.contains("x-should-retry"), "{refused:?}");
    // A client that disconnects before the first byte uses nothing.
    drop(first);
    test.node.wait_for(2, 0);
    wait_for("room in the budget", || (test.budget()["remaining"] == estimate).then_some(()));
    let next = test.send(&chat(json!({})));
    test.node.wait_for(3, 0);
    assert_eq!(test.node.peak(), 3);
    drop((next, others));
    wait_for("an unused budget", || (test.budget()["reserved"] == 0).then_some(()));
    let budget = test.budget();
    assert_eq!((&budget["used"], &budget["remaining"]), (&json!(0), &json!(3 * estimate)), "{budget}");
    assert_eq!(test.usage()["rows"], json!([]));
}

#[test]
fn concurrent_clients_use_a_budget_up_without_exceeding_it() {
    // Slow enough that all clients have a request in flight when the budget is almost used up.
    let engine = SimOptions { tokens_per_second: 200, ..fast() };
    let test = BudgetTest::start("budget-race", engine, &[]);
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    let row = test.wait_requests(1)["rows"][0].clone();
    // Every request uses as much as this one, which is also the estimate for those after it.
    let each = row["input_tokens"].as_u64().unwrap() + row["output_tokens"].as_u64().unwrap();
    let limit = 40 * each;
    test.set(&json!({"tokens_per_month": limit}));
    let address = test.server.address;
    let name = test.key.strip_prefix("ek-").unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let reply = read(open(address, &request(name, CHAT, &chat(json!({})))));
                    if reply.status == 429 && reply.json()["error"]["code"] == "insufficient_quota" {
                        return;
                    }
                    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
                }
            });
        }
    });
    // The last usage may be recorded after the end of its response.
    wait_for("the end of all requests", || (test.budget()["reserved"] == 0).then_some(()));
    let budget = test.budget();
    let used = budget["used"].as_u64().unwrap();
    assert!(used <= limit + each && limit - 2 * each <= used, "{each} each: {budget}");
}

#[test]
fn money_is_charged_by_the_price_table_and_a_reload_changes_prices_and_budgets_in_place() {
    let test =
        BudgetTest::start("budget-money", fast(), &["--money-per-month", "0.05", "--money-per-day", "9"]);
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    let row = test.wait_requests(1)["rows"][0].clone();
    let input = row["input_tokens"].as_u64().unwrap();
    // 8 output tokens at 1000 and the input at 1 EUR per million.
    assert_eq!(row["cost"], format!("{:.6}", 0.008 + input as f64 / 1e6).trim_end_matches('0'));
    assert_eq!((&row["output_tokens"], &row["currency"]), (&json!(8), &json!("EUR")));
    let budgets = test.usage()["budgets"].clone();
    let named =
        |name: &str| budgets.as_array().unwrap().iter().find(|budget| budget["budget"] == name).cloned();
    assert_eq!(named("money_per_day").unwrap()["limit"], 9);
    assert_eq!(named("money_per_month").unwrap()["limit"], 0.05);
    let page = test.server.get("/metrics").body;
    assert!(
        page.contains("evenkeel_tenant_budget_limit{tenant=\"acme\",budget=\"money_per_month\"} 0.05"),
        "{page}"
    );
    assert!(
        page.contains("evenkeel_tenant_budget_used{tenant=\"acme\",budget=\"money_per_month\"} 0.008"),
        "{page}"
    );
    let refused = (0..20).map(|_| test.post(&chat(json!({})))).find(|reply| reply.status != 200).unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("insufficient_quota")));
    assert!(refused.head.contains("\r\nx-should-retry: false\r\n"), "{refused:?}");
    assert!(refused.body.contains("of 0.05 EUR used, and this request needs about 0.008"), "{refused:?}");
    // At a hundredth of the price the next request fits.
    let prices = PRICES.replace("1000", "10").replace("EUR", "USD");
    write_config(&test.dir, &prices, &test.node, "['sim']");
    test.server.signal("HUP");
    test.server.wait_log("reloaded");
    let currency = test.server.get("/api/config").json()["llm"]["currency"].clone();
    assert_eq!(currency, json!({"value": "USD", "from": "evenkeel.toml:2"}), "in force without a restart");
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    test.set(&json!({"money_per_month": 0.0001}));
    assert_eq!(test.post(&chat(json!({}))).status, 429);
    test.set(&json!({"money_per_month": null, "money_per_day": null}));
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    assert!(!test.server.get("/metrics").body.contains("evenkeel_tenant_budget_used{"));
}

#[test]
fn pythons_csv_module_reads_the_statement_of_the_command_line_and_of_the_api() {
    let engine = SimOptions { models: vec!["sim".to_owned(), FORMULA.to_owned()], ..fast() };
    let test = BudgetTest::start("budget-csv", engine, &[]);
    for model in ["sim", FORMULA, FORMULA] {
        assert_eq!(test.post(&chat(json!({"model": model}))).status, 200);
    }
    wait_for("three requests", || {
        let rows = test.usage()["rows"].clone();
        let count = |row: &Value| row["requests"].as_u64();
        (rows.as_array()?.iter().filter_map(count).sum::<u64>() == 3).then_some(())
    });
    let printed = test.dir.run(&["tenant", "statement", "acme", "--csv"]).ok();
    let accept = "accept: text/csv\r\n";
    let by_header = read(test.server.send("GET", "/api/tenants/acme/statement", accept, &Value::Null));
    assert!(by_header.head.contains("\r\ncontent-type: text/csv; charset=utf-8\r\n"), "{by_header:?}");
    let own = test.server.get_with_key("/api/usage?format=csv", &test.key);
    assert_eq!((&by_header.body, &own.body), (&printed, &printed));
    let rows = read_with_python(&printed);
    assert_eq!(
        rows[0],
        json!([
            "day",
            "model",
            "requests",
            "input_tokens",
            "cached_tokens",
            "output_tokens",
            "cost",
            "currency"
        ])
    );
    let of = |row: &Value| [1, 2, 5, 6, 7].map(|column| row[column].as_str().unwrap().to_owned());
    let formula = format!("'{FORMULA}");
    assert_eq!(
        of(&rows[1]),
        [formula.as_str(), "2", "16", "0.00", "EUR"],
        "a model without a price costs nothing"
    );
    assert_eq!(of(&rows[2])[..3], ["sim", "1", "8"]);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    let table = test.dir.run(&["tenant", "statement", "acme"]).ok();
    assert!(table.starts_with("DAY         MODEL"), "{table}");
    let earlier = test.dir.run(&["tenant", "statement", "acme", "--month", "2025-02"]).ok();
    assert_eq!(earlier, "no usage from 2025-02-01 to 2025-02-28\n");
    for (path, status) in [
        ("/api/tenants/nobody/statement", 404),
        ("/api/tenants/acme/statement?month=2026-13", 400),
        ("/api/tenants/acme/statement?from=2026-11-02&to=2026-11-01", 400),
        ("/api/tenants/acme/statement?format=pdf", 400),
        ("/api/tenants/acme/statement?until=2026-11-01", 400),
    ] {
        assert_eq!(test.server.get(path).status, status, "{path}");
    }
}

/// Returns the rows that Python's module `csv` reads.
fn read_with_python(csv: &str) -> Value {
    let mut command = python("statement_csv.py");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(csv.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_budget_of_money_without_prices_is_reported_by_check_and_in_the_log() {
    let test = BudgetTest::start("budget-unpriced", fast(), &["--money-per-day", "5"]);
    let check = || test.dir.run(&["check", "evenkeel.toml"]);
    assert_eq!(check().err, "");
    write_config(&test.dir, "", &test.node, "['sim']");
    assert!(
        check().err.starts_with("warning: tenant \"acme\" has a budget of money, but without [[llm.prices]]")
    );
    write_config(&test.dir, &PRICES.replace("'sim'", "'other'"), &test.node, "['sim']");
    assert!(check().err.ends_with("have no price in [[llm.prices]] and cost nothing: [\"sim\"]\n"));
    test.server.signal("HUP");
    test.server.wait_log("reloaded");
    assert_eq!(test.post(&chat(json!({}))).status, 200);
    let line = test.server.wait_log("the model has no price");
    assert_eq!((&line["model"], &line["tenant"]), (&json!("sim"), &json!("acme")));
}

#[test]
fn a_malformed_usage_file_stops_the_start_and_is_reported_by_check() {
    let dir = TestDir::new("budget-malformed");
    std::fs::create_dir_all(dir.file("evenkeel-data/usage")).unwrap();
    dir.write("evenkeel-data/usage/2026-11-18.json", "{");
    dir.write("evenkeel.toml", "");
    for args in [&["check", "evenkeel.toml"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let errors = dir.run(args).err;
        assert!(errors.contains("usage/2026-11-18.json is not valid: EOF"), "{errors}");
    }
}
