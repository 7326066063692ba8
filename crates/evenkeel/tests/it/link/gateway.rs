//! A gateway with links: disconnects, shutdown, reload, and nodes added at run time.

use std::thread;

use evenkeel_sim_node::testing::{ResponseEnd, chat, read};
use serde_json::json;

use super::gateway_site::{CHAT, GatewaySite};
use super::process::wait_for;

#[test]
fn a_client_that_disconnects_stops_the_engine_behind_the_link() {
    let site = GatewaySite::on_loopback("gateway-disconnect", 10);
    let client = site.stream(10_000);
    site.wait_running(1);
    drop(client);
    site.wait_running(0);
}

#[test]
fn a_gateway_that_stops_finishes_its_streams_before_it_closes_its_links() {
    let mut site = GatewaySite::on_loopback("gateway-stop", 10);
    let client = site.stream(20);
    site.wait_running(1);
    let reading = thread::spawn(move || read(client));
    site.gateway.signal();
    let reply = reading.join().unwrap();
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
    assert_eq!(reply.events().last(), Some(&"[DONE]"));
    assert_eq!(site.gateway.wait(), Some(0));
    // The other side is told, so that it does not wait for the paths to return.
    let ended = site.listener.as_ref().unwrap().wait_log("the session of a link ended");
    assert_eq!(ended["reason"], "the other side ended the link", "{ended}");
}

#[test]
fn a_reload_adds_changes_and_removes_links_and_streams_go_on() {
    let site = GatewaySite::on_loopback("gateway-reload", 20);
    let config = site.sites.dir.read("evenkeel.toml");
    let client = site.stream(60);
    site.wait_running(1);
    let reading = thread::spawn(move || read(client));

    // Requests stay on the old link while the new one is not up.
    let is_paths = |line: &&str| line.starts_with("paths = ");
    let paths = config.lines().find(is_paths).unwrap();
    site.reload(&config.replace(paths, "paths = [\"127.0.0.1:9\"]"));
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);

    let one_path = config.replace("\"127.0.0.2=", "\"127.0.0.3=");
    let reloaded = site.reload(&one_path);
    assert_eq!((&reloaded["links_started"], &reloaded["links_removed"]), (&json!("site-b"), &json!("")));
    let name = wait_for("changed path", || {
        let paths = site.link()["paths"].clone();
        (paths[1]["connected"] == true).then(|| paths[1]["name"].as_str().unwrap().to_owned())
    });
    assert!(name.starts_with("127.0.0.3="), "{name}");
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);
    assert_eq!(site.reload(&one_path)["links_started"], "");

    // The table of the link ends where the node's begins.
    let (settings, node) = one_path.split_once("[[llm.nodes]]").unwrap();
    let link = settings.split_once("[[links]]").unwrap().1.replace("site-b", "site-c");
    let added = format!("{settings}[[links]]{link}[[llm.nodes]]{node}");
    assert_eq!(site.reload(&added)["links_started"], "site-c");
    let names = site.get("/api/paths").json()["links"].as_array().unwrap().len();
    assert_eq!(names, 2);
    let reply = reading.join().unwrap();
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");

    let reloaded = site.reload("");
    assert_eq!(
        (&reloaded["links_removed"], &reloaded["nodes_removed"]),
        (&json!("site-b,site-c"), &json!("gpu"))
    );
    assert_eq!(site.get("/api/paths").json(), json!({"links": [], "nodes": []}));
}

#[test]
fn a_node_added_at_run_time_keeps_its_link_over_a_restart_and_a_reload() {
    let mut site = GatewaySite::on_loopback("gateway-node", 1_000);
    let config = site.sites.dir.read("evenkeel.toml");
    let without_node = config.split("[[llm.nodes]]").next().unwrap();
    assert_eq!(site.reload(without_node)["nodes_removed"], "gpu");
    let url = format!("http://{}", site.node);
    let error = site.run(&["node", "add", "far", &url, "--via", "site-d"]).failed();
    assert!(error.contains("no link is named \"site-d\"; did you mean \"site-b\"?"), "{error}");
    assert_eq!(site.run(&["node", "add", "far", &url, "--via", "site-b"]).code, Some(0));
    site.restart_gateway();
    let node = site.wait_node("healthy", |node| node["models"] == json!(["sim"]));
    assert_eq!((&node["name"], &node["via"]), (&json!("far"), &json!("site-b")));
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);

    let rejected = site.reload("");
    let error = rejected["error"].as_str().unwrap();
    assert!(error.starts_with("link \"site-b\" is missing, but node \"far\""), "{error}");
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);
    assert_eq!(site.run(&["node", "remove", "far"]).code, Some(0));
    assert_eq!(site.reload("")["links_removed"], "site-b");
}

#[test]
fn the_keys_of_a_link_are_checked_with_the_configuration() {
    let site = GatewaySite::on_loopback("gateway-keys", 1_000);
    let config = site.sites.dir.read("evenkeel.toml").replace("edge-keys", "no-keys");
    site.sites.dir.write("wrong.toml", &config);
    let error = site.run(&["check", "wrong.toml"]).failed();
    let expected = "wrong.toml:7: keys of link \"site-b\": no-keys/link.key does not exist; create a key pair with `evenkeel link keys`";
    assert!(error.contains(expected), "{error}");
    let rejected = site.reload(&config);
    assert!(rejected["error"].as_str().unwrap().contains("no-keys/link.key does not exist"), "{rejected}");
    assert_eq!(site.post(CHAT, &chat(json!({}))).status, 200);
}
