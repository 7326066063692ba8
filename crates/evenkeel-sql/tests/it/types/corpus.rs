//! Values of every type that PostgreSQL has built in, in the text form in which it writes them, with their JSON form.

use serde_json::{Value, json};

/// Base types that PostgreSQL only writes: they have no input, so no parameter can have them.
pub(super) const UNREADABLE: [&str; 7] = [
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
];

/// A type and values of it.
pub(super) struct TypeCase {
    pub(super) name: &'static str,
    /// Text of a value, and its JSON form in a result.
    pub(super) values: Vec<(String, Value)>,
}

impl TypeCase {
    /// Values that are JSON strings with PostgreSQL's text.
    fn strings(name: &'static str, texts: &[&str]) -> Self {
        Self { name, values: texts.iter().map(|text| ((*text).to_owned(), json!(text))).collect() }
    }

    /// Values that are JSON numbers, except those that JSON does not have.
    fn numbers(name: &'static str, texts: &[&str]) -> Self {
        let number = |text: &&str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        Self { name, values: texts.iter().map(|text| ((*text).to_owned(), number(text))).collect() }
    }

    pub(super) fn is_json(&self) -> bool {
        matches!(self.name, "json" | "jsonb")
    }

    /// Reports whether `array_agg` makes arrays of the type; for the others, which are arrays themselves, it adds a dimension.
    pub(super) fn has_arrays(&self) -> bool {
        !matches!(self.name, "int2vector" | "oidvector")
    }

    /// Reports whether arrays of the type are JSON arrays; the others stay in PostgreSQL's text form.
    pub(super) fn has_json_arrays(&self) -> bool {
        self.name != "box"
    }

    /// Returns the value of a parameter that names its type.
    pub(super) fn typed_value(&self, literal: &str) -> Value {
        if self.is_json() { serde_json::from_str(literal).unwrap() } else { json!(literal) }
    }

    /// Returns the number of rows in the type's table at the end.
    pub(super) fn rows(&self) -> usize {
        let (ways, nulls, arrays) = if self.is_json() { (4, 1, 2) } else { (5, 2, 3) };
        ways * self.values.len() + nulls + if self.has_arrays() { arrays } else { 0 }
    }
}

pub(super) fn all() -> Vec<TypeCase> {
    let mut cases = numbers();
    cases.extend(texts());
    cases.extend(times());
    cases.extend(shapes_and_addresses());
    cases.extend(documents());
    cases.extend(ranges());
    cases.extend(catalog_names());
    cases
}

fn numbers() -> Vec<TypeCase> {
    let digits = "1234567890".repeat(10);
    let long = [digits.as_str(), &format!("-{digits}.{digits}"), &format!("0.{}1", "0".repeat(99))];
    let numeric = ["0", "-1.50", "NaN", "Infinity", "-Infinity"];
    vec![
        TypeCase {
            name: "bool",
            values: vec![("true".to_owned(), json!(true)), ("false".to_owned(), json!(false))],
        },
        TypeCase::numbers("int2", &["0", "-32768", "32767"]),
        TypeCase::numbers("int4", &["0", "-2147483648", "2147483647"]),
        TypeCase::strings("int8", &["0", "-9223372036854775808", "9223372036854775807", "9007199254740993"]),
        TypeCase::strings("numeric", &numeric.into_iter().chain(long).collect::<Vec<_>>()),
        TypeCase::numbers(
            "float4",
            &["0", "-0", "1.5", "3.4028235e+38", "1e-45", "NaN", "Infinity", "-Infinity"],
        ),
        TypeCase::numbers(
            "float8",
            &["0", "-0", "0.1", "1.7976931348623157e+308", "5e-324", "NaN", "Infinity", "-Infinity"],
        ),
        TypeCase::numbers("oid", &["0", "4294967295"]),
        TypeCase::strings("money", &["$0.00", "-$92,233,720,368,547,758.08", "$92,233,720,368,547,758.07"]),
        TypeCase::strings("bit", &["0", "1"]),
        TypeCase::strings("varbit", &["", "1", "0101010101010101010101010101010101"]),
        TypeCase::strings("xid", &["0", "4294967295"]),
        TypeCase::strings("xid8", &["0", "18446744073709551615"]),
        TypeCase::strings("cid", &["0", "4294967295"]),
        TypeCase::strings("tid", &["(0,0)", "(4294967295,65535)"]),
        TypeCase::strings("pg_lsn", &["0/0", "FFFFFFFF/FFFFFFFF"]),
        TypeCase::strings("pg_snapshot", &["10:20:10,14,15", "1:1:"]),
        TypeCase::strings("txid_snapshot", &["10:20:10,14,15", "1:1:"]),
        TypeCase::strings("int2vector", &["", "1 -2 3"]),
        TypeCase::strings("oidvector", &["", "1 2 3"]),
    ]
}

fn texts() -> Vec<TypeCase> {
    let texts = [
        "",
        " ",
        "NULL",
        "null",
        "{}",
        "{a,b}",
        "'\"\\",
        "\\\\",
        "é\u{1f980}\u{200b}",
        "a\tb\nc\r\n",
        "\u{1}\u{7f}",
    ];
    vec![
        TypeCase::strings("text", &texts),
        TypeCase::strings("varchar", &texts),
        TypeCase::strings("bpchar", &["", "a", "a  b", "é\"\\"]),
        TypeCase::strings("\"char\"", &["a", "\"", "\\"]),
        TypeCase::strings("name", &["", "pg_class", "O'Hara \"x\" \\"]),
        TypeCase::strings("refcursor", &["", "<unnamed portal 1>"]),
        TypeCase::strings("bytea", &["\\x", "\\x00", "\\x00ff5c27220a"]),
        TypeCase::strings(
            "uuid",
            &["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
        ),
    ]
}

fn times() -> Vec<TypeCase> {
    vec![
        TypeCase::strings("date", &["2024-02-29", "4713-01-01 BC", "5874897-12-31", "infinity", "-infinity"]),
        TypeCase::strings("time", &["00:00:00", "23:59:59.999999", "24:00:00"]),
        TypeCase::strings("timetz", &["00:00:00+00", "23:59:59.999999-15:59:59"]),
        TypeCase::strings(
            "timestamp",
            &["2024-02-29 23:59:59.999999", "4713-01-01 00:00:00 BC", "infinity", "-infinity"],
        ),
        TypeCase::strings(
            "timestamptz",
            &["2024-02-29 23:59:59.999999+00", "0001-01-01 00:00:00+00", "infinity", "-infinity"],
        ),
        TypeCase::strings(
            "interval",
            &["00:00:00", "1 year 2 mons 3 days 04:05:06.000007", "-1 years -2 mons +3 days -04:05:06.789"],
        ),
    ]
}

fn shapes_and_addresses() -> Vec<TypeCase> {
    vec![
        TypeCase::strings("point", &["(0,-0)", "(1.5,1e-300)", "(Infinity,NaN)"]),
        TypeCase::strings("lseg", &["[(0,0),(1,-1)]"]),
        TypeCase::strings("box", &["(1,1),(0,0)", "(2.5,3),(-1,-1)"]),
        TypeCase::strings("path", &["((0,0),(1,1))", "[(0,0),(1,1),(2,0)]"]),
        TypeCase::strings("polygon", &["((0,0),(1,1),(2,0))"]),
        TypeCase::strings("line", &["{1,-1,0}"]),
        TypeCase::strings("circle", &["<(0,0),1.5>"]),
        TypeCase::strings("inet", &["192.168.0.1", "10.1.2.3/8", "::1", "2001:db8::ff00:42:8329/64"]),
        TypeCase::strings("cidr", &["10.0.0.0/8", "2001:db8::/32"]),
        TypeCase::strings("macaddr", &["08:00:2b:01:02:03"]),
        TypeCase::strings("macaddr8", &["08:00:2b:01:02:03:04:05"]),
    ]
}

fn documents() -> Vec<TypeCase> {
    vec![
        TypeCase::strings("json", &["null", "{\"a\":[1,null,\"x\\\"y\"]}", "\"text\"", "1.5", "true", "[]"]),
        TypeCase::strings(
            "jsonb",
            &["null", "{\"a\": [1, null, \"x\\\"y\"]}", "\"text\"", "1.5", "true", "[]"],
        ),
        TypeCase::strings("jsonpath", &["$.\"a\"[*]?(@ > 1)"]),
        TypeCase::strings("xml", &["<a b=\"c\">é &amp; '</a>", "text"]),
        TypeCase::strings("tsvector", &["", "'a':1A 'it''s':2", "'\\\\'"]),
        TypeCase::strings("tsquery", &["", "'a' & !( 'b' | 'it''s' )"]),
    ]
}

fn ranges() -> Vec<TypeCase> {
    vec![
        TypeCase::strings("int4range", &["empty", "[1,5)", "(,)"]),
        TypeCase::strings("int8range", &["empty", "[-9223372036854775808,9223372036854775807)"]),
        TypeCase::strings("numrange", &["[1.50,2]", "(-Infinity,Infinity)"]),
        TypeCase::strings("daterange", &["[2024-01-01,2024-02-01)", "[-infinity,infinity)"]),
        TypeCase::strings("tsrange", &["[\"2024-01-01 00:00:00\",\"2024-01-02 00:00:00\"]"]),
        TypeCase::strings("tstzrange", &["(\"2024-01-01 00:00:00+00\",)"]),
        TypeCase::strings("int4multirange", &["{}", "{[1,5),[7,9)}"]),
        TypeCase::strings("int8multirange", &["{[1,9223372036854775807)}"]),
        TypeCase::strings("nummultirange", &["{[1.50,2],(3,)}"]),
        TypeCase::strings("datemultirange", &["{[2024-01-01,2024-02-01)}"]),
        TypeCase::strings("tsmultirange", &["{[\"2024-01-01 00:00:00\",\"2024-01-02 00:00:00\"]}"]),
        TypeCase::strings("tstzmultirange", &["{(\"2024-01-01 00:00:00+00\",)}"]),
    ]
}

fn catalog_names() -> Vec<TypeCase> {
    vec![
        TypeCase::strings("aclitem", &["postgres=r*w/postgres", "=r/postgres"]),
        TypeCase::strings("regclass", &["-", "pg_class"]),
        TypeCase::strings("regcollation", &["-", "\"C\""]),
        TypeCase::strings("regconfig", &["-", "english"]),
        TypeCase::strings("regdictionary", &["-", "simple"]),
        TypeCase::strings("regnamespace", &["-", "pg_catalog"]),
        TypeCase::strings("regoper", &["0", "?&"]),
        TypeCase::strings("regoperator", &["0", "+(integer,integer)"]),
        TypeCase::strings("regproc", &["-", "now"]),
        TypeCase::strings("regprocedure", &["-", "abs(integer)"]),
        TypeCase::strings("regrole", &["-", "postgres"]),
        TypeCase::strings("regtype", &["-", "double precision"]),
    ]
}
