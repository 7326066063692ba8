//! `evenkeel check` as a process.

use evenkeel::config::{Config, ConfigSources};
use serde_json::Value;

use crate::test_dir::{CommandOutput, TestDir};

#[test]
fn the_effective_config_is_printed_with_the_source_of_each_value() {
    let dir = TestDir::new("check-effective");
    dir.write(
        "evenkeel.toml",
        "[load_manager]\nmax_waiting = 50\n\n[[llm.nodes]]\nurl = 'http://10.0.0.5:8000'\napi_key = 'sk-1'\n",
    );
    let mut command = dir.command(&["check", "evenkeel.toml"]);
    let printed = CommandOutput::new(command.env("LLMLB_CACHE_TTL_SECS", "0.5").output().unwrap()).ok();
    for line in [
        "max_waiting = 50  # evenkeel.toml:2",
        "default_timeout_secs = 30",
        "ttl_secs = 0.5  # LLMLB_CACHE_TTL_SECS",
        "url = \"http://10.0.0.5:8000\"  # evenkeel.toml:5",
        "api_key = \"[hidden]\"  # evenkeel.toml:6",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "no {line:?} in {printed}");
    }
    dir.write("again.toml", &printed);
    let again = dir.run(&["check", "again.toml"]).ok();
    let without_comments = |text: &str| {
        text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        without_comments(&again),
        without_comments(&printed),
        "the printed config does not parse to the same config"
    );
}

#[test]
fn errors_are_reported_by_line_and_the_exit_code_is_1() {
    let dir = TestDir::new("check-wrong");
    dir.write("a.toml", "[load_manager]\nmax_waiting = 1001\nwarning = 1\n");
    assert_eq!(
        dir.run(&["check", "a.toml"]).failed(),
        "a.toml:2: Max waiting must be between 1 and 1000\n\
         a.toml:3: unknown key \"warning\" in [load_manager]\n\
         evenkeel: a.toml: 2 errors\n"
    );
    let missing = dir.run(&["check", "b.toml"]).failed();
    assert!(missing.starts_with("b.toml: No such file"), "{missing}");
}

#[test]
fn every_error_of_the_load_manager_is_reported_at_once() {
    let dir = TestDir::new("check-load");
    dir.write(
        "a.toml",
        "[load_manager]\nmax_waiting = 0\ndefault_timeout_secs = 301\nwarning_threshold = 1.5\n\
         overload_threshold = 2\nmax_delay_ms = -1\nquantum_tokens = 0\nmax_wait = 3\n",
    );
    assert_eq!(
        dir.run(&["check", "a.toml"]).failed(),
        "a.toml:2: Max waiting must be between 1 and 1000\n\
         a.toml:3: Timeout must be between 1 and 300 seconds\n\
         a.toml:4: Warning threshold must be between 0.0 and 1.0\n\
         a.toml:5: Overload threshold must be greater than warning\n\
         a.toml:6: max_delay_ms must be from 0 to 60000\n\
         a.toml:7: quantum_tokens must be from 1 to 1000000000\n\
         a.toml:8: unknown key \"max_wait\" in [load_manager]; did you mean \"max_waiting\"?\n\
         evenkeel: a.toml: 7 errors\n"
    );
}

#[test]
fn check_reports_what_serve_rejects() {
    let dir = TestDir::new("check-serve");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    dir.write("cert.pem", &made.cert.pem());
    dir.write("empty.pem", "");
    dir.write("file", "");
    let tls = |cert: &str, key: &str| format!("[server.tls]\ncert = '{cert}'\nkey = '{key}'\n");
    for (text, message) in [
        (
            "[server]\nlisten = '0.0.0.0:7070'\n".to_owned(),
            "2: no tenants, and the listener is not on loopback",
        ),
        (tls("missing.pem", "key.pem"), "2: [server.tls]: missing.pem: "),
        (tls("cert.pem", "missing.pem"), "2: [server.tls]: missing.pem: "),
        (tls("cert.pem", "empty.pem"), "2: [server.tls]: empty.pem: "),
        ("[llm]\nca_file = 'missing.pem'\n".to_owned(), "2: ca_file: missing.pem: "),
        ("[llm]\nca_file = 'empty.pem'\n".to_owned(), "2: ca_file: empty.pem: "),
        ("[server]\ndata_dir = ''\n".to_owned(), "2: data_dir must not be empty"),
        ("[server]\ndata_dir = 'file'\n".to_owned(), "2: file: not a directory"),
        ("[[tenants]]\nname = 'a'\nkey_hashes = []\n".to_owned(), "3: key_hashes is empty"),
        ("[actor]\nworkers = 0\n".to_owned(), "2: workers must be from 1 to 1024"),
        ("[actor]\nworker_batch = 65\n".to_owned(), "2: worker_batch must be from 1 to 64"),
        (
            "[actor]\nworker = 2\n".to_owned(),
            "2: unknown key \"worker\" in [actor]; did you mean \"workers\"?",
        ),
        (
            "[telemetry]\nlog = 'loud'\n".to_owned(),
            "2: log filter \"loud\" is invalid: \"loud\" is not a level",
        ),
        (
            "[[sql.datasources]]\nname = 'a'\nurl = 'postgres://u@h/d?sslmode=maybe'\n".to_owned(),
            "3: invalid database URL: sslmode \"maybe\" is not supported",
        ),
        (
            "[[tenants]]\nname = 'a'\ndatasources = ['x']\n".to_owned(),
            "3: datasources must be names of [[sql.datasources]]: \"main\"",
        ),
    ] {
        dir.write("a.toml", &text);
        let message = format!("a.toml:{message}");
        let checked = dir.run(&["check", "a.toml"]).failed();
        assert!(checked.starts_with(&message), "{text}: {checked}");
        assert!(checked.ends_with("evenkeel: a.toml: 1 error\n"), "{text}: {checked}");
        let served = dir.run(&["serve", "--config", "a.toml"]).failed();
        assert!(served.contains(&message), "{text}: {served}");
    }
}

#[test]
fn check_reports_the_errors_of_all_files_at_once() {
    let dir = TestDir::new("check-files");
    dir.write("a.toml", "[server.tls]\ncert = 'c'\nkey = 'k'\n[llm]\nca_file = 'r'\n");
    let checked = dir.run(&["check", "a.toml"]).failed();
    assert!(
        checked.contains("a.toml:2: [server.tls]: c: ") && checked.contains("\na.toml:5: ca_file: r: "),
        "{checked}"
    );
    assert!(!dir.file("evenkeel-data").exists(), "check created the data directory");
}

#[test]
fn the_reference_names_every_setting_with_its_default() {
    let reference = include_str!("../../../../docs/configuration.md");
    let blocks: Vec<_> =
        reference.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let read = |text: &str| {
        let file = Some(("configuration.md".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() }).unwrap().effective.to_json()
    };
    let written = read(blocks[0]);
    let default = read("");
    for (section, settings) in default.as_object().unwrap() {
        // A list has one entry by default.
        let entry =
            |settings: &Value| if settings.is_array() { settings[0].clone() } else { settings.clone() };
        let documented = entry(&written[section]);
        for (key, setting) in entry(settings).as_object().unwrap() {
            assert_eq!(documented[key]["value"], setting["value"], "{section}.{key}");
            assert_ne!(documented[key]["from"], "default", "{section}.{key} is not in the reference");
        }
    }
    let optional = blocks[0].lines().filter_map(|line| line.strip_prefix("# "));
    let with_optional =
        optional.fold(blocks[0].to_owned(), |text, line| text.replace(&format!("# {line}"), line));
    read(&with_optional);
    for example in &blocks[1..] {
        read(example);
    }
    assert_eq!(blocks.len(), 10, "TOML blocks in docs/configuration.md");
}
