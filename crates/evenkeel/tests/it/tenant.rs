//! `evenkeel tenant …` without a server: the data folder is the command's own.

use crate::folder::Folder;
use serde_json::Value;

#[test]
fn a_tenant_is_added_listed_rotated_and_removed() {
    let folder = Folder::new("tenant-life");
    let first =
        folder.run(&["tenant", "add", "acme", "--weight", "2.5", "--rpm", "60", "--model", "llama"]).ok();
    assert!(first.starts_with("ek-") && first.len() == 68, "{first}");
    let listed = folder.run(&["tenant", "list"]).ok();
    assert!(
        listed.starts_with("NAME  WEIGHT  RPM  TPM  CONCURRENCY MAX  MODELS  STANDING  KEYS"),
        "{listed}"
    );
    assert!(
        listed.contains("acme  2.5     60   -    -                llama   active    sha256:"),
        "{listed}"
    );
    folder
        .run(&["tenant", "set", "acme", "--weight", "4", "--unlimited", "rpm", "--standing", "disabled"])
        .ok();
    let listed = folder.run(&["tenant", "list"]).ok();
    assert!(
        listed.contains("acme  4       -    -    -                llama   disabled  sha256:"),
        "{listed}"
    );
    let second = folder.run(&["tenant", "rotate", "acme", "--keep-old"]).ok();
    assert_ne!(first, second);
    let json: Value = serde_json::from_str(&folder.run(&["tenant", "list", "--json"]).ok()).unwrap();
    assert_eq!(json["tenants"][0]["keys"].as_array().unwrap().len(), 2);
    let kept = folder.read("evenkeel-data/tenants.toml");
    assert!(!kept.contains(first.trim()) && !kept.contains(second.trim()), "a key is kept: {kept}");
    folder.run(&["tenant", "remove", "acme"]).ok();
    assert!(folder.run(&["tenant", "list"]).ok().starts_with("no tenants"));
}

#[test]
fn what_cannot_be_is_told_and_changes_nothing() {
    let folder = Folder::new("tenant-wrong");
    folder.write("evenkeel.toml", "[[tenants]]\nname = 'filed'\n");
    folder.run(&["tenant", "add", "acme"]).ok();
    let before = folder.read("evenkeel-data/tenants.toml");
    for (args, told) in [
        (&["add", "acme"][..], "there is a tenant \"acme\" already"),
        (&["add", "filed"], "there is a tenant \"filed\" already"),
        (&["add", "two words"], "a name must be 1 to 64 letters, digits and signs of `._-@:`"),
        (&["add", "b", "--weight", "0"], "weight must be a number from 0.01 to 1000"),
        (&["set", "acme"], "nothing to change; --help lists what there is"),
        (&["set", "acme", "--weight", "1001"], "weight must be a number from 0.01 to 1000"),
        (&["remove", "nobody"], "there is no tenant \"nobody\""),
        (
            &["rotate", "filed"],
            "tenant \"filed\" is in the config file; change it there, then reload (SIGHUP)",
        ),
    ] {
        let said = folder.run(&[&["tenant"], args].concat()).failed();
        assert_eq!(said, format!("evenkeel: {told}\n"));
    }
    assert_eq!(folder.read("evenkeel-data/tenants.toml"), before);
}

#[test]
fn a_store_that_somebody_broke_is_told_by_line() {
    let folder = Folder::new("tenant-broken");
    folder.run(&["tenant", "add", "acme"]).ok();
    folder.write("evenkeel-data/tenants.toml", "[[tenants]]\nname = 'acme'\nkeys = 1\n");
    let said = folder.run(&["tenant", "list"]).failed();
    assert!(said.contains("evenkeel-data/tenants.toml:3: unknown key \"keys\""), "{said}");
}

#[test]
fn a_key_for_a_config_file_comes_with_its_hash() {
    let folder = Folder::new("tenant-key");
    let said = folder.run(&["tenant", "key"]).ok();
    let (key, hash) = said.trim().split_once('\n').unwrap();
    folder.write("a.toml", &format!("[[tenants]]\nname = 'a'\nkey_hashes = ['{hash}']\n"));
    folder.run(&["check", "a.toml"]).ok();
    folder.write("a.toml", &format!("[[tenants]]\nname = 'a'\nkey_hashes = ['{key}']\n"));
    let told = folder.run(&["check", "a.toml"]).failed();
    assert!(told.contains("`sha256:` and 64 hexadecimal digits") && !told.contains(key), "{told}");
}

#[test]
fn shells_complete_every_command() {
    let folder = Folder::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = folder.run(&["completions", shell]).ok();
        assert!(script.contains("sim-node") && script.contains("rotate"), "{shell}: {script}");
    }
}
