//! `evenkeel serve`, as a user runs it: real processes, real sockets, real signals.

use std::net::TcpStream;

use serde_json::json;

use crate::folder::Folder;
use crate::raw::{Ended, Node, chat, fast, read, read_until, stuck};
use crate::server_process::Served;
use evenkeel_sim_node::SimOptions;

/// A config file with this node, and whatever else.
fn with_node(folder: &Folder, node: &Node, more: &str) {
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\n", node.address());
    folder.write("evenkeel.toml", &format!("{more}\n{node}"));
}

#[test]
fn a_chat_goes_through_and_shows_in_the_metrics() {
    let folder = Folder::new("serve-chat");
    let node = Node::start(fast());
    with_node(&folder, &node, "");
    let served = Served::start(&folder, &[]);
    let reply = served.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!((reply.status, reply.ended), (200, Ended::Whole), "{reply:?}");
    assert!(
        reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
        "{}",
        reply.head
    );
    assert!(served.get("/v1/models").body.contains("\"sim\""));
    let page = served.get("/metrics");
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
        assert!(page.body.lines().any(|said| said.starts_with(line)), "no {line:?} in {}", page.body);
    }
}

#[test]
fn a_node_given_by_flag_is_asked_what_it_serves() {
    let folder = Folder::new("serve-flag");
    let node = Node::start(fast());
    let served = Served::start(&folder, &["--node", &format!("http://{}", node.address())]);
    while !served.get("/v1/models").body.contains("\"sim\"") {}
    assert_eq!(served.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    let named = folder.run(&["node", "list"]).ok();
    assert!(named.contains(&format!("{}  serving", node.address())), "{named}");
}

#[test]
fn without_a_config_it_serves_this_machine_and_says_so() {
    let folder = Folder::new("serve-bare");
    let served = Served::start(&folder, &[]);
    served.wait_log("open: no tenants");
    served.wait_log("no config file");
    served.wait_log("no nodes yet");
    assert_eq!(served.get("/livez").status, 200);
    assert_eq!(served.get("/readyz").status, 200);
    assert_eq!(served.post("/v1/chat/completions", &chat(json!({}))).status, 404);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn the_start_is_one_line_with_url_doors_store_and_tenants() {
    let folder = Folder::new("serve-start");
    folder.write("evenkeel.toml", "[[tenants]]\nname = 'a'\n");
    let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", "here"]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.take().unwrap()), &mut line)
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(line["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{line}");
    assert_eq!(
        (&line["apis"], &line["store"], &line["tenants"]),
        (&json!("llm,sqs"), &json!("here, queues in fjall"), &json!(1))
    );
}

#[test]
fn sigterm_finishes_what_is_in_flight_and_takes_nothing_new() {
    let folder = Folder::new("serve-drain");
    let node = Node::start(SimOptions { tokens_per_second: 20, ..fast() });
    with_node(&folder, &node, "");
    let served = Served::start(&folder, &[]);
    let body = chat(json!({"stream": true, "max_tokens": 20}));
    let mut stream = served.send("POST", "/v1/chat/completions", "", &body);
    let begun = read_until(&mut stream, "\n\n");
    served.signal("TERM");
    served.wait_log("stopping");
    while TcpStream::connect(served.address).is_ok() {}
    let rest = read_to_end(stream);
    assert!((begun + &rest).contains("data: [DONE]"), "cut: {rest}");
    let stopped = served.wait_log("stopped");
    assert_eq!((&stopped["connections_cut"], &stopped["requests_cut"]), (&json!(0), &json!(0)));
    assert_eq!(served.wait(), Some(0));
    node.wait_for(0, 0);
}

#[test]
fn what_does_not_finish_in_drain_secs_is_cut_and_counted() {
    let folder = Folder::new("serve-cut");
    let node = Node::start(stuck());
    with_node(&folder, &node, "[server]\ndrain_secs = 0.01\n");
    let served = Served::start(&folder, &[]);
    let waiting = served.send("POST", "/v1/chat/completions", "", &chat(json!({})));
    node.wait_for(1, 0);
    served.signal("TERM");
    assert_eq!(served.wait_log("stopped")["requests_cut"], 1);
    assert_eq!(served.wait(), Some(0));
    assert_ne!(read(waiting).ended, Ended::Whole);
    node.wait_for(0, 0);
}

#[test]
fn before_it_stops_it_says_that_it_is_not_ready_and_a_second_signal_ends_it() {
    let folder = Folder::new("serve-unready");
    let node = Node::start(fast());
    with_node(&folder, &node, "[server]\nunready_secs = 3600\n");
    let served = Served::start(&folder, &[]);
    served.signal("INT");
    while served.get("/readyz").status == 200 {}
    assert_eq!(served.get("/readyz").status, 503);
    assert_eq!(served.get("/livez").status, 200);
    assert_eq!(served.post("/v1/chat/completions", &chat(json!({}))).status, 200);
    served.signal("TERM");
    served.wait_log("ended by a second signal");
    assert_eq!(served.wait(), Some(0));
}

#[test]
fn sighup_brings_tenants_and_nodes_and_a_bad_one_changes_nothing() {
    let folder = Folder::new("serve-hup");
    let first = Node::start(fast());
    let second = Node::start(fast());
    let key = || {
        let said = folder.run(&["tenant", "key"]).ok();
        let (key, hash) = said.trim().split_once('\n').unwrap();
        (key.to_owned(), hash.to_owned())
    };
    let (old, old_hash) = key();
    let (new, new_hash) = key();
    with_node(&folder, &first, &format!("[[tenants]]\nname = 'acme'\nkey_hashes = ['{old_hash}']\n"));
    let served = Served::start(&folder, &[]);
    let status = |key: &str| served.get_with_key("/v1/models", key).status;
    assert_eq!((status(&old), status(&new), served.get("/v1/models").status), (200, 401, 401));

    let nodes =
        format!("[[llm.nodes]]\nname = 'two'\nurl = 'http://{}'\nmodels = ['other']\n", second.address());
    let limits = "[load_manager]\nmax_waiting = 7\n";
    let tenants = format!("[[tenants]]\nname = 'acme'\nkey_hashes = ['{new_hash}']\n");
    folder.write("evenkeel.toml", &format!("{limits}{tenants}{nodes}"));
    served.signal("HUP");
    let reloaded = served.wait_log("reloaded");
    assert_eq!((&reloaded["nodes_added"], &reloaded["nodes_removed"]), (&json!("two"), &json!("one")));
    assert_eq!(served.wait_log("after a restart")["settings"], "load_manager.max_waiting");
    assert_eq!((status(&old), status(&new)), (401, 200));
    let models = served.get_with_key("/v1/models", &new).body;
    assert!(models.contains("\"other\"") && !models.contains("\"sim\""), "{models}");

    let elsewhere = "[server]\ndata_dir = 'elsewhere'\n";
    folder.write("evenkeel.toml", &format!("{elsewhere}{tenants}{nodes}"));
    served.signal("HUP");
    served.wait_log("reloaded");
    assert_eq!(served.wait_log("after a restart")["settings"], "server.data_dir", "as it was started");
    assert_eq!(status(&new), 200);

    folder.write("evenkeel.toml", "[[tenants]]\nname = 'acme'\nwieght = 1\n");
    served.signal("HUP");
    let refused = served.wait_log("reload refused");
    assert_eq!(
        refused["error"],
        "evenkeel.toml:3: unknown key \"wieght\" in [tenants]; did you mean \"weight\"?"
    );
    assert_eq!((status(&old), status(&new)), (401, 200));

    std::fs::remove_file(folder.file("evenkeel.toml")).unwrap();
    served.signal("HUP");
    served.wait_log("reload refused");
    assert_eq!((status(&new), served.get("/v1/models").status), (200, 401), "open because a file is gone");
}

#[test]
fn a_running_servers_tenants_are_changed_through_it_at_once() {
    let folder = Folder::new("serve-tenants");
    let node = Node::start(fast());
    with_node(&folder, &node, "");
    let served = Served::start(&folder, &[]);
    assert_eq!(served.get("/v1/models").status, 200, "open at first");
    let key = folder.run(&["tenant", "add", "acme", "--weight", "3"]).ok();
    let status = |key: &str| served.get_with_key("/v1/models", key).status;
    assert_eq!((status(&key), served.get("/v1/models").status), (200, 401));
    assert!(folder.run(&["tenant", "list"]).ok().contains("acme  3"));
    folder.run(&["tenant", "set", "acme", "--standing", "disabled"]).ok();
    assert_eq!(status(&key), 403);
    folder.run(&["tenant", "set", "acme", "--standing", "active"]).ok();
    let next = folder.run(&["tenant", "rotate", "acme"]).ok();
    assert_eq!((status(&key), status(&next)), (401, 200));
    let twice = folder.run(&["tenant", "add", "acme"]).failed();
    assert_eq!(twice, "evenkeel: there is a tenant \"acme\" already\n");
    assert_eq!(
        folder.run(&["tenant", "remove", "nobody"]).failed(),
        "evenkeel: there is no tenant \"nobody\"\n"
    );
    drop(served);
    let again = Served::start(&folder, &[]);
    assert_eq!(again.get_with_key("/v1/models", &next).status, 200, "forgotten by a crash");
    folder.run(&["tenant", "remove", "acme"]).ok();
    again.wait_log("tenant \"acme\" removed");
    again.wait_log("open: no tenants");
    assert_eq!(again.get("/v1/models").status, 200, "open again");
}

#[test]
fn nodes_are_listed_drained_resumed_added_and_removed() {
    let folder = Folder::new("serve-nodes");
    let first = Node::start(fast());
    let second = Node::start(fast());
    with_node(&folder, &first, "");
    let served = Served::start(&folder, &[]);
    let node = |args: &[&str]| folder.run(&[&["node"], args].concat());
    let line = |name: &str| {
        let listed = node(&["list"]).ok();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        listed.lines().map(words).find(|words| words[0] == name).unwrap_or_default()
    };
    assert_eq!(line("one")[..3], ["one", "serving", "closed"]);
    node(&["drain", "one"]).ok();
    assert_eq!(line("one")[1], "draining");
    node(&["add", "two", &format!("http://{}", second.address()), "--model", "other", "--weight", "2"]).ok();
    assert_eq!(
        served.post("/v1/chat/completions", &chat(json!({"model": "other"}))).status,
        404,
        "the engine's"
    );
    node(&["resume", "one"]).ok();
    assert_eq!(line("one")[1], "serving");
    node(&["remove", "two"]).ok();
    assert_eq!(line("two"), Vec::<String>::new());
    assert_eq!(node(&["drain", "a/b c"]).failed(), "evenkeel: there is no node \"a/b c\"\n");
    let by_url = node(&["list", "--json", "--url", &format!("http://{}", served.address)]).ok();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&by_url).unwrap()["nodes"][0]["name"], "one");
}

#[test]
fn a_command_without_a_server_says_where_it_looked() {
    let folder = Folder::new("serve-nobody");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    folder.write("evenkeel.toml", &format!("[server]\nlisten = '{free}'\n"));
    let said = folder.run(&["node", "list"]).failed();
    assert!(said.starts_with(&format!("evenkeel: http://{free}: host not reached")), "{said}");
}

#[test]
fn a_certificate_is_served_believed_and_replaced_while_it_runs() {
    let folder = Folder::new("serve-tls");
    let renew = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        folder.write("cert.pem", &made.cert.pem());
        folder.write("key.pem", &made.signing_key.serialize_pem());
        folder.write(name, &made.cert.pem());
    };
    renew("old.pem");
    folder.write("evenkeel.toml", "[server.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n");
    let served = Served::start(&folder, &[]);
    let url = format!("https://localhost:{}", served.address.port());
    let list = |ca: &str| folder.run(&["tenant", "list", "--url", &url, "--ca-file", ca]);
    assert!(list("old.pem").ok().starts_with("no tenants"));
    renew("new.pem");
    served.signal("HUP");
    served.wait_log("reloaded");
    assert!(list("old.pem").failed().contains("no trusted connection"));
    list("new.pem").ok();
    folder.write("key.pem", "nonsense");
    served.signal("HUP");
    assert!(served.wait_log("reload refused")["error"].as_str().unwrap().contains("key.pem"));
    list("new.pem").ok();
}

#[test]
fn an_admin_key_is_asked_for_where_there_is_one() {
    let folder = Folder::new("serve-admin");
    let said = folder.run(&["tenant", "key"]).ok();
    let (key, hash) = said.trim().split_once('\n').unwrap();
    folder.write("evenkeel.toml", &format!("[server]\nadmin_key_hashes = ['{hash}']\n"));
    let served = Served::start(&folder, &[]);
    for path in ["/metrics", "/api/config", "/api/tenants", "/api/nodes", "/api/load-status"] {
        assert_eq!(served.get(path).status, 401, "{path}");
        assert_eq!(served.get_with_key(path, "ek-wrong").status, 403, "{path}");
        assert_eq!(served.get_with_key(path, key).status, 200, "{path}");
    }
    let add = json!({"name": "a", "url": "http://127.0.0.1:1"});
    assert_eq!(served.post("/api/nodes", &add).status, 401);
    assert_eq!(served.post("/api/nodes/a/drain", &json!({})).status, 401);
    assert_eq!(served.delete("/api/nodes/a").status, 401);
    let told = folder.run(&["tenant", "list"]).failed();
    assert!(told.contains("EVENKEEL_ADMIN_KEY"), "{told}");
    let mut command = folder.command(&["tenant", "list"]);
    assert!(command.env("EVENKEEL_ADMIN_KEY", key).output().unwrap().status.success());
}

#[test]
fn the_api_refuses_what_the_file_would_refuse() {
    let folder = Folder::new("serve-api");
    folder.write("evenkeel.toml", "[[tenants]]\nname = 'filed'\n");
    let served = Served::start(&folder, &[]);
    for (body, told) in [
        (json!({"name": "a", "wieght": 1}), "unknown key \"wieght\" in [tenants]; did you mean \"weight\"?"),
        (json!({"name": "a", "key_hashes": []}), "key_hashes are not told; the answer holds a new key"),
        (json!({"name": "filed"}), "there is a tenant \"filed\" already"),
        (json!([]), "the body is not a JSON object"),
    ] {
        let reply = served.post("/api/tenants", &body);
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(told)));
    }
    assert_eq!(served.post("/api/tenants/filed/rotate", &json!({})).status, 400);
    assert_eq!(served.post("/api/tenants/filed/explode", &json!({})).status, 404);
    assert_eq!(served.delete("/api/tenants/filed").status, 400);
    assert_eq!(served.patch("/api/tenants/filed", &json!({"weight": 2})).status, 400);
    assert_eq!(served.patch("/api/tenants/nobody", &json!({"weight": 2})).status, 404);
    assert_eq!(served.delete("/api/tenants/nobody").status, 404);
    let config = served.get("/api/config").json();
    assert_eq!(config["load_manager"]["max_waiting"], json!({"value": 100, "from": "default"}));
    assert_eq!(config["tenants"][0]["name"], json!({"value": "filed", "from": "evenkeel.toml:2"}));
    assert_eq!(served.get("/api/tenants").json()["tenants"][0]["from"], "config");
}

#[test]
fn what_cannot_be_served_is_refused_before_anything_is() {
    let folder = Folder::new("serve-refused");
    let refused = |args: &[&str]| folder.run(&[&["serve"], args].concat()).failed();
    let open = refused(&["--listen", "0.0.0.0:0"]);
    assert!(
        open.starts_with("evenkeel: --listen: no tenants, and the listener is not on loopback"),
        "{open}"
    );
    assert_eq!(
        refused(&["--node", "nowhere"]),
        "evenkeel: --node: a node's url is like \"http://10.0.0.5:8000\": URL begins with neither http:// nor https://\n"
    );
    let missing = refused(&["--config", "missing.toml"]);
    assert!(missing.starts_with("evenkeel: missing.toml: No such file"), "{missing}");
    let served = Served::start(&folder, &[]);
    let second = refused(&["--listen", "127.0.0.1:0"]);
    let told = format!("the server at http://{} has this folder; --data-dir names another\n", served.address);
    assert!(second.ends_with(&told), "{second}");
    let taken = refused(&["--listen", &served.address.to_string(), "--data-dir", "other"]);
    assert!(taken.contains(&format!("cannot listen on {}", served.address)), "{taken}");
}

#[test]
fn an_explicit_word_serves_others_unprotected() {
    let folder = Folder::new("serve-open");
    let served = Served::spawn(&mut folder.command(&["serve", "--listen", "0.0.0.0:0", "--allow-open"]));
    assert_eq!(served.get("/livez").status, 200);
    assert_eq!(served.get("/api/tenants").status, 403, "administered by whoever is near");
}

fn read_to_end(mut stream: TcpStream) -> String {
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stream, &mut rest).unwrap();
    rest
}
