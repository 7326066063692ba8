//! Values that go into the database and come back.

use evenkeel_sql::param::{Param, ParamValue};

use super::harness::{ALICE, TestDatabase, Value, number, text, typed};

async fn round_trip(param: Param) -> (Value, Value) {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (v)"]).await;
    let mut writer = database.writer(ALICE).await;
    writer.run_with("INSERT INTO t VALUES (?)", [param]).await.unwrap();
    let collected = writer.run("SELECT v, typeof(v) FROM t").await.unwrap();
    let [row] = collected.rows.as_slice() else { panic!("{collected:?}") };
    (row[0].clone(), row[1].clone())
}

#[tokio::test]
async fn every_storage_class_comes_back_as_it_was_stored() {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let cases = [
        (Param::untyped(ParamValue::Null), Value::Null, "null"),
        (Param::untyped(ParamValue::Bool(true)), Value::Integer(1), "integer"),
        (number("9223372036854775807"), Value::Integer(i64::MAX), "integer"),
        (number("-9223372036854775808"), Value::Integer(i64::MIN), "integer"),
        (number("0"), Value::Integer(0), "integer"),
        (number("1.5"), Value::Real(1.5), "real"),
        (number("5e-324"), Value::Real(5e-324), "real"),
        (number("-1.7976931348623157e308"), Value::Real(f64::MIN), "real"),
        (typed("real", "Infinity"), Value::Real(f64::INFINITY), "real"),
        (typed("real", "-Infinity"), Value::Real(f64::NEG_INFINITY), "real"),
        (text(""), Value::Text(String::new()), "text"),
        (text("grüße 👋🏽 \u{202e}x\0y"), Value::Text("grüße 👋🏽 \u{202e}x\0y".to_owned()), "text"),
        (typed("blob", ""), Value::Blob(Vec::new()), "blob"),
        (typed("blob", &base64_of(&all_bytes)), Value::Blob(all_bytes), "blob"),
        (typed("text", "12345678901234567890.10"), Value::Text("12345678901234567890.10".to_owned()), "text"),
    ];
    for (param, expected, storage_class) in cases {
        let stored = round_trip(param.clone()).await;
        assert_eq!(stored, (expected, Value::Text(storage_class.to_owned())), "{param:?}");
    }
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn nan_becomes_null() {
    assert_eq!(round_trip(typed("real", "NaN")).await.0, Value::Null);
}

#[tokio::test]
async fn a_text_that_is_not_utf8_is_a_blob() {
    let database = TestDatabase::new();
    let mut reader = database.reader(ALICE).await;
    let value = reader.value("SELECT CAST(x'61ff62' AS TEXT)").await;
    assert_eq!(value, Value::Blob(b"a\xffb".to_vec()));
}

/// Texts that change a statement into which they are spliced.
const INJECTIONS: [&str; 14] = [
    "'",
    "''",
    "\"",
    "`",
    "\\'",
    "'; DROP TABLE t; --",
    "' OR '1'='1",
    "1; DELETE FROM t",
    "/* comment */",
    "-- comment\n",
    "\0'; DROP TABLE t; --",
    "') UNION SELECT sql FROM sqlite_schema --",
    "?1 :a @b $c",
    "\u{2019}; DROP TABLE t; --",
];

#[tokio::test]
async fn a_parameter_is_never_read_as_sql() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"]).await;
    let mut writer = database.writer(ALICE).await;
    for (count, injection) in INJECTIONS.into_iter().enumerate() {
        writer.run_with("INSERT INTO t (v) VALUES (?)", [text(injection)]).await.unwrap();
        let found = writer.run_with("SELECT v FROM t WHERE v = ?", [text(injection)]).await.unwrap();
        assert_eq!(found.rows, [[Value::Text(injection.to_owned())]]);
        let rows = i64::try_from(count + 1).unwrap();
        assert_eq!(writer.value("SELECT count(*) FROM t").await, Value::Integer(rows), "{injection:?}");
    }
}

#[tokio::test]
async fn a_column_has_its_declared_type() {
    let database = TestDatabase::new();
    database.setup(&["CREATE TABLE t (a INTEGER, b VARCHAR(10), c, d text)"]).await;
    let mut reader = database.reader(ALICE).await;
    let collected = reader.run("SELECT a, b, c, d AS \"spaced name\", a + 1 FROM t").await.unwrap();
    let columns = collected.columns.unwrap();
    let columns: Vec<_> = columns.iter().map(|column| (column.name.as_str(), &*column.type_name)).collect();
    let expected =
        [("a", "INTEGER"), ("b", "VARCHAR(10)"), ("c", ""), ("spaced name", "TEXT"), ("a + 1", "")];
    assert_eq!(columns, expected);
    assert!(collected.rows.is_empty());
}
