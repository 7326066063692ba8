//! `evenkeel check`, as a user runs it.

use evenkeel::config::{Config, ConfigSources};

use crate::folder::{Folder, Ran};

#[test]
fn a_config_is_printed_as_meant_with_where_each_value_comes_from() {
    let folder = Folder::new("check-meant");
    folder.write(
        "evenkeel.toml",
        "[load_manager]\nmax_waiting = 50\n\n[[llm.nodes]]\nurl = 'http://10.0.0.5:8000'\napi_key = 'sk-1'\n",
    );
    let mut command = folder.command(&["check", "evenkeel.toml"]);
    let said = Ran::of(command.env("LLMLB_CACHE_TTL_SECS", "0.5").output().unwrap()).ok();
    for line in [
        "max_waiting = 50  # evenkeel.toml:2",
        "default_timeout_secs = 30",
        "ttl_secs = 0.5  # LLMLB_CACHE_TTL_SECS",
        "url = \"http://10.0.0.5:8000\"  # evenkeel.toml:5",
        "api_key = \"[hidden]\"  # evenkeel.toml:6",
    ] {
        assert!(said.lines().any(|said| said == line), "no {line:?} in {said}");
    }
    folder.write("again.toml", &said);
    let again = folder.run(&["check", "again.toml"]).ok();
    let bare = |text: &str| {
        text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(bare(&again), bare(&said), "what it prints means something else");
}

#[test]
fn what_is_wrong_ends_with_1_and_is_told_by_line() {
    let folder = Folder::new("check-wrong");
    folder.write("a.toml", "[load_manager]\nmax_waiting = 1001\nwarning = 1\n");
    assert_eq!(
        folder.run(&["check", "a.toml"]).failed(),
        "a.toml:2: Max waiting must be between 1 and 1000\n\
         a.toml:3: unknown key \"warning\" in [load_manager]\n\
         evenkeel: a.toml: 2 mistakes\n"
    );
    let missing = folder.run(&["check", "b.toml"]).failed();
    assert!(missing.starts_with("b.toml: No such file"), "{missing}");
}

#[test]
fn what_serve_would_refuse_check_refuses_too() {
    let folder = Folder::new("check-serve");
    folder.write("a.toml", "[server]\nlisten = '0.0.0.0:7070'\n");
    let said = folder.run(&["check", "a.toml"]).failed();
    assert!(said.starts_with("a.toml:2: no tenants, and the listener is not on loopback"), "{said}");
}

#[test]
fn the_reference_names_every_setting_with_its_default() {
    let reference = include_str!("../../../../docs/configuration.md");
    let blocks: Vec<_> =
        reference.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let read = |text: &str| {
        let file = Some(("configuration.md".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() }).unwrap().shown.to_json()
    };
    let written = read(blocks[0]);
    let default = read("");
    for (section, settings) in default.as_object().unwrap() {
        for (key, setting) in settings.as_object().unwrap() {
            let told = &written[section][key];
            assert_eq!(told["value"], setting["value"], "{section}.{key}");
            assert_ne!(told["from"], "default", "{section}.{key} is not in the reference");
        }
    }
    let optional = blocks[0].lines().filter_map(|line| line.strip_prefix("# "));
    let with_optional =
        optional.fold(blocks[0].to_owned(), |text, line| text.replace(&format!("# {line}"), line));
    read(&with_optional);
    for example in &blocks[1..] {
        read(example);
    }
    assert_eq!(blocks.len(), 3, "all of them are read");
}
