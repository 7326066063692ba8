//! Arguments, keys, settings and status of `evenkeel link`.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::slice;

use super::process::LoggedProcess;
use super::sites::{LinkSide, Sites, create_keys, wait_port};
use super::test_link::{ForwardLane, LinkOptions, TestLink};
use crate::test_dir::{CommandOutput, TestDir};

/// A fingerprint of no key.
const FINGERPRINT: &str = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn output(mut command: Command) -> CommandOutput {
    CommandOutput::new(command.output().unwrap())
}

#[test]
fn a_usage_error_exits_with_2_and_names_the_argument() {
    let dir = TestDir::new("link-usage");
    let listen = ["link", "listen", "--keys", "k", "--peer", FINGERPRINT];
    let connect = ["link", "connect", "--keys", "k", "--peer", FINGERPRINT];
    let relay = ["link", "relay", "--keys", "k", "--peer", FINGERPRINT, "--listen", "127.0.0.1:0"];
    for (args, part) in [
        (vec!["link"], "Usage: evenkeel link"),
        (vec!["link", "lisen"], "'listen'"),
        (vec!["link", "keys"], "--out <DIR>"),
        (vec!["link", "keys", "--out", "a", "--show", "b"], "cannot be used with"),
        (vec!["link", "keys", "--show", "b", "--replace"], "cannot be used with"),
        (listen.to_vec(), "--path <ADDR>"),
        (vec!["link", "listen", "--keys", "k", "--path", "127.0.0.1:0"], "--peer <FINGERPRINT>"),
        ([&listen[..], &["--path", "wan0=127.0.0.1:1"]].concat(), "--path <ADDR>"),
        ([&listen[..], &["--path", "127.0.0.1:0", "--allow", "127.0.0.1"]].concat(), "is not HOST:PORT"),
        (connect.to_vec(), "--path <[INTERFACE"),
        ([&connect[..], &["--path", "127.0.0.1"]].concat(), "has no port"),
        (
            [&connect[..], &["--path", "a/b=127.0.0.1:1"]].concat(),
            "neither an interface name nor an IP address",
        ),
        ([&connect[..], &["--path", "h:1", "--forward", "127.0.0.1:1"]].concat(), "expected LISTEN=TARGET"),
        ([&connect[..], &["--path", "h:1", "--forward", "127.0.0.1:1=h:2,lane=x"]].concat(), "lane=bonded"),
        (
            vec!["link", "connect", "--keys", "k", "--peer", "sha256:12", "--path", "h:1"],
            "--peer <FINGERPRINT>",
        ),
        (vec!["link", "status", "--json", "--watch"], "cannot be used with"),
        (relay.to_vec(), "--next <ADDR>"),
        ([&relay[..], &["--next", "h:1"]].concat(), "--next <ADDR>"),
        ([&relay[..], &["--next", "127.0.0.1:1", "--associations-max", "0"]].concat(), "--associations-max"),
        ([&connect[..], &["--path", "h:1", "--relay", "h:2"]].concat(), "expected HOST:PORT=FINGERPRINT"),
    ] {
        let output = dir.run(&args);
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{args:?}: {output:?}");
        assert!(output.err.contains(part), "{args:?}: no {part:?} in {}", output.err);
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let dir = TestDir::new("link-help");
    for command in ["keys", "listen", "connect", "relay", "status"] {
        let help = dir.run(&["link", command, "--help"]).ok();
        assert!(help.contains(&format!("Examples:\n  evenkeel link {command} ")), "{help}");
    }
    assert!(dir.run(&["link", "--help"]).ok().contains("Examples:\n  evenkeel link keys --out"));
}

#[test]
fn a_key_pair_is_created_once_shown_again_and_replaced_on_request() {
    let dir = TestDir::new("link-keys");
    let fingerprint = create_keys(&dir, "keys");
    assert!(fingerprint.starts_with("sha256:"), "{fingerprint}");
    assert_eq!(dir.run(&["link", "keys", "--show", "keys"]).ok().trim(), fingerprint);
    let error = dir.run(&["link", "keys", "--out", "keys"]).failed();
    assert!(error.contains("already exists; --replace creates another key pair"), "{error}");
    let mode = fs::metadata(dir.file("keys/link.key")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let replaced = dir.run(&["link", "keys", "--out", "keys", "--replace"]).ok();
    assert_ne!(replaced.trim(), fingerprint);
    assert_eq!(dir.run(&["link", "keys", "--show", "keys"]).ok(), replaced);
}

#[test]
fn keys_that_are_missing_readable_by_others_or_corrupt_are_errors() {
    let sites = Sites::new("bad-keys", "");
    let paths = ["127.0.0.1:1".to_owned()];
    let failure = || output(sites.connect(&paths, &[])).failed();
    let key = sites.dir.file("edge-keys/link.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let error = failure();
    assert!(
        error.contains("has mode 644; other users must have no access to the key; run `chmod 600"),
        "{error}"
    );
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    sites.dir.write("edge-keys/link.key", "no key");
    let error = failure();
    assert!(error.contains("edge-keys/link.key"), "{error}");
    fs::remove_file(key).unwrap();
    let error = failure();
    assert!(error.contains("does not exist; create a key pair with `evenkeel link keys`"), "{error}");
}

#[test]
fn a_wrong_setting_is_an_error_with_file_and_line() {
    for (setting, rule) in [
        ("weight_scale = 0.5", "weight_scale"),
        ("weight_cap = 10001", "weight_cap"),
        ("loss_floor = 1.5", "loss_floor"),
        ("window = 0", "window"),
        ("degrade_loss = 0", "degrade_loss"),
        ("slow_factor = 0.9", "slow_factor"),
        ("session_timeout_secs = 0", "session_timeout_secs"),
        ("flows_max = 0", "flows_max"),
        ("hops_min = 0", "hops_min"),
        ("hops_max = 2", "hops_max"),
        ("hops_start = 8", "hops_start"),
        ("route_probe_ms = 20001", "route_probe_ms"),
        ("weight_scal = 1", "weight_scale"),
    ] {
        let sites = Sites::new("bad-settings", &format!("\n[link]\n{setting}\n"));
        for command in [sites.listen("127.0.0.1:0", &[]), sites.connect(&["127.0.0.1:1".to_owned()], &[])] {
            let error = output(command).failed();
            assert!(error.contains("link.toml:3") && error.contains(rule), "{setting}: {error}");
        }
    }
}

#[test]
fn addresses_in_use_and_identical_paths_are_errors() {
    let sites = Sites::new("in-use", "");
    let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    let port = wait_port(&core);
    let error = output(sites.listen(&format!("127.0.0.1:{port}"), &[])).failed();
    assert!(error.contains(&format!("cannot bind to UDP 127.0.0.1:{port}")), "{error}");

    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let path = format!("127.0.0.1:{port}");
    let mut command = sites.connect(slice::from_ref(&path), &[]);
    command.args(["--forward", &format!("{address}=127.0.0.1:8000")]);
    let error = output(command).failed();
    assert!(error.contains(&format!("could not listen on {address}")), "{error}");
    let mut command = sites.connect(slice::from_ref(&path), &[]);
    command.args(["--status-listen", &address]);
    let error = output(command).failed();
    assert!(error.contains("Address already in use"), "{error}");

    let error = output(sites.connect(&[path.clone(), path.clone()], &[])).failed();
    assert!(error.contains(&format!("path {path} is given twice")), "{error}");
    let error = output(sites.connect(&[format!("nosuch0={path}")], &[])).failed();
    assert!(error.contains("no path can be opened: no interface is named \"nosuch0\""), "{error}");
}

#[test]
fn status_shows_running_links_and_says_if_there_is_none() {
    let sites = Sites::new("status", "");
    let status = || output(sites.status(LinkSide::Core, &[]));
    let error = status().failed();
    assert!(error.contains("found no running link of this user"), "{error}");
    let mut core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    core.wait_log("status at /status");
    assert_eq!(core.logged("no target is allowed").len(), 1);
    let text = status().ok();
    assert!(text.contains("no session: the other side is not connected"), "{text}");
    core.signal();
    assert_eq!(core.wait(), Some(0));
    assert!(status().failed().contains("found no running link of this user"));

    // The file of a process that was killed is left behind.
    let core = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[]));
    core.wait_log("status at /status");
    drop(core);
    assert_eq!(fs::read_dir(sites.dir.file("run-Core")).unwrap().count(), 1);
    assert!(status().failed().contains("found no running link of this user"));
    assert_eq!(fs::read_dir(sites.dir.file("run-Core")).unwrap().count(), 0);
}

#[test]
fn status_has_a_row_for_each_path_of_a_session() {
    let link = TestLink::on_loopback("rows", &LinkOptions::default());
    link.wait_active(2);
    let _connection = link.connect(ForwardLane::Stream);
    for side in [LinkSide::Edge, LinkSide::Core] {
        let text = link.status(side, &[]).ok();
        for column in ["PATH", "STATE", "RTT", "LOSS", "WEIGHT", "FLOWS", "BONDED", "IN FLIGHT", "SENT"] {
            assert!(text.contains(column), "{text}");
        }
        for path in ["127.0.0.1", "127.0.0.2"] {
            let row = text.lines().find(|line| line.starts_with(&format!("{path}=127.0.0.1:{}", link.port)));
            let row = row.unwrap_or_else(|| panic!("no {path} in {text}"));
            assert!(row.contains("ACTIVE") && row.contains(" ms") && row.contains("0.0 %"), "{row}");
        }
        assert!(text.ends_with("open flows: 1\n"), "{text}");
    }
}
