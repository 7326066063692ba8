//! Tests of reading files, environment variables and flags, and of the error messages.

use super::*;
use evenkeel_llm::Concurrency;
use evenkeel_policy::backpressure::LoadManagerConfig;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::tenant::{TenantSql, TenantState};
use evenkeel_server::tenant_key::TenantKey;
use proptest::prelude::*;

fn sources(text: &str, env: &[(&str, &str)]) -> ConfigSources {
    ConfigSources {
        file: Some(("evenkeel.toml".to_owned(), text.to_owned())),
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..ConfigSources::default()
    }
}

fn read(text: &str) -> Config {
    Config::read(&sources(text, &[])).unwrap()
}

/// Returns the errors, one per line.
fn errors(text: &str, env: &[(&str, &str)]) -> String {
    Config::read(&sources(text, env)).unwrap_err().to_string()
}

#[test]
fn without_any_source_the_defaults_of_the_specification_apply() {
    let config = Config::read(&ConfigSources::default()).unwrap();
    assert_eq!(config.llm.options.pipeline, PipelineOptions::default());
    assert_eq!((config.server.listen, config.tenants.len()), (LISTEN_DEFAULT, 0));
    assert_eq!(config.check_exposure(0), Ok(()));
}

#[test]
fn the_budget_of_bodies_has_room_for_two_bodies() {
    let limits = |text| read(text).server.limits;
    assert_eq!(limits("").bodies_bytes_max, 256 << 20);
    let large = limits("[server]\nbody_bytes_max = 536870912");
    assert_eq!(large.bodies_bytes_max, 1 << 30, "by default twice the maximum of a body");
    let rule = "bodies_bytes_max must be at least 2048, twice body_bytes_max";
    let text = "[server]\nbody_bytes_max = 1024\nbodies_bytes_max = 2047";
    assert_eq!(errors(text, &[]), format!("evenkeel.toml:3: {rule}"));
    let by_env = errors("[server]\nbody_bytes_max = 1024", &[("EVENKEEL_SERVER_BODIES_BYTES_MAX", "-1")]);
    assert_eq!(by_env, format!("EVENKEEL_SERVER_BODIES_BYTES_MAX: {rule}"));
}

#[test]
fn the_example_in_the_specification_equals_the_defaults() {
    let text = "
        [load_manager]
        max_waiting = 100
        default_timeout_secs = 30
        warning_threshold = 0.5
        overload_threshold = 0.8
        [connection_pool]
        max_idle_per_host = 32
        idle_timeout_secs = 90
        connect_timeout_secs = 5
        request_timeout_secs = 120
        [node_cache]
        max_capacity = 1000
        ttl_secs = 5
    ";
    assert_eq!(read(text).llm.options.pipeline.load, LoadManagerConfig::default());
}

#[test]
fn queue_and_backpressure_share_thresholds_and_size() {
    let load =
        read("[load_manager]\nmax_waiting = 7\nwarning_threshold = 0.1\noverload_threshold = 0.2\n").llm;
    let load = load.options.pipeline.load;
    assert_eq!((load.wait_queue.max_waiting, load.backpressure.max_queue_size), (7, 7));
    assert_eq!((load.wait_queue.warning_threshold, load.backpressure.warning_threshold), (0.1, 0.1));
    assert_eq!((load.wait_queue.overload_threshold, load.backpressure.overload_threshold), (0.2, 0.2));
}

#[test]
fn every_variable_in_the_specification_overrides_the_file() {
    let text = "[load_manager]\nmax_waiting = 5\n[node_cache]\nttl_secs = 5\n";
    let env = [
        ("LLMLB_MAX_WAITING", "101"),
        ("LLMLB_WAIT_TIMEOUT_SECS", "31"),
        ("LLMLB_WARNING_THRESHOLD", "0.6"),
        ("LLMLB_OVERLOAD_THRESHOLD", "0.9"),
        ("LLMLB_POOL_MAX_IDLE", "33"),
        ("LLMLB_POOL_IDLE_TIMEOUT_SECS", "91"),
        ("LLMLB_CACHE_MAX_CAPACITY", "1001"),
        ("LLMLB_CACHE_TTL_SECS", "0.25"),
    ];
    let load = Config::read(&sources(text, &env)).unwrap().llm.options.pipeline.load;
    let queue = load.wait_queue;
    let pool = load.connection_pool;
    let cache = load.node_cache;
    assert_eq!((queue.max_waiting, queue.default_timeout), (101, Duration::from_secs(31)));
    assert_eq!((queue.warning_threshold, queue.overload_threshold), (0.6, 0.9));
    assert_eq!((pool.max_idle_per_host, pool.idle_timeout), (33, Duration::from_secs(91)));
    assert_eq!((cache.max_capacity, cache.ttl), (1001, Duration::from_millis(250)));
}

#[test]
fn each_rule_of_the_specification_reports_its_message_with_the_line() {
    for (section, key, bad, message) in [
        ("load_manager", "max_waiting", ["0", "1001", "-1"], "Max waiting must be between 1 and 1000"),
        (
            "load_manager",
            "default_timeout_secs",
            ["0", "301", "nan"],
            "Timeout must be between 1 and 300 seconds",
        ),
        (
            "load_manager",
            "warning_threshold",
            ["1.0", "-0.1", "nan"],
            "Warning threshold must be between 0.0 and 1.0",
        ),
        (
            "load_manager",
            "overload_threshold",
            ["0.5", "1.1", "nan"],
            "Overload threshold must be greater than warning",
        ),
        (
            "connection_pool",
            "max_idle_per_host",
            ["0", "101", "-9"],
            "Max idle per host must be between 1 and 100",
        ),
        ("node_cache", "ttl_secs", ["0.099", "60.1", "-1"], "TTL must be between 100ms and 60s"),
    ] {
        for bad in bad {
            let text = format!("# a comment\n\n[{section}]\n{key} = {bad}\n");
            assert_eq!(errors(&text, &[]), format!("evenkeel.toml:4: {message}"), "{text}");
        }
    }
    let below = errors("[load_manager]\nwarning_threshold = 0.85\n", &[]);
    assert_eq!(below, "evenkeel.toml:2: Overload threshold must be greater than warning");
    let by_env = errors("", &[("LLMLB_CACHE_TTL_SECS", "61")]);
    assert_eq!(by_env, "LLMLB_CACHE_TTL_SECS: TTL must be between 100ms and 60s");
}

#[test]
fn a_typo_is_reported_with_its_line_and_a_suggestion() {
    for (text, message) in [
        (
            "[load_manager]\nmax_wating = 1",
            "2: unknown key \"max_wating\" in [load_manager]; did you mean \"max_waiting\"?",
        ),
        ("[load_manger]\nmax_waiting = 1", "1: unknown key \"load_manger\"; did you mean \"load_manager\"?"),
        ("\nmax_waiting = 1", "2: unknown key \"max_waiting\"; it belongs in [load_manager]"),
        ("[sql]\nurl = 'sqlite:x'", "2: unknown key \"url\" in [sql]; it belongs in [sql.datasources]"),
        ("[llm.helth]\n", "1: unknown key \"helth\" in [llm]; did you mean \"health\"?"),
        (
            "[[tenants]]\nname = 'a'\nwieght = 2",
            "3: unknown key \"wieght\" in [tenants]; did you mean \"weight\"?",
        ),
    ] {
        assert_eq!(errors(text, &[]), format!("evenkeel.toml:{message}"));
    }
}

#[test]
fn a_value_of_the_wrong_type_is_an_error() {
    for (text, message) in [
        ("[load_manager]\nmax_waiting = '1'", "2: max_waiting must be a whole number"),
        ("[load_manager]\nmax_waiting = 1.5", "2: max_waiting must be a whole number"),
        ("[connection_pool]\ntcp_nodelay = 1", "2: tcp_nodelay must be true or false"),
        ("[server]\nlisten = 'here'", "2: listen must be an address and a port, such as \"127.0.0.1:7070\""),
        ("[server]\ndrain_secs = -1", "2: drain_secs must be from 0 to 86400"),
        ("server = 1", "1: server must be a section, [server]"),
        ("[tenants]\nname = 'a'", "1: tenants must be sections, each [[tenants]]"),
        ("tenants = [1]", "1: tenants must be sections, each [[tenants]]"),
        ("[telemetry]\nlog_format = 'xml'", "2: log_format must be \"auto\" or \"human\" or \"json\""),
        ("[server.tls]\ncert = 'a'", "2: [server.tls] has a cert but no key"),
        ("[server]\na = [1", "2: unclosed array, expected `]`"),
        ("[server]\ndrain_secs = 1\ndrain_secs = 2", "3: duplicate key"),
    ] {
        assert_eq!(errors(text, &[]), format!("evenkeel.toml:{message}"));
    }
}

#[test]
fn all_errors_are_reported_at_once_in_line_order() {
    let text = "[node_cache]\nttl_secs = 0\n[server]\ncolour = 1\n[load_manager]\nmax_waiting = 0\n";
    let message = errors(text, &[("LLMLB_POOL_MAX_IDLE", "many")]);
    assert_eq!(
        message,
        "evenkeel.toml:2: TTL must be between 100ms and 60s\n\
         evenkeel.toml:4: unknown key \"colour\" in [server]\n\
         evenkeel.toml:6: Max waiting must be between 1 and 1000\n\
         LLMLB_POOL_MAX_IDLE: must be a whole number"
    );
}

#[test]
fn an_unknown_variable_is_an_error_unless_another_program_may_have_set_it() {
    for (name, hint) in [
        ("EVENKEEL_SERVER_LISTN", Some("; did you mean EVENKEEL_SERVER_LISTEN?")),
        ("EVENKEEL_NODE_CACHE_TTL_SECS", Some("; did you mean LLMLB_CACHE_TTL_SECS?")),
        ("EVENKEEL_TENANTS_0_NAME", Some("")),
        ("LLMLB_MAX_WAITNG", Some("; did you mean LLMLB_MAX_WAITING?")),
        ("LLMLB_DATABASE_URL", None),
        ("EVENKEEL_SERVER_SERVICE_HOST", None),
        ("EVENKEEL_SERVER_PORT", None),
        ("EVENKEEL_SERVER_PORT_7070_TCP_ADDR", None),
        ("EVENKEEL_ADMIN_KEY", None),
        ("HOME", None),
    ] {
        let message = Config::read(&sources("", &[(name, "1")])).err().map(|errors| errors.to_string());
        assert_eq!(message, hint.map(|hint| format!("{name}: no setting has this variable{hint}")));
    }
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let mut sources = sources("[server]\nlisten = '127.0.0.1:1'\n", &[]);
    let listen = |sources: &ConfigSources| Config::read(sources).unwrap().server.listen.port();
    assert_eq!(listen(&sources), 1);
    sources.env.insert("EVENKEEL_SERVER_LISTEN".to_owned(), "127.0.0.1:2".to_owned());
    assert_eq!(listen(&sources), 2);
    let value = "127.0.0.1:3".to_owned();
    sources.flags.push(Flag { section: "server", key: "listen", name: "--listen", value });
    assert_eq!(listen(&sources), 3);
    assert!(
        Config::read(&sources)
            .unwrap()
            .effective
            .to_toml()
            .contains("listen = \"127.0.0.1:3\"  # --listen\n")
    );
}

#[test]
fn nodes_are_read_with_all_their_settings() {
    let text = "
        [[llm.nodes]]
        name = 'gpu-1'
        url = 'http://10.0.0.5:8000'
        models = ['llama']
        max_concurrency = 16
        weight = 2.5
        api_key = 'sk-secret'
        [[llm.nodes]]
        paths = ['http://10.0.0.6:8000/base', 'https://gpu.example:8443']
    ";
    let config =
        Config::read(&ConfigSources { nodes: vec!["mine=http://[::1]:1".into()], ..sources(text, &[]) })
            .unwrap();
    let nodes = &config.llm.options.nodes;
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["gpu-1", "10.0.0.6:8000", "mine"]);
    assert_eq!(
        (nodes[0].max_concurrency, nodes[0].weight),
        (Some(Concurrency::Fixed(16)), Weight::new(2.5).unwrap())
    );
    assert_eq!(nodes[0].api_key.as_ref().unwrap().expose(), "sk-secret");
    assert_eq!(nodes[1].paths.len(), 2);
}

#[test]
fn an_invalid_node_is_an_error() {
    for (node, message) in [
        ("name = 'a'", "1: a node needs a url or paths"),
        ("url = 'http://a'\npaths = ['http://b']", "3: a node has either url or paths, not both"),
        ("paths = []", "2: paths must list 1 to 16 URLs"),
        (
            "url = 'ftp://a'",
            "2: not a node URL such as \"http://10.0.0.5:8000\": URL begins with neither http:// nor https://",
        ),
        (
            "url = '10.0.0.5:8000'",
            "2: not a node URL such as \"http://10.0.0.5:8000\": URL begins with neither http:// nor https://",
        ),
        (
            "url = 'http://u:p@a'",
            "2: not a node URL such as \"http://10.0.0.5:8000\": URL carries credentials; a node's key is its api_key",
        ),
        ("url = 'http://a?x'", "2: not a node URL such as \"http://10.0.0.5:8000\": URL carries a query"),
        (
            "url = 'http://a'\nname = 'two words'",
            "3: a name must be 1 to 64 letters, digits and characters of `._-@:`",
        ),
        ("url = 'http://a'\nweight = 0", "3: weight must be a number from 0.01 to 1000"),
        ("url = 'http://a'\nmax_concurrency = 0", "3: max_concurrency must be from 1 to 65536"),
        (
            "url = 'http://a'\nmax_concurrency = 'many'",
            "3: max_concurrency must be a whole number, or \"adaptive\"",
        ),
        (
            "url = 'http://a'\n[[llm.nodes]]\nurl = 'http://a/b'",
            "3: two nodes are named \"a\"; the first is at evenkeel.toml:1",
        ),
    ] {
        assert_eq!(
            errors(&format!("[[llm.nodes]]\n{node}\n"), &[]),
            format!("evenkeel.toml:{message}"),
            "{node}"
        );
    }
    let many =
        "[[llm.nodes]]\nurl = 'http://a'\n[[llm.nodes]]\nurl = 'http://b'\n[llm.limits]\nnodes_max = 1\n";
    assert_eq!(errors(many, &[]), "evenkeel.toml:3: more than 1 nodes; raise nodes_max in [llm.limits]");
    let by_flag =
        Config::read(&ConfigSources { nodes: vec!["x".into()], ..ConfigSources::default() }).unwrap_err();
    assert_eq!(
        by_flag.to_string(),
        "--node: not a node URL such as \"http://10.0.0.5:8000\": URL begins with neither http:// nor https://"
    );
}

#[test]
fn tenants_are_read_with_all_their_settings() {
    let hash = KeyHash::of("ek-1");
    let text = format!(
        "[[tenants]]\nname = 'acme'\nkey_hashes = ['{hash}']\nweight = 3\nrpm = 60\ntpm = 1000\nconcurrency_max = 4\n\
         models = ['llama']\ndatasources = ['main']\nstate = 'disabled'\n[[tenants]]\nname = 'other'\n"
    );
    let tenants = read(&text).tenants;
    let acme = &tenants[0];
    assert!(acme.keys[0].hash.matches(&hash));
    assert_eq!((acme.rpm, acme.tpm, acme.concurrency_max), (Some(60), Some(1000), Some(4)));
    assert_eq!((acme.models.len(), acme.state), (1, TenantState::Disabled));
    assert_eq!((&acme.sql.datasources[..], &acme.sql.role), (&["main".to_owned()][..], &None));
    assert_eq!((tenants[1].rpm, tenants[1].weight), (None, Weight::ONE));
}

#[test]
fn an_invalid_tenant_is_an_error() {
    let hash = KeyHash::of("ek-1");
    for (text, message) in [
        ("[[tenants]]\n".to_owned(), "1: a tenant needs a name".to_owned()),
        ("[[tenants]]\nname = 'open'".into(), "1: no tenant may be named \"open\"".into()),
        (
            "[[tenants]]\nname = 'a'\n\n[[tenants]]\nname = 'a'".into(),
            "4: two tenants are named \"a\"; the first is at evenkeel.toml:1".into(),
        ),
        (
            format!(
                "[[tenants]]\nname='a'\nkey_hashes=['{hash}']\n[[tenants]]\nname='b'\nkey_hashes=['{hash}']"
            ),
            "4: a key of tenant \"b\" is listed twice".into(),
        ),
        (
            format!("[server]\nadmin_key_hashes=['{hash}']\n[[tenants]]\nname='a'\nkey_hashes=['{hash}']"),
            "3: a key of tenant \"a\" is listed twice".into(),
        ),
        ("[[tenants]]\nname = 'a'\nrpm = -1".into(), format!("3: rpm must be from 0 to {}", i64::MAX)),
    ] {
        assert_eq!(errors(&text, &[]).lines().next().unwrap(), format!("evenkeel.toml:{message}"), "{text}");
    }
}

#[test]
fn secrets_are_neither_printed_nor_in_errors() {
    let hash = KeyHash::of("ek-1");
    let secret = "sk-very-secret";
    let text = format!(
        "[[llm.nodes]]\nurl = 'http://a'\napi_key = '{secret}'\n[[tenants]]\nname = 'a'\nkey_hashes = ['{hash}']\n"
    );
    let config = read(&text);
    for output in [config.effective.to_toml(), config.effective.to_json().to_string(), format!("{config:?}")]
    {
        assert!(!output.contains(secret) && !output.contains(&hash.to_string()), "{output}");
    }
    for bad in [
        format!("[[llm.nodes]]\nurl = 'http://a'\napi_key = ['{secret}']\n"),
        format!("[[tenants]]\nname = 'a'\nkey_hashes = ['{secret}']\n"),
        format!("[server]\nadmin_key_hashes = ['{secret}']\n"),
        format!("[[llm.nodes]]\nurl = 'http://a'\napi_key = '{secret}\n"),
    ] {
        assert!(!errors(&bad, &[]).contains(secret), "{}", errors(&bad, &[]));
    }
    assert!(!errors("", &[("EVENKEEL_SERVER_ADMIN_KEY_HASHES", secret)]).contains(secret));
}

#[test]
fn the_effective_configuration_reads_as_the_same_configuration() {
    let env = [
        ("LLMLB_MAX_WAITING", "7"),
        ("EVENKEEL_SERVER_TLS_CERT", "a"),
        ("EVENKEEL_SERVER_TLS_KEY", "b\"\\\u{7f}"),
    ];
    let first =
        Config::read(&sources("[llm]\nfirst_byte_max_secs = 1.5\n[[llm.nodes]]\nurl = 'http://a'\n", &env))
            .unwrap();
    let second = read(&first.effective.to_toml());
    assert_eq!(first.effective.differences(&second.effective), Vec::<String>::new());
    assert_eq!(format!("{:?}", first.llm), format!("{:?}", second.llm));
    assert_eq!(first.server.tls, second.server.tls);
}

#[test]
fn differences_list_the_settings_that_changed() {
    let old = read("[llm]\nfirst_byte_max_secs = 1\n").effective;
    let new = read("[server]\ndrain_secs = 5\n").effective;
    assert_eq!(old.differences(&new), ["server.drain_secs", "llm.first_byte_max_secs"]);
}

#[test]
fn a_tenant_is_read_from_json() {
    let read = |text: &str| read_tenant(serde_json::from_str::<Json>(text).unwrap().as_object().unwrap());
    let tenant = read(r#"{"name": "acme", "weight": 2, "rpm": null, "models": ["a\"b"]}"#).unwrap();
    assert_eq!((tenant.name.as_str(), tenant.rpm, tenant.models[0].as_str()), ("acme", None, "a\"b"));
    for (text, message) in [
        (r#"{"name": "a", "wieght": 1}"#, "unknown key \"wieght\" in [tenants]; did you mean \"weight\"?"),
        (r#"{"name": "a", "weight": "1"}"#, "weight must be a number from 0.01 to 1000"),
        (r#"{"name": "a", "weight": {}}"#, "weight must not be an object"),
        (r#"{"name": "a", "models": [null]}"#, "models must not contain null"),
        (r#"{"name": "a", "set": {"app.a": null}}"#, "set must not contain null"),
        (
            r#"{"name": "a", "set": {"app.a": {"b": 1}}}"#,
            "set must be a table of strings, such as {\"app.tenant\" = \"acme\"}",
        ),
        (r#"{"rpm": 1}"#, "a tenant needs a name"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn an_empty_list_of_keys_is_an_error_and_a_missing_one_is_not() {
    let message = errors("[[tenants]]\nname = 'a'\nkey_hashes = []\n", &[]);
    assert!(
        message.starts_with("evenkeel.toml:3: key_hashes is empty, so no client can authenticate"),
        "{message}"
    );
    assert!(read("[[tenants]]\nname = 'a'\n").tenants[0].keys.is_empty());
}

#[test]
fn an_empty_data_dir_is_an_error() {
    let message = "data_dir must not be empty; \".\" is the working directory";
    assert_eq!(errors("[server]\ndata_dir = ''\n", &[]), format!("evenkeel.toml:2: {message}"));
    assert_eq!(
        errors("", &[("EVENKEEL_SERVER_DATA_DIR", "")]),
        format!("EVENKEEL_SERVER_DATA_DIR: {message}")
    );
}

#[test]
fn a_log_filter_that_would_silence_the_log_is_an_error() {
    for (text, env) in [("[telemetry]\nlog = 'loud'\n", &[][..]), ("", &[("RUST_LOG", "loud")])] {
        let message = errors(text, env);
        assert!(
            message.contains("\"loud\" is not a level (off, error, warn, info, debug or trace)"),
            "{message}"
        );
    }
    for filter in ["info", "WARN", "off", "evenkeel", "info,evenkeel_llm=debug", "hyper=trace,error", ""] {
        read(&format!("[telemetry]\nlog = '{filter}'\n"));
    }
}

proptest! {
    #[test]
    fn reading_never_panics(text in "\\PC{0,200}") {
        let _ = Config::read(&sources(&text, &[]));
    }

    #[test]
    fn written_tenants_read_back_unchanged(
        tenants in proptest::collection::vec(
            (
                "[a-z0-9._@:-]{1,20}",
                0.01_f64..1000.0,
                proptest::option::of(0..u64::MAX / 2),
                proptest::option::of(0_u32..1_000_000),
                proptest::collection::vec("\\PC{1,10}", 0..3),
                proptest::collection::vec(("[a-z]{1,5}\\.[a-z]{1,5}", "\\PC{0,10}"), 0..3),
            ),
            0..5,
        )
    ) {
        let mut settings: Vec<TenantSettings> = Vec::new();
        for (name, weight, rpm, concurrency_max, models, session) in tenants {
            if name == "open" || settings.iter().any(|other| other.name == name) {
                continue;
            }
            let keys = vec![TenantKey::unnamed(KeyHash::of(&name))];
            let weight = Weight::new(weight).unwrap();
            let session: BTreeMap<_, _> = session.into_iter().collect();
            let sql = TenantSql {
                datasources: models.clone(),
                role: models.first().cloned(),
                settings: session.into_iter().collect(),
            };
            settings.push(TenantSettings { name, keys, weight, rpm, concurrency_max, models, sql, ..Default::default() });
        }
        let text = to_toml(&settings);
        let read = read_tenants("x", &text).unwrap();
        prop_assert_eq!(to_toml(&read), text);
        prop_assert_eq!(read.len(), settings.len());
        for (read, written) in read.iter().zip(&settings) {
            prop_assert_eq!(describe(read), describe(written));
        }
    }
}

#[test]
fn traces_are_exported_only_to_a_configured_collector() {
    let read = |text: &str, env: &[(&str, &str)]| Config::read(&sources(text, env)).unwrap().telemetry.traces;
    assert!(read("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).is_none());
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318/otlp"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20YQ==, x-team=llm"),
    ];
    let traces = read("[telemetry]\ntrace_ratio = 0.25\nspans_max = 9\n", &env).unwrap();
    assert_eq!(traces.collector.to_string(), "https://collector:4318/otlp");
    assert_eq!(traces.headers[0].1, "Basic YQ==");
    assert_eq!((traces.options.ratio, traces.options.spans_max), (0.25, 9));
    assert!(!format!("{traces:?}").contains("YQ"), "{traces:?}");
}

#[test]
fn an_invalid_collector_is_an_error() {
    let message = errors("[telemetry]\notlp_endpoint = 'grpc://collector:4317'\notlp_headers = 'key'\n", &[]);
    assert!(message.contains("otlp_endpoint: URL begins with neither http:// nor https://"), "{message}");
    assert!(message.contains("otlp_headers must be NAME=VALUE pairs, separated by commas"), "{message}");
    let message =
        errors("[telemetry]\ntrace_ratio = 1.5\n", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")]);
    assert!(message.contains("OTEL_EXPORTER_OTLP_ENDPOINT: otlp_endpoint: "), "{message}");
    assert!(message.contains("trace_ratio must be from 0 to 1"), "{message}");
}
