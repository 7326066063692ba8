//! Tests of `[sql]` and of the tenants' settings for it.

use super::*;
use crate::config::{Config, ConfigSources, describe, read_tenant, read_tenants};
use evenkeel_policy::score::LimitsConfig;
use serde_json::json;
use std::path::Path;

fn sources(text: &str) -> ConfigSources {
    let file = Some(("evenkeel.toml".to_owned(), text.to_owned()));
    ConfigSources { file, ..ConfigSources::default() }
}

fn read(text: &str) -> Config {
    Config::read(&sources(text)).unwrap()
}

/// Returns the errors, one per line.
fn errors(text: &str) -> String {
    Config::read(&sources(text)).unwrap_err().to_string()
}

/// Returns the numbers of connections: open, in transactions, and HTTP sessions.
fn numbers(datasource: &DatasourceConfig) -> [u32; 3] {
    let options = &datasource.options;
    [options.max_open_conns, options.max_transaction_conns, options.max_http_sessions]
}

#[test]
fn without_datasources_there_is_a_sqlite_file_in_the_data_directory() {
    for text in ["", "[sql]\ndatasources = []\n"] {
        let datasources = read(text).sql.datasources;
        let [main] = &datasources[..] else { panic!("{datasources:?}") };
        assert!(matches!(&main.address, DatabaseAddress::Sqlite(path) if path == Path::new("sql.db")));
        assert_eq!((main.options.name.as_str(), numbers(main)), ("main", [9, 7, 1_000]));
    }
}

#[test]
fn without_settings_the_limits_are_those_of_the_api() {
    let sql = read("").sql;
    assert_eq!((sql.score, sql.redirect), (ScoreConfig::default(), RedirectMode::ByClient));
    assert_eq!(format!("{:?}", sql.limits), format!("{:?}", SqlLimits::default()));
    let queue = sql.pipeline.load.wait_queue;
    assert_eq!((queue.max_waiting, queue.default_timeout), (1_000, Duration::from_secs(30)));
    assert_eq!((queue.warning_threshold, queue.overload_threshold), (0.9, 1.0));
    assert_eq!(sql.pipeline.load.backpressure.max_queue_size, 1_000);
}

#[test]
fn every_setting_is_read() {
    let text = "
        [sql]
        max_waiting = 7
        wait_timeout_secs = 2
        timeout_ms = 100
        timeout_max_ms = 200
        result_bytes_max = 2048
        statements_max = 3
        transaction_idle_secs = 1.5
        transaction_contended_idle_ms = 20
        transaction_secs = 60
        idempotency_entries_max = 4
        idempotency_bytes_max = 4096
        redirect = 'forward'
        [sql.score]
        lat_bad_ms = 100
        err_bad = 0.5
        to_bad = 2
        wait_bad = 3
        uptime_ok = 4
        tx_free_min = 0.25
        tx_wait_max = 5
        top_k = 6
        k = 1.5
        power = 7
        [[sql.datasources]]
        name = 'orders'
        url = 'postgres://app:hunter2@db/orders'
        max_open_conns = 50
        max_transaction_conns = 10
        max_http_sessions = 99
        role = 'app_reader'
        [[sql.datasources]]
        name = 'notes'
        url = 'sqlite:/var/notes.db'
        max_open_conns = 2
    ";
    let SqlConfig { datasources, limits, pipeline, score, redirect } = read(text).sql;
    assert_eq!(redirect, RedirectMode::Forward);
    let thresholds = LimitsConfig {
        lat_bad_ms: 100.0,
        err_bad: 0.5,
        to_bad: 2,
        wait_bad: 3,
        uptime_ok_sec: 4,
        tx_free_min: 0.25,
        tx_wait_max: 5,
        ..LimitsConfig::default()
    };
    assert_eq!(*score.limits.config(), thresholds);
    assert_eq!((score.top_k, score.relative_k, score.power), (6, 1.5, 7));
    assert_eq!(limits.timeout_default, Duration::from_millis(100));
    assert_eq!(limits.timeout_max, Duration::from_millis(200));
    assert_eq!((limits.result_bytes_max, limits.statements_max), (2_048, 3));
    assert_eq!(limits.transaction_idle_max, Duration::from_millis(1_500));
    assert_eq!(limits.transaction_contended_idle_max, Duration::from_millis(20));
    assert_eq!(limits.transaction_time_max, Duration::from_secs(60));
    assert_eq!((limits.idempotency_entries_max, limits.idempotency_bytes_max), (4, 4_096));
    assert_eq!(pipeline.load.wait_queue.max_waiting, 7);
    assert_eq!(numbers(&datasources[0]), [50, 10, 99]);
    assert_eq!(datasources[0].options.role.as_deref(), Some("app_reader"));
    let DatabaseAddress::Postgres(connect) = &datasources[0].address else { panic!("not PostgreSQL") };
    assert_eq!((connect.user(), connect.database()), ("app", "orders"));
    assert_eq!(numbers(&datasources[1]), [2, 1, 1_000]);
}

#[test]
fn the_default_number_of_transactions_is_below_the_number_of_connections() {
    let transactions = |open: u32| {
        let text =
            format!("[[sql.datasources]]\nname = 'a'\nurl = 'postgres://u@h'\nmax_open_conns = {open}\n");
        numbers(&read(&text).sql.datasources[0])[1]
    };
    assert_eq!([1, 2, 5, 20, 10_000].map(transactions), [1, 1, 4, 16, 8_000]);
    assert_eq!(
        numbers(&read("[[sql.datasources]]\nname = 'a'\nurl = 'postgres://u@h'\n").sql.datasources[0]),
        [20, 16, 1_000]
    );
}

#[test]
fn a_lower_maximum_lowers_the_default_timeout() {
    assert_eq!(read("[sql]\ntimeout_max_ms = 500\n").sql.limits.timeout_default, Duration::from_millis(500));
    assert_eq!(
        errors("[sql]\ntimeout_max_ms = 500\ntimeout_ms = 501\n"),
        "evenkeel.toml:3: timeout_ms must be from 1 to 500"
    );
}

#[test]
fn variables_override_the_file() {
    let with_variable = |name: &str, value: &str| {
        let env = [(name.to_owned(), value.to_owned())].into();
        Config::read(&ConfigSources { env, ..sources("[sql]\ntimeout_ms = 5\n") })
    };
    let config = with_variable("EVENKEEL_SQL_TIMEOUT_MS", "7").unwrap();
    assert_eq!(config.sql.limits.timeout_default, Duration::from_millis(7));
    assert_eq!(
        with_variable("EVENKEEL_SQL_TIMOUT_MS", "7").unwrap_err().to_string(),
        "EVENKEEL_SQL_TIMOUT_MS: no setting has this variable; did you mean EVENKEEL_SQL_TIMEOUT_MS?"
    );
}

#[test]
fn a_number_outside_its_range_is_an_error() {
    for (line, message) in [
        ("max_waiting = 1001", "Max waiting must be between 1 and 1000"),
        ("wait_timeout_secs = 0", "Timeout must be between 1 and 300 seconds"),
        ("warning_threshold = 1.0", "Warning threshold must be between 0.0 and 1.0"),
        ("overload_threshold = 0.9", "Overload threshold must be greater than warning"),
        ("timeout_ms = 0", "timeout_ms must be from 1 to 3600000"),
        ("timeout_max_ms = 86400001", "timeout_max_ms must be from 1 to 86400000"),
        ("result_bytes_max = 1", "result_bytes_max must be from 1024 to 1073741824"),
        ("statements_max = 0", "statements_max must be from 1 to 10000"),
        ("transaction_idle_secs = 0", "transaction_idle_secs must be from 0.1 to 3600"),
        ("transaction_contended_idle_ms = -1", "transaction_contended_idle_ms must be from 0 to 3600000"),
        ("transaction_secs = 86401", "transaction_secs must be from 0.1 to 86400"),
        ("idempotency_entries_max = 0", "idempotency_entries_max must be from 1 to 10000000"),
        ("idempotency_bytes_max = 0", "idempotency_bytes_max must be from 1024 to 1099511627776"),
        ("max_wating = 1", "unknown key \"max_wating\" in [sql]; did you mean \"max_waiting\"?"),
    ] {
        assert_eq!(errors(&format!("[sql]\n{line}\n")), format!("evenkeel.toml:2: {message}"), "{line}");
    }
}

#[test]
fn an_invalid_datasource_is_an_error() {
    let postgres = "url = 'postgres://u@h'\nname = 'a'\n";
    let sqlite = "url = 'sqlite:a.db'\nname = 'a'\n";
    for (text, message) in [
        ("url = 'sqlite:a.db'".to_owned(), "1: a datasource needs a name"),
        ("name = 'a'".to_owned(), "1: a datasource needs a url"),
        ("url = 'sqlite:a.db'\nname = 'a b'".to_owned(), "3: a name must be 1 to 64 letters"),
        ("url = 'mysql://u@h'\nname = 'a'".to_owned(), "2: url must begin with sqlite: or postgres://"),
        ("url = 'sqlite::memory:'\nname = 'a'".to_owned(), "2: sqlite::memory: is not supported"),
        ("url = 'postgres://h/d'\nname = 'a'".to_owned(), "2: invalid database URL: the user is missing"),
        (
            "url = 'postgres://u@h/d?sslmod=x'\nname = 'a'".to_owned(),
            "2: invalid database URL: unknown option \"sslmod\"",
        ),
        (format!("{postgres}max_open_conns = 0"), "4: max_open_conns must be from 1 to 10000"),
        (format!("{sqlite}max_open_conns = 1"), "4: max_open_conns must be from 2 to 1025: SQLite has one"),
        (
            format!("{postgres}max_transaction_conns = 20"),
            "4: max_transaction_conns must be from 1 to 19: below max_open_conns (20), so that",
        ),
        (format!("{postgres}max_transaction_conns = 0"), "4: max_transaction_conns must be from 1 to 19"),
        (format!("{postgres}max_http_sessions = 0"), "4: max_http_sessions must be from 1 to 1000000"),
        (format!("{postgres}role = ''"), "4: role must be a name of 1 to 63 bytes other than \"none\""),
        (format!("{sqlite}role = 'x'"), "4: role is for PostgreSQL; SQLite has no roles"),
        (format!("{sqlite}rol = 'x'"), "4: unknown key \"rol\" in [sql.datasources]; did you mean \"role\"?"),
        (
            format!("{sqlite}[[sql.datasources]]\nname = 'a'\nurl = 'postgres://u@h'"),
            "4: two datasources are named \"a\"; the first is at evenkeel.toml:1",
        ),
        (
            format!("{sqlite}[[sql.datasources]]\nname = 'b'\nurl = 'sqlite:./a.db'"),
            "4: two datasources use the same SQLite file, which has one writer; the first is at evenkeel.toml:1",
        ),
    ] {
        let found = errors(&format!("[[sql.datasources]]\n{text}\n"));
        assert!(found.starts_with(&format!("evenkeel.toml:{message}")), "{text}: {found}");
        assert_eq!(found.lines().count(), 1, "{text}: {found}");
    }
}

#[test]
fn the_number_of_datasources_is_limited() {
    let list = |count: usize| -> String {
        (0..count).map(|n| format!("[[sql.datasources]]\nname = 'd{n}'\nurl = 'sqlite:{n}.db'\n")).collect()
    };
    assert_eq!(read(&list(DATASOURCES_MAX)).sql.datasources.len(), DATASOURCES_MAX);
    assert_eq!(errors(&list(DATASOURCES_MAX + 1)), "evenkeel.toml:193: more than 64 datasources");
}

#[test]
fn all_errors_of_datasources_and_tenants_are_reported_at_once() {
    let text = "[sql]\ntimeout_ms = 0\n[[sql.datasources]]\nname = 'a'\nurl = 'x'\nmax_open_conns = 0\n\
                [[tenants]]\nname = 't'\ndatasources = ['b']\n[[tenants]]\nname = 'u'\ndatasources = ['a']\n";
    let lines: Vec<_> =
        errors(text).lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["evenkeel.toml:2", "evenkeel.toml:5", "evenkeel.toml:6", "evenkeel.toml:9"]);
}

#[test]
fn a_password_is_neither_printed_nor_in_errors() {
    let datasource = |url: &str| format!("[[sql.datasources]]\nname = 'a'\nurl = '{url}'\n");
    let config = read(&datasource("postgres://u:hunter2@h/d"));
    let shown = config.effective.to_toml();
    assert!(shown.contains("url = \"postgres://u:[hidden]@h/d\"  # evenkeel.toml:3\n"), "{shown}");
    assert_eq!(numbers(&read(&shown).sql.datasources[0]), numbers(&config.sql.datasources[0]));
    for output in [shown, config.effective.to_json().to_string(), format!("{config:?}")] {
        assert!(!output.contains("hunter2"), "{output}");
    }
    for url in ["postgres://u:hunter2@h:x/d", "mysql://u:hunter2@h/d", "postgres:/u:hunter2@h", "hunter2"] {
        assert!(!errors(&datasource(url)).contains("hunter2"), "{url}");
    }
}

#[test]
fn a_changed_datasource_is_noticed() {
    let text =
        "[[sql.datasources]]\nname = 'a'\nurl = 'postgres://u:one@h/d'\nrole = 'r'\nmax_open_conns = 9\n";
    let old = read(text).sql;
    assert!(old.has_same_datasources(&read(&format!("# a comment\n{text}")).sql));
    for (from, to) in [("one", "two"), ("'a'", "'b'"), ("'r'", "'s'"), ("= 9", "= 8")] {
        assert!(!old.has_same_datasources(&read(&text.replace(from, to)).sql), "{from} to {to}");
    }
    assert!(!old.has_same_datasources(&read("").sql));
    let more = format!("{text}[[sql.datasources]]\nname = 'b'\nurl = 'sqlite:b'\n");
    assert!(!old.has_same_datasources(&read(&more).sql));
}

const POSTGRES_ONLY: &str = "[[sql.datasources]]\nname = 'pg'\nurl = 'postgres://u@h'\n";

#[test]
fn a_tenant_has_datasources_a_role_and_session_settings() {
    let text = format!(
        "{POSTGRES_ONLY}[[tenants]]\nname = 'a'\ndatasources = ['pg']\nrole = 'r'\nset = {{ 'app.tenant' = '7', app_b = '' }}\n"
    );
    let sql = &read(&text).tenants[0].sql;
    assert_eq!((&sql.datasources, sql.role.as_deref()), (&vec!["pg".to_owned()], Some("r")));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(sql.settings, [pair("app.tenant", "7"), pair("app_b", "")]);
    let shown = read(&text).effective.to_toml();
    assert!(shown.contains("set = {\"app.tenant\" = \"7\", \"app_b\" = \"\"}"), "{shown}");
    assert_eq!(read(&shown).tenants[0].sql, *sql);
}

#[test]
fn an_invalid_setting_of_a_tenant_is_an_error() {
    let long = "x".repeat(1_025);
    for (line, message) in [
        ("datasources = ['pg', 'pq']", "datasources must be names of [[sql.datasources]]: \"pg\""),
        ("datasources = ['']", "datasources must list at most 64 names, none of them empty"),
        ("role = 'none'", "role must be a name of 1 to 63 bytes other than \"none\""),
        ("set = 'x'", "set must be a table of strings, such as {\"app.tenant\" = \"acme\"}"),
        ("set = { a = 1 }", "set must be a table of strings, such as {\"app.tenant\" = \"acme\"}"),
        (
            "set = { 'a b' = '1' }",
            "the names in set must be names of PostgreSQL settings, such as \"app.tenant\"",
        ),
        (
            "set = { 'a.' = '1' }",
            "the names in set must be names of PostgreSQL settings, such as \"app.tenant\"",
        ),
        ("set = { Role = 'x' }", "set must not change \"Role\", which the gateway sets itself"),
        (
            "set = { default_transaction_read_only = 'off' }",
            "set must not change \"default_transaction_read_only\", which the gateway sets itself",
        ),
        (
            &format!("set = {{ a = '{long}' }}"),
            "the value of \"a\" in set must have at most 1024 bytes, none of them zero",
        ),
    ] {
        let found = errors(&format!("{POSTGRES_ONLY}[[tenants]]\nname = 'a'\n{line}\n"));
        assert!(found.starts_with(&format!("evenkeel.toml:6: {message}")), "{line}: {found}");
    }
}

#[test]
fn a_tenant_with_a_role_may_not_use_sqlite() {
    let both = format!("{POSTGRES_ONLY}[[sql.datasources]]\nname = 'lite'\nurl = 'sqlite:a.db'\n");
    for line in ["role = 'r'", "set = { 'app.tenant' = 'x' }"] {
        let found = errors(&format!("{both}[[tenants]]\nname = 'a'\n{line}\n"));
        let message =
            "role and set are for PostgreSQL, and the tenant may use the SQLite datasource \"lite\"";
        assert!(found.starts_with(&format!("evenkeel.toml:9: {message}")), "{found}");
        read(&format!("{both}[[tenants]]\nname = 'a'\ndatasources = ['pg']\n{line}\n"));
    }
}

#[test]
fn tenants_outside_of_the_config_file_may_name_datasources_that_it_does_not_have() {
    let settings = json!({"name": "a", "datasources": ["later"], "role": "r", "set": {"app.tenant": "x"}});
    let tenant = read_tenant(settings.as_object().unwrap()).unwrap();
    let described = describe(&tenant);
    for (key, value) in settings.as_object().unwrap() {
        assert_eq!(described.get(key), Some(value));
    }
    let stored = crate::config::to_toml(&[tenant]);
    assert_eq!(describe(&read_tenants("tenants.toml", &stored).unwrap()[0]), described);
}
