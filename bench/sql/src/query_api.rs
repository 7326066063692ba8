//! The forms in which the HTTP contenders take a query: path, accepted type of the result, and body.

use memchr::memmem;

use crate::case::{RESULT_ROWS, SqlCase};

/// Room for the digits of an account's number, so that the length of a request never changes.
pub(crate) const PARAM_WIDTH: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryApi {
    /// Evenkeel's own API on PostgreSQL.
    Postgres,
    /// The same with a result that is streamed as lines.
    PostgresLines,
    /// Evenkeel's own API on SQLite.
    Sqlite,
    /// Hrana over HTTP, as the clients of libSQL send it: one statement on a stream that the same request closes.
    Hrana,
}

/// Body of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct QueryBody {
    pub(crate) text: String,
    /// Position of the parameter, counted from the end; `None` if the query has no parameter.
    pub(crate) param_from_end: Option<usize>,
}

impl QueryApi {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Postgres | Self::PostgresLines | Self::Sqlite => "/query",
            Self::Hrana => "/v2/pipeline",
        }
    }

    pub(crate) fn accept(self) -> &'static str {
        match self {
            Self::Postgres | Self::Sqlite | Self::Hrana => "application/json",
            Self::PostgresLines => "application/x-ndjson",
        }
    }

    pub(crate) fn body(self, case: SqlCase) -> QueryBody {
        match case {
            SqlCase::Lookup { .. } => self.lookup(),
            SqlCase::Rows => {
                let sql = format!("select * from pgbench_accounts limit {RESULT_ROWS}");
                QueryBody { text: self.statement(&sql, ""), param_from_end: None }
            }
        }
    }

    fn lookup(self) -> QueryBody {
        let placeholder = match self {
            Self::Postgres | Self::PostgresLines => "$1",
            Self::Sqlite | Self::Hrana => "?1",
        };
        let mut number = [0; PARAM_WIDTH];
        self.write_param(1, &mut number);
        let number = String::from_utf8_lossy(&number);
        let param = match self {
            Self::Postgres | Self::PostgresLines | Self::Sqlite => number.to_string(),
            Self::Hrana => format!(r#"{{"type":"integer","value":"{number}"}}"#),
        };
        let sql = format!("select abalance from pgbench_accounts where aid = {placeholder}");
        let text = self.statement(&sql, &param);
        let param_from_end = text.rfind(&*number).map(|start| text.len() - start);
        QueryBody { text, param_from_end }
    }

    fn statement(self, sql: &str, params: &str) -> String {
        match self {
            Self::Postgres | Self::PostgresLines | Self::Sqlite => {
                format!(r#"{{"sql":"{sql}","params":[{params}]}}"#)
            }
            Self::Hrana => hrana(sql, params),
        }
    }

    /// Writes a parameter right-aligned: JSON ignores spaces before a number, and Hrana's strings may begin with zeros.
    pub(crate) fn write_param(self, mut number: u64, field: &mut [u8]) {
        let padding = match self {
            Self::Postgres | Self::PostgresLines | Self::Sqlite => b' ',
            Self::Hrana => b'0',
        };
        for byte in field.iter_mut().rev() {
            *byte = if number == 0 { padding } else { b'0' + (number % 10) as u8 };
            number /= 10;
        }
    }

    /// Reports whether a body has the expected result: a balance of 0, or all rows.
    pub(crate) fn is_expected(self, body: &[u8], case: SqlCase) -> bool {
        let expected = match (case, self) {
            (SqlCase::Lookup { .. }, Self::Postgres | Self::Sqlite) => "[[0]]".to_owned(),
            (SqlCase::Lookup { .. }, Self::PostgresLines) => "[0]".to_owned(),
            (SqlCase::Lookup { .. }, Self::Hrana) => r#"[[{"type":"integer","value":"0"}]]"#.to_owned(),
            (SqlCase::Rows, Self::Hrana) => format!(r#"[{{"type":"integer","value":"{RESULT_ROWS}"}},"#),
            (SqlCase::Rows, Self::Postgres | Self::PostgresLines | Self::Sqlite) => {
                format!("\"rowCount\":{RESULT_ROWS}")
            }
        };
        memmem::find(body, expected.as_bytes()).is_some()
    }
}

/// Builds the body of a Hrana pipeline that executes one statement.
pub(crate) fn hrana(sql: &str, args: &str) -> String {
    format!(
        r#"{{"requests":[{{"type":"execute","stmt":{{"sql":"{sql}","args":[{args}]}}}},{{"type":"close"}}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: SqlCase = SqlCase::Lookup { connections: 1 };

    #[test]
    fn a_parameter_fills_its_field() {
        let mut field = *b"0123456789";
        QueryApi::Sqlite.write_param(905, &mut field);
        assert_eq!(&field, b"       905");
        QueryApi::Hrana.write_param(1_000_000, &mut field);
        assert_eq!(&field, b"0001000000");
    }

    #[test]
    fn the_parameter_is_where_the_body_says() {
        for (api, expected) in [
            (QueryApi::Postgres, r#"aid = $1","params":[        77]}"#),
            (QueryApi::Hrana, r#"[{"type":"integer","value":"0000000077"}]}},{"type":"close"}]}"#),
        ] {
            let QueryBody { text, param_from_end } = api.body(LOOKUP);
            let mut bytes = text.into_bytes();
            let start = bytes.len() - param_from_end.unwrap();
            api.write_param(77, &mut bytes[start..start + PARAM_WIDTH]);
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.ends_with(expected), "{text}");
        }
        assert_eq!(QueryApi::Hrana.body(SqlCase::Rows).param_from_end, None);
    }

    #[test]
    fn results_of_another_query_are_rejected() {
        for (api, case, body, expected) in [
            (QueryApi::Postgres, LOOKUP, r#"{"rows":[[0]],"rowCount":1}"#, true),
            (QueryApi::Postgres, LOOKUP, r#"{"rows":[],"rowCount":0}"#, false),
            (QueryApi::Hrana, LOOKUP, r#"{"rows":[[{"type":"integer","value":"0"}]]}"#, true),
            (QueryApi::Hrana, LOOKUP, r#"{"rows":[],"affected_row_count":0}"#, false),
            (QueryApi::Sqlite, SqlCase::Rows, r#"{"rows":[],"rowCount":5000}"#, true),
            (QueryApi::PostgresLines, SqlCase::Rows, r#"{"rows":[],"rowCount":4999}"#, false),
            (QueryApi::Hrana, SqlCase::Rows, r#"[{"type":"integer","value":"4999"},"#, false),
        ] {
            assert_eq!(api.is_expected(body.as_bytes(), case), expected, "{body}");
        }
    }
}
