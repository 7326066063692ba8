//! Regression corpus of the configuration reader, found by hand and by fuzzing.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use crate::checks;

#[test]
fn every_config_of_the_corpus_passes_its_checks() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/config");
    let mut paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        checks::config::check(&fs::read(&path).unwrap());
    }
}

/// Generates nearly valid lines; random bytes would almost never parse.
fn line() -> impl Strategy<Value = String> {
    let header = prop_oneof![
        Just("[server]"),
        Just("[server.tls]"),
        Just("[load_manager]"),
        Just("[connection_pool]"),
        Just("[node_cache]"),
        Just("[llm]"),
        Just("[llm.health]"),
        Just("[[llm.nodes]]"),
        Just("[[tenants]]"),
        Just("[sql]"),
        Just("[[sql.datasources]]"),
        Just("[telemetry]"),
        Just("[other]"),
    ];
    let key = prop_oneof![
        Just("listen"),
        Just("drain_secs"),
        Just("max_waiting"),
        Just("warning_threshold"),
        Just("ttl_secs"),
        Just("name"),
        Just("url"),
        Just("paths"),
        Just("models"),
        Just("api_key"),
        Just("key_hashes"),
        Just("weight"),
        Just("rpm"),
        Just("max_open_conns"),
        Just("max_transaction_conns"),
        Just("role"),
        Just("datasources"),
        Just("set"),
        Just("log"),
        Just("typo"),
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}").to_lowercase()),
        Just("'http://a:1'".to_owned()),
        Just("'sqlite:a'".to_owned()),
        Just("{'a.b' = 'c'}".to_owned()),
        Just("['a', 'b']".to_owned()),
        Just("[[1]]".to_owned()),
        Just("{a = 1}".to_owned()),
        Just("true".to_owned()),
        Just("1979-05-27".to_owned()),
        Just("0xff".to_owned()),
        Just("\"\\u007F\"".to_owned()),
        Just("\"".to_owned()),
    ];
    // Other settings, such as names, are printed.
    let secret_key = prop_oneof![Just("api_key"), Just("key_hashes"), Just("otlp_headers"), Just("url")];
    let secret = prop_oneof![
        Just("'sk-secret'"),
        Just("['sk-secret']"),
        Just("'postgres://a:sk-secret@b/c'"),
        Just("'postgres://a:sk-secret@b:c'"),
    ];
    prop_oneof![
        header.prop_map(str::to_owned),
        (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        (secret_key, secret).prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}

proptest! {
    #[test]
    fn nearly_valid_configs_pass_the_checks(lines in proptest::collection::vec(line(), 0..12)) {
        checks::config::check(lines.join("\n").as_bytes());
    }

    #[test]
    fn arbitrary_bytes_pass_the_checks(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        checks::config::check(&bytes);
    }
}
