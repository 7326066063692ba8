//! `evenkeel sql` against a running server.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::{CommandOutput, TestDir};

/// Starts a server with a table of two rows.
fn start(name: &str) -> (TestDir, ServerProcess) {
    let dir = TestDir::new(name);
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["sql", "create table t (id integer primary key, name text)"]).ok();
    dir.run(&["sql", "insert into t (name) values (?), (?)", "--param", "ann", "--param", "null"]).ok();
    (dir, server)
}

#[test]
fn a_result_is_a_table() {
    let (dir, _server) = start("sql-cli-table");
    let table = dir.run(&["sql", "select id, name from t order by id"]).ok();
    assert_eq!(table, "id  name\n1   ann\n2   NULL\n");
    assert_eq!(dir.run(&["sql", "select id from t where id > 9"]).ok(), "id\n");
    let updated = dir.run(&["sql", "update t set name = 'x\ny' where id = ? returning name", "--param", "2"]);
    assert_eq!(updated.ok(), "name\nx\\ny\n");
    let deleted = dir.run(&["sql", "delete from t"]);
    assert_eq!((deleted.code, deleted.out.as_str()), (Some(0), ""));
    assert_eq!(deleted.err, "DELETE: 2 rows affected\n");
    assert_eq!(dir.run(&["sql", "select count(*) as n from t"]).ok(), "n\n0\n");
}

#[test]
fn json_is_one_line_per_row_and_a_summary() {
    let (dir, _server) = start("sql-cli-json");
    let printed = dir.run(&["sql", "--json", "select id, name from t order by id"]).ok();
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["columns"][1]["name"], "name");
    assert_eq!(lines[1..3], [json!([1, "ann"]), json!([2, null])]);
    assert_eq!((lines.len(), &lines[3]["rowCount"]), (4, &json!(2)));
}

#[test]
fn csv_is_printed_as_it_is_and_a_cut_is_an_error() {
    let (dir, _server) = start("sql-cli-csv");
    let printed = dir.run(&["sql", "--csv", "select id, name, '' as e from t order by id"]).ok();
    assert_eq!(printed, "id,name,e\r\n1,ann,\"\"\r\n2,,\"\"\r\n");
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n limit 30000) \
               select i, printf('%0100d', i), case when i = 20000 then abs(-9223372036854775807 - 1) end from n";
    let cut = dir.run(&["sql", "--csv", sql]);
    assert_eq!(cut.code, Some(1), "{}", cut.err);
    assert!(cut.out.starts_with("i,"), "{}", cut.out.len());
}

#[test]
fn a_long_result_is_streamed() {
    let (dir, _server) = start("sql-cli-long");
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000) \
               select i, printf('%0100d', i) from n";
    let printed = dir.run(&["sql", "--json", sql]).ok();
    assert!(printed.len() > 16 << 20, "longer than the limit of a result that is not streamed");
    let last: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!((printed.lines().count(), &last["rowCount"]), (300_002, &json!(300_000)));
}

#[test]
fn a_statement_is_read_from_standard_input() {
    let (dir, _server) = start("sql-cli-stdin");
    let run = |statement: &str| {
        let mut command = dir.command(&["sql", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Fails if the command stops reading, which is asserted below.
        let _ = child.stdin.take().unwrap().write_all(statement.as_bytes());
        CommandOutput::new(child.wait_with_output().unwrap())
    };
    assert_eq!(run("-- count\nselect count(*) as n\nfrom t\n").ok(), "n\n2\n");
    let too_long = run(&"x".repeat((1 << 20) + 1)).failed();
    assert_eq!(too_long, "evenkeel: the statement is longer than 1048576 bytes\n");
}

#[test]
fn parameters_are_bound_and_keep_their_type() {
    let (dir, _server) = start("sql-cli-params");
    let sql = "select typeof(?1) a, typeof(?2) b, typeof(?3) c, ?4 d";
    let params = ["--param", "-5", "--param", "1.5", "--param", "\"7\"", "--param", "'; drop table t; --"];
    let printed = dir.run(&[&["sql", sql], &params[..]].concat()).ok();
    assert_eq!(printed, "a        b     c     d\ninteger  real  text  '; drop table t; --\n");
}

#[test]
fn errors_have_code_message_and_position() {
    let (dir, server) = start("sql-cli-errors");
    let error = |args: &[&str]| dir.run(&[&["sql"], args].concat()).failed();
    assert_eq!(
        error(&["select id,\n  nam from t"]),
        "evenkeel: 42703: no such column: nam\n  at line 2, column 3:\n      nam from t\n      ^\n"
    );
    let missing = error(&["select * from missing"]);
    assert!(missing.starts_with("evenkeel: 42P01: no such table: missing\n"), "{missing}");
    let read_only = error(&["with x as (select 9) insert into t select *, null from x"]);
    assert!(read_only.starts_with("evenkeel: 25006: "), "{read_only}");
    assert!(read_only.ends_with("  use --write to let the statement write\n"), "{read_only}");
    dir.run(&["sql", "--write", "with x as (select 9) insert into t select *, null from x"]).ok();
    let unknown = error(&["--database", "other", "select 1"]);
    assert_eq!(unknown, "evenkeel: unknown_database: there is no database \"other\"\n");
    let slow = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
    assert!(error(&["--timeout-ms", "50", slow]).starts_with("evenkeel: 57014: "));

    let key = dir.run(&["tenant", "add", "acme"]).ok();
    let no_key = error(&["select 1"]);
    assert!(no_key.ends_with("  set EVENKEEL_API_KEY to the API key of a tenant\n"), "{no_key}");
    assert_eq!(dir.run(&["sql", "--api-key", key.trim(), "select 1 as n"]).ok(), "n\n1\n");
    let url = format!("http://{}", server.address);
    let mut command = dir.command(&["sql", "--url", &url, "select 1 as n"]);
    let by_variable = CommandOutput::new(command.env("EVENKEEL_API_KEY", key.trim()).output().unwrap());
    assert_eq!(by_variable.ok(), "n\n1\n");
}

#[test]
fn a_closed_pipe_does_not_undo_a_statement_that_writes() {
    let (dir, server) = start("sql-cli-pipe");
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) \
               insert into t (name) select printf('%0100d', i) from n returning id, name";
    let mut command = dir.command(&["sql", "--json", "--write", sql]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(super::query(&server, "select count(*) from t"), json!([[50_002]]));
}

#[test]
fn a_missing_statement_is_a_usage_error() {
    let dir = TestDir::new("sql-cli-usage");
    let output = dir.run(&["sql"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("<STATEMENT>"), "{output:?}");
}
