//! `evenkeel tenant …` without a server: the command locks the data directory itself.

use crate::test_dir::TestDir;
use serde_json::Value;

#[test]
fn a_tenant_is_added_listed_rotated_and_removed() {
    let dir = TestDir::new("tenant-life");
    let first =
        dir.run(&["tenant", "add", "acme", "--weight", "2.5", "--rpm", "60", "--model", "llama"]).ok();
    assert!(first.starts_with("ek-") && first.len() == 68, "{first}");
    let listed = dir.run(&["tenant", "list"]).ok();
    assert!(listed.starts_with("NAME  WEIGHT  RPM  TPM  CONCURRENCY MAX  MODELS  STATE   KEYS"), "{listed}");
    assert!(listed.contains("acme  2.5     60   -    -                llama   active  sha256:"), "{listed}");
    dir.run(&["tenant", "set", "acme", "--weight", "4", "--unlimited", "rpm", "--state", "disabled"]).ok();
    let listed = dir.run(&["tenant", "list"]).ok();
    assert!(
        listed.contains("acme  4       -    -    -                llama   disabled  sha256:"),
        "{listed}"
    );
    let second = dir.run(&["tenant", "rotate", "acme", "--keep-old"]).ok();
    assert_ne!(first, second);
    let json: Value = serde_json::from_str(&dir.run(&["tenant", "list", "--json"]).ok()).unwrap();
    assert_eq!(json["tenants"][0]["keys"].as_array().unwrap().len(), 2);
    let stored = dir.read("evenkeel-data/tenants.toml");
    assert!(!stored.contains(first.trim()) && !stored.contains(second.trim()), "a key is stored: {stored}");
    dir.run(&["tenant", "remove", "acme"]).ok();
    assert!(dir.run(&["tenant", "list"]).ok().starts_with("no tenants"));
}

#[test]
fn an_invalid_change_is_reported_and_changes_nothing() {
    let dir = TestDir::new("tenant-wrong");
    dir.write("evenkeel.toml", "[[tenants]]\nname = 'filed'\n");
    dir.run(&["tenant", "add", "acme"]).ok();
    let before = dir.read("evenkeel-data/tenants.toml");
    for (args, message) in [
        (&["add", "acme"][..], "tenant \"acme\" already exists"),
        (&["add", "filed"], "tenant \"filed\" already exists"),
        (&["add", "two words"], "a name must be 1 to 64 letters, digits and characters of `._-@:`"),
        (&["add", "b", "--weight", "0"], "weight must be a number from 0.01 to 1000"),
        (&["set", "acme"], "nothing to change; `evenkeel tenant set --help` lists the settings"),
        (&["set", "acme", "--weight", "1001"], "weight must be a number from 0.01 to 1000"),
        (&["remove", "unknown"], "tenant \"unknown\" does not exist"),
        (
            &["rotate", "filed"],
            "tenant \"filed\" is in the config file; change it there, then reload (SIGHUP)",
        ),
    ] {
        let output = dir.run(&[&["tenant"], args].concat()).failed();
        assert_eq!(output, format!("evenkeel: {message}\n"));
    }
    assert_eq!(dir.read("evenkeel-data/tenants.toml"), before);
}

#[test]
fn a_corrupt_store_is_reported_by_line() {
    let dir = TestDir::new("tenant-broken");
    dir.run(&["tenant", "add", "acme"]).ok();
    dir.write("evenkeel-data/tenants.toml", "[[tenants]]\nname = 'acme'\ncolour = 1\n");
    let output = dir.run(&["tenant", "list"]).failed();
    assert!(output.contains("evenkeel-data/tenants.toml:3: unknown key \"colour\""), "{output}");
}

#[test]
fn tenants_stored_by_an_earlier_version_still_load() {
    let dir = TestDir::new("tenant-earlier");
    dir.run(&["tenant", "add", "acme"]).ok();
    let stored = dir.read("evenkeel-data/tenants.toml");
    assert!(stored.contains("\"state\" = \"active\"\n"), "{stored}");
    let earlier = stored.replace("\"state\" = \"active\"", "\"standing\" = \"disabled\"");
    dir.write("evenkeel-data/tenants.toml", &earlier);
    assert!(dir.run(&["tenant", "list"]).ok().contains("  disabled  sha256:"));
    dir.run(&["tenant", "set", "acme", "--weight", "2"]).ok();
    let rewritten = dir.read("evenkeel-data/tenants.toml");
    assert!(
        rewritten.contains("\"state\" = \"disabled\"\n") && !rewritten.contains("standing"),
        "{rewritten}"
    );
}

#[test]
fn a_key_for_a_config_file_is_printed_with_its_hash() {
    let dir = TestDir::new("tenant-key");
    let output = dir.run(&["tenant", "key"]).ok();
    let (key, hash) = output.trim().split_once('\n').unwrap();
    dir.write("a.toml", &format!("[[tenants]]\nname = 'a'\nkey_hashes = ['{hash}']\n"));
    dir.run(&["check", "a.toml"]).ok();
    dir.write("a.toml", &format!("[[tenants]]\nname = 'a'\nkey_hashes = ['{key}']\n"));
    let errors = dir.run(&["check", "a.toml"]).failed();
    assert!(errors.contains("`sha256:` and 64 hexadecimal digits") && !errors.contains(key), "{errors}");
}

#[test]
fn shells_complete_every_command() {
    let dir = TestDir::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = dir.run(&["completions", shell]).ok();
        assert!(script.contains("sim-node") && script.contains("rotate"), "{shell}: {script}");
    }
}
