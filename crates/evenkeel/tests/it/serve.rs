//! `evenkeel serve` as a process: sockets, signals, reloads and admin commands.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::server_process::ServerProcess;
use crate::test_dir::{CommandOutput, TestDir};
use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{ResponseEnd, TestNode, chat, fast, read, read_until, stuck};

/// Writes a config file with this node and the settings in `more`.
fn write_config(dir: &TestDir, node: &TestNode, more: &str) {
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\n", node.address());
    dir.write("evenkeel.toml", &format!("{more}\n{node}"));
}

#[test]
fn a_chat_is_served_and_counted_in_the_metrics() {
    let dir = TestDir::new("serve-chat");
    let node = TestNode::start(fast());
    write_config(&dir, &node, "");
    let server = ServerProcess::start(&dir, &[]);
    let reply = server.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    assert!(
        reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
        "{}",
        reply.head
    );
    assert!(server.get("/v1/models").body.contains("\"sim\""));
    let page = server.get("/metrics");
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"), "{}", page.head);
    for line in [
        "llm_router_queue_size 0",
        "llm_router_request_duration_seconds_count 1",
        "llm_router_request_duration_seconds_bucket{le=\"0.01\"}",
        "llm_router_request_duration_seconds_bucket{le=\"0.05\"}",
        "llm_router_request_duration_seconds_bucket{le=\"0.1\"}",
        "llm_router_backpressure_rejections_total 0",
        "llm_router_cache_hits_total ",
        "llm_router_cache_misses_total ",
        "llm_router_pool_connections ",
        "actor_",
        "evenkeel_finished_total{pool=\"llm\",tenant=\"open\",outcome=\"served\"} 1",
    ] {
        assert!(page.body.lines().any(|found| found.starts_with(line)), "no {line:?} in {}", page.body);
    }
}

#[test]
fn the_models_of_a_node_given_by_flag_are_discovered() {
    let dir = TestDir::new("serve-flag");
    let node = TestNode::start(fast());
    let server = ServerProcess::start(&dir, &["--node", &format!("http://{}", node.address())]);
    while !server.get("/v1/models").body.contains("\"sim\"") {}
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    let named = dir.run(&["node", "list"]).ok();
    assert!(named.contains(&format!("{}  serving", node.address())), "{named}");
}

#[test]
fn without_a_config_file_the_server_starts_and_logs_that_it_is_open_and_has_no_nodes() {
    let dir = TestDir::new("serve-bare");
    let server = ServerProcess::start(&dir, &[]);
    server.wait_log("open: no tenants");
    server.wait_log("no config file");
    server.wait_log("no nodes; add one");
    assert_eq!(server.get("/livez").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 404);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn startup_logs_one_line_with_url_apis_store_and_tenants() {
    let dir = TestDir::new("serve-start");
    dir.write("evenkeel.toml", "[[tenants]]\nname = 'a'\n");
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", "here"]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let parsed = lines.map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    // Nodes of the SQL API come into rotation before, and the admin key is created.
    let line = parsed.into_iter().find(|line| line["url"].is_string()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{line}");
    assert_eq!(
        (&line["apis"], &line["store"], &line["tenants"]),
        (&json!("llm,sqs,sql"), &json!("here, queues in fjall"), &json!(1))
    );
}

#[test]
fn sigterm_drains_requests_in_flight_and_accepts_no_new_ones() {
    let dir = TestDir::new("serve-drain");
    let node = TestNode::start(SimOptions { tokens_per_second: 20, ..fast() });
    write_config(&dir, &node, "");
    let server = ServerProcess::start(&dir, &[]);
    let body = chat(json!({"stream": true, "max_tokens": 20}));
    let mut stream = server.send("POST", "/v1/chat/completions", "", &body);
    let start = read_until(&mut stream, "\n\n");
    server.signal("TERM");
    server.wait_log("stopping");
    while TcpStream::connect(server.address).is_ok() {}
    let rest = read_to_end(stream);
    assert!((start + &rest).contains("data: [DONE]"), "the stream was truncated: {rest}");
    let stopped = server.wait_log("stopped");
    assert_eq!((&stopped["connections_cut"], &stopped["requests_cut"]), (&json!(0), &json!(0)));
    assert_eq!(server.wait(), Some(0));
    node.wait_for(0, 0);
}

#[test]
fn requests_that_outlast_drain_secs_are_aborted_and_counted() {
    let dir = TestDir::new("serve-cut");
    let node = TestNode::start(stuck());
    write_config(&dir, &node, "[server]\ndrain_secs = 0.01\n");
    let server = ServerProcess::start(&dir, &[]);
    let waiting = server.send("POST", "/v1/chat/completions", "", &chat(json!({})));
    node.wait_for(1, 0);
    server.signal("TERM");
    assert_eq!(server.wait_log("stopped")["requests_cut"], 1);
    assert_eq!(server.wait(), Some(0));
    assert_ne!(read(waiting).end, ResponseEnd::Complete);
    node.wait_for(0, 0);
}

#[test]
fn a_stopping_server_reports_not_ready_and_exits_on_a_second_signal() {
    let dir = TestDir::new("serve-unready");
    let node = TestNode::start(fast());
    write_config(&dir, &node, "[server]\nunready_secs = 3600\n");
    let server = ServerProcess::start(&dir, &[]);
    server.signal("INT");
    while server.get("/readyz").status == 200 {}
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/livez").status, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    server.signal("TERM");
    server.wait_log("exited on a second signal");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn sighup_reloads_tenants_and_nodes_and_an_invalid_config_changes_nothing() {
    let dir = TestDir::new("serve-hup");
    let first = TestNode::start(fast());
    let second = TestNode::start(fast());
    let key = || {
        let output = dir.run(&["tenant", "key"]).ok();
        let (key, hash) = output.trim().split_once('\n').unwrap();
        (key.to_owned(), hash.to_owned())
    };
    let (old, old_hash) = key();
    let (new, new_hash) = key();
    write_config(&dir, &first, &format!("[[tenants]]\nname = 'acme'\nkey_hashes = ['{old_hash}']\n"));
    let server = ServerProcess::start(&dir, &[]);
    let status = |key: &str| server.get_with_key("/v1/models", key).status;
    assert_eq!((status(&old), status(&new), server.get("/v1/models").status), (200, 401, 401));

    let nodes =
        format!("[[llm.nodes]]\nname = 'two'\nurl = 'http://{}'\nmodels = ['other']\n", second.address());
    let limits = "[load_manager]\nmax_waiting = 7\n";
    let tenants = format!("[[tenants]]\nname = 'acme'\nkey_hashes = ['{new_hash}']\n");
    dir.write("evenkeel.toml", &format!("{limits}{tenants}{nodes}"));
    server.signal("HUP");
    let reloaded = server.wait_log("reloaded");
    assert_eq!((&reloaded["nodes_added"], &reloaded["nodes_removed"]), (&json!("two"), &json!("one")));
    assert_eq!(server.wait_log("after a restart")["settings"], "load_manager.max_waiting");
    assert_eq!((status(&old), status(&new)), (401, 200));
    let models = server.get_with_key("/v1/models", &new).body;
    assert!(models.contains("\"other\"") && !models.contains("\"sim\""), "{models}");

    let other_dir = "[server]\ndata_dir = 'elsewhere'\n";
    dir.write("evenkeel.toml", &format!("{other_dir}{tenants}{nodes}"));
    server.signal("HUP");
    server.wait_log("reloaded");
    assert_eq!(
        server.wait_log("after a restart")["settings"],
        "server.data_dir",
        "a reload is compared with the configuration at startup"
    );
    assert_eq!(status(&new), 200);

    dir.write("evenkeel.toml", "[[tenants]]\nname = 'acme'\nwieght = 1\n");
    server.signal("HUP");
    let rejected = server.wait_log("reload rejected");
    assert_eq!(
        rejected["error"],
        "evenkeel.toml:3: unknown key \"wieght\" in [tenants]; did you mean \"weight\"?"
    );
    assert_eq!((status(&old), status(&new)), (401, 200));

    fs::remove_file(dir.file("evenkeel.toml")).unwrap();
    server.signal("HUP");
    server.wait_log("reload rejected");
    assert_eq!(
        (status(&new), server.get("/v1/models").status),
        (200, 401),
        "a missing config file must not make API keys unnecessary"
    );
}

#[test]
fn commands_change_the_tenants_of_a_running_server_at_once() {
    let dir = TestDir::new("serve-tenants");
    let node = TestNode::start(fast());
    write_config(&dir, &node, "");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.get("/v1/models").status, 200, "without tenants no API key is needed");
    let key = dir.run(&["tenant", "add", "acme", "--weight", "3"]).ok();
    let status = |key: &str| server.get_with_key("/v1/models", key).status;
    assert_eq!((status(&key), server.get("/v1/models").status), (200, 401));
    assert!(dir.run(&["tenant", "list"]).ok().contains("acme  3"));
    dir.run(&["tenant", "set", "acme", "--state", "disabled"]).ok();
    assert_eq!(status(&key), 403);
    dir.run(&["tenant", "set", "acme", "--state", "active"]).ok();
    let next = dir.run(&["tenant", "rotate", "acme"]).ok();
    assert_eq!((status(&key), status(&next)), (401, 200));
    let twice = dir.run(&["tenant", "add", "acme"]).failed();
    assert_eq!(twice, "evenkeel: tenant \"acme\" already exists\n");
    assert_eq!(
        dir.run(&["tenant", "remove", "unknown"]).failed(),
        "evenkeel: there is no tenant \"unknown\"\n"
    );
    drop(server);
    let again = ServerProcess::start(&dir, &[]);
    assert_eq!(again.get_with_key("/v1/models", &next).status, 200, "the tenant must survive a crash");
    dir.run(&["tenant", "remove", "acme"]).ok();
    again.wait_log("removed tenant \"acme\"");
    again.wait_log("open: no tenants");
    assert_eq!(again.get("/v1/models").status, 200, "without tenants no API key is needed");
}

#[test]
fn commands_list_drain_resume_add_and_remove_nodes() {
    let dir = TestDir::new("serve-nodes");
    let first = TestNode::start(fast());
    let second = TestNode::start(fast());
    write_config(&dir, &first, "");
    let server = ServerProcess::start(&dir, &[]);
    let node = |args: &[&str]| dir.run(&[&["node"], args].concat());
    let row = |name: &str| {
        let listed = node(&["list"]).ok();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        listed.lines().map(words).find(|words| words[0] == name).unwrap_or_default()
    };
    assert_eq!(row("one")[..3], ["one", "serving", "closed"]);
    assert_eq!(node(&["drain", "one"]).err, "draining node \"one\": no new requests, 0 in flight\n");
    assert_eq!(row("one")[1], "draining");
    node(&["add", "two", &format!("http://{}", second.address()), "--model", "other", "--weight", "2"]).ok();
    assert_eq!(
        server.post("/v1/chat/completions", &chat(json!({"model": "other"}))).status,
        404,
        "the response of the engine"
    );
    node(&["resume", "one"]).ok();
    assert_eq!(row("one")[1], "serving");
    node(&["remove", "two"]).ok();
    assert_eq!(row("two"), Vec::<String>::new());
    assert_eq!(node(&["drain", "a/b c"]).failed(), "evenkeel: there is no node \"a/b c\"\n");
    let by_url = node(&["list", "--json", "--url", &format!("http://{}", server.address)]).ok();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&by_url).unwrap()["nodes"][0]["name"], "one");
}

#[test]
fn a_command_without_a_server_names_the_address_it_tried() {
    let dir = TestDir::new("serve-unreachable");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    dir.write("evenkeel.toml", &format!("[server]\nlisten = '{free}'\n"));
    let output = dir.run(&["node", "list"]).failed();
    assert!(output.starts_with(&format!("evenkeel: http://{free}: could not connect")), "{output}");
}

#[test]
fn a_certificate_is_trusted_by_clients_and_reloaded_at_run_time() {
    let dir = TestDir::new("serve-tls");
    let renew = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        dir.write("cert.pem", &made.cert.pem());
        dir.write("key.pem", &made.signing_key.serialize_pem());
        dir.write(name, &made.cert.pem());
    };
    renew("old.pem");
    dir.write("evenkeel.toml", "[server.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n");
    let server = ServerProcess::start(&dir, &[]);
    let url = format!("https://localhost:{}", server.address.port());
    let list = |ca: &str| {
        let mut command = dir.command(&["tenant", "list", "--url", &url, "--ca-file", ca]);
        CommandOutput::new(command.env("EVENKEEL_ADMIN_KEY", server.admin_key().unwrap()).output().unwrap())
    };
    assert!(list("old.pem").ok().starts_with("no tenants"));
    renew("new.pem");
    server.signal("HUP");
    server.wait_log("reloaded");
    assert!(list("old.pem").failed().contains("TLS handshake failed"));
    list("new.pem").ok();
    dir.write("key.pem", "nonsense");
    server.signal("HUP");
    assert!(server.wait_log("reload rejected")["error"].as_str().unwrap().contains("key.pem"));
    list("new.pem").ok();
}

#[test]
fn configured_admin_keys_replace_the_one_in_the_data_directory() {
    let dir = TestDir::new("serve-admin");
    let output = dir.run(&["tenant", "key"]).ok();
    let (key, hash) = output.trim().split_once('\n').unwrap();
    dir.write("evenkeel.toml", &format!("[server]\nadmin_key_hashes = ['{hash}']\n"));
    // Left over from an earlier start without admin_key_hashes.
    fs::create_dir(dir.file("evenkeel-data")).unwrap();
    let ignored = format!("ek-{}", "0".repeat(64));
    dir.write("evenkeel-data/admin.key", &ignored);
    fs::set_permissions(dir.file("evenkeel-data/admin.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let server = ServerProcess::start(&dir, &[]);
    for path in ["/metrics", "/api/config", "/api/tenants", "/api/nodes", "/api/load-status"] {
        assert_eq!(read(server.send_text("GET", path, "", "")).status, 401, "{path}");
        assert_eq!(server.get_with_key(path, &ignored).status, 403, "{path}");
        assert_eq!(server.get_with_key(path, key).status, 200, "{path}");
    }
    let output = dir.run(&["tenant", "list"]).failed();
    assert!(output.contains("set EVENKEEL_ADMIN_KEY to the admin key"), "{output}");
    let mut command = dir.command(&["tenant", "list"]);
    assert!(command.env("EVENKEEL_ADMIN_KEY", key).output().unwrap().status.success());
}

#[test]
fn the_api_rejects_what_the_config_file_rejects() {
    let dir = TestDir::new("serve-api");
    dir.write("evenkeel.toml", "[[tenants]]\nname = 'filed'\n");
    let server = ServerProcess::start(&dir, &[]);
    for (body, message) in [
        (json!({"name": "a", "wieght": 1}), "unknown key \"wieght\" in [tenants]; did you mean \"weight\"?"),
        (
            json!({"name": "a", "key_hashes": []}),
            "key_hashes cannot be set; the gateway creates a key and returns it",
        ),
        (json!({"name": "filed"}), "tenant \"filed\" already exists"),
        (json!([]), "the body is not a JSON object"),
    ] {
        let reply = server.post("/api/tenants", &body);
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(message)));
    }
    assert_eq!(server.post("/api/tenants/filed/rotate", &json!({})).status, 400);
    assert_eq!(server.post("/api/tenants/filed/explode", &json!({})).status, 404);
    assert_eq!(server.delete("/api/tenants/filed").status, 400);
    assert_eq!(server.patch("/api/tenants/filed", &json!({"weight": 2})).status, 400);
    assert_eq!(server.patch("/api/tenants/unknown", &json!({"weight": 2})).status, 404);
    assert_eq!(server.delete("/api/tenants/unknown").status, 404);
    let config = server.get("/api/config").json();
    assert_eq!(config["load_manager"]["max_waiting"], json!({"value": 100, "from": "default"}));
    assert_eq!(config["tenants"][0]["name"], json!({"value": "filed", "from": "evenkeel.toml:2"}));
    assert_eq!(server.get("/api/tenants").json()["tenants"][0]["from"], "config");
}

#[test]
fn an_invalid_start_fails_with_the_reason() {
    let dir = TestDir::new("serve-invalid");
    let serve_error = |args: &[&str]| dir.run(&[&["serve"], args].concat()).failed();
    let open = serve_error(&["--listen", "0.0.0.0:0"]);
    assert!(
        open.starts_with("evenkeel: --listen: no tenants, and the listener is not on loopback"),
        "{open}"
    );
    assert_eq!(
        serve_error(&["--node", "nowhere"]),
        "evenkeel: --node: not a node URL such as \"http://10.0.0.5:8000\": URL begins with neither http:// nor https://\n"
    );
    let missing = serve_error(&["--config", "missing.toml"]);
    assert!(missing.starts_with("evenkeel: missing.toml: No such file"), "{missing}");
    let server = ServerProcess::start(&dir, &[]);
    let second = serve_error(&["--listen", "127.0.0.1:0"]);
    let message =
        format!("in use by the server at http://{}; stop it, or choose another --data-dir\n", server.address);
    assert!(second.ends_with(&message), "{second}");
    let taken = serve_error(&["--listen", &server.address.to_string(), "--data-dir", "other"]);
    assert!(taken.contains(&format!("cannot listen on {}", server.address)), "{taken}");
}

#[test]
fn allow_open_does_not_permit_keys_in_clear_text_and_allow_plaintext_does() {
    let dir = TestDir::new("serve-plaintext");
    dir.run(&["tenant", "add", "acme"]).ok();
    let serve = ["serve", "--listen", "0.0.0.0:0"];
    for more in [&[][..], &["--allow-open"]] {
        let refused = dir.run(&[&serve, more].concat()).failed();
        assert!(refused.contains("no TLS") && refused.contains("--allow-plaintext"), "{refused}");
    }
    let server = ServerProcess::spawn(&mut dir.command(&[&serve[..], &["--allow-plaintext"]].concat()));
    assert_eq!(server.get("/livez").status, 200);
}

#[test]
fn allow_open_permits_a_listener_on_all_interfaces_without_tenants() {
    let dir = TestDir::new("serve-open");
    let server = ServerProcess::spawn(&mut dir.command(&["serve", "--listen", "0.0.0.0:0", "--allow-open"]));
    assert_eq!(server.get("/livez").status, 200);
    assert_eq!(server.get_with_key("/api/tenants", "ek-wrong").status, 403);
    assert_eq!(read(server.send_text("GET", "/api/tenants", "", "")).status, 401);
}

fn read_to_end(mut stream: TcpStream) -> String {
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stream, &mut rest).unwrap();
    rest
}
