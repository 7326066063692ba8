//! Bodies of requests: parsed once, every mistake reported as a sentence.

use core::fmt;
use core::marker::PhantomData;
use std::time::Duration;

use evenkeel_server::api_error::ApiError;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::datasource::{AccessMode, BeginOptions, Isolation, Statement};
use crate::options::SqlLimits;
use crate::param::Param;

/// Longest SQL text of a statement.
pub(crate) const SQL_BYTES_MAX: usize = 1 << 20;
/// Statements of a list that are read before `statements_max` is checked.
pub(crate) const STATEMENTS_READ_MAX: usize = 10_000;
/// Most parameters of a statement; PostgreSQL's own limit.
pub(crate) const PARAMS_MAX: usize = 65_535;

/// A parsed body of `/query` or `/execute`.
#[derive(Debug)]
pub(crate) struct StatementRequest {
    pub(crate) statements: Statements,
    /// Name of the datasource; `None` means the default.
    pub(crate) database: Option<String>,
    pub(crate) tx_id: Option<String>,
    pub(crate) timeout: Duration,
    /// Rows after which a result is cut.
    pub(crate) rows_max: Option<u64>,
}

/// The statements of a request.
#[derive(Debug)]
pub(crate) enum Statements {
    One(Statement),
    /// A list, run in one transaction.
    List(Vec<Statement>),
}

impl Statements {
    /// Lets the engine end queries after `rows_max` rows.
    pub(crate) fn set_rows_max(&mut self, rows_max: Option<u64>) {
        let statements = match self {
            Self::One(statement) => core::slice::from_mut(statement),
            Self::List(list) => list,
        };
        for statement in statements {
            statement.rows_max = rows_max;
        }
    }
}

/// A parsed body of `/tx/begin`.
#[derive(Debug)]
pub(crate) struct BeginRequest {
    pub(crate) database: Option<String>,
    pub(crate) options: BeginOptions,
    pub(crate) timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StatementBody<'a> {
    sql: Option<String>,
    #[serde(borrow, default)]
    params: Option<BoundedList<&'a RawValue, PARAMS_MAX>>,
    #[serde(borrow)]
    statements: Option<BoundedList<ListedStatement<'a>, STATEMENTS_READ_MAX>>,
    database: Option<String>,
    tx_id: Option<String>,
    timeout_ms: Option<u64>,
    max_rows: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedStatement<'a> {
    sql: String,
    #[serde(borrow, default)]
    params: Option<BoundedList<&'a RawValue, PARAMS_MAX>>,
}

/// A list that is rejected while it is read once it has more than `MAX` elements, so that it cannot use up memory.
pub(crate) struct BoundedList<T, const MAX: usize>(pub(crate) Vec<T>);

impl<T, const MAX: usize> Default for BoundedList<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedList<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = BoundedList<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(BoundedList(list))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct BeginBody {
    database: Option<String>,
    isolation: Option<String>,
    read_only: Option<bool>,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EndBody {
    tx_id: String,
}

impl StatementRequest {
    pub(crate) fn parse(body: &[u8], limits: &SqlLimits) -> Result<Self, ApiError> {
        let body: StatementBody<'_> = parse_json(body)?;
        let timeout = timeout(body.timeout_ms, limits)?;
        let statements = match (body.sql, body.statements) {
            (Some(sql), None) => Statements::One(statement(sql, body.params, timeout, "")?),
            (None, Some(list)) => {
                if body.params.is_some() {
                    return Err(invalid("params", "params belong to each statement of a list"));
                }
                Statements::List(statement_list(list.0, timeout, limits)?)
            }
            (Some(_), Some(_)) => {
                return Err(invalid("statements", "give either sql or statements, not both"));
            }
            (None, None) => return Err(invalid("sql", "sql is missing")),
        };
        let is_list = matches!(statements, Statements::List(_));
        if is_list && body.tx_id.is_some() {
            return Err(invalid("statements", "a list is a transaction of its own, so it takes no txId"));
        }
        if body.tx_id.is_some() && body.database.is_some() {
            return Err(invalid("database", "a transaction has its own database; leave out database"));
        }
        Ok(Self { statements, database: body.database, tx_id: body.tx_id, timeout, rows_max: body.max_rows })
    }
}

impl BeginRequest {
    pub(crate) fn parse(body: &[u8], limits: &SqlLimits) -> Result<Self, ApiError> {
        // A begin needs no settings, so it needs no body.
        let body: BeginBody = if body.is_empty() { parse_json(b"{}")? } else { parse_json(body)? };
        let isolation = match body.isolation.as_deref() {
            None => None,
            Some("read committed") => Some(Isolation::ReadCommitted),
            Some("repeatable read") => Some(Isolation::RepeatableRead),
            Some("serializable") => Some(Isolation::Serializable),
            Some(_) => {
                let message = "isolation must be \"read committed\", \"repeatable read\" or \"serializable\"";
                return Err(invalid("isolation", message));
            }
        };
        let access = if body.read_only == Some(true) { AccessMode::ReadOnly } else { AccessMode::ReadWrite };
        let options = BeginOptions { isolation, access };
        Ok(Self { database: body.database, options, timeout: timeout(body.timeout_ms, limits)? })
    }
}

/// Reads the transaction id of `/tx/commit` or `/tx/rollback`.
pub(crate) fn parse_end(body: &[u8]) -> Result<String, ApiError> {
    parse_json::<EndBody>(body).map(|body| body.tx_id)
}

pub(crate) fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("invalid JSON body: {error}")))
}

fn statement_list(
    list: Vec<ListedStatement<'_>>,
    timeout: Duration,
    limits: &SqlLimits,
) -> Result<Vec<Statement>, ApiError> {
    if list.is_empty() || limits.statements_max < list.len() {
        let message = format!("statements must have 1 to {} entries", limits.statements_max);
        return Err(invalid("statements", message));
    }
    let parsed = list.into_iter().enumerate().map(|(index, listed)| {
        statement(listed.sql, listed.params, timeout, &format!("statements[{index}]."))
    });
    parsed.collect()
}

/// Checks a statement; `path` is the position of its fields in the body.
fn statement(
    sql: String,
    params: Option<BoundedList<&RawValue, PARAMS_MAX>>,
    timeout: Duration,
    path: &str,
) -> Result<Statement, ApiError> {
    let params = params.unwrap_or_default().0;
    check_statement(&sql, params.len(), path)?;
    let parse = |(index, json): (usize, &RawValue)| {
        Param::parse(json).map_err(|error| {
            invalid(&format!("{path}params[{index}]"), format!("parameter {} {error}", index + 1))
        })
    };
    let params = params.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    Ok(Statement { sql, params, time_max: timeout, rows_max: None })
}

/// Rejects a statement that no database could run, or that is beyond the limits.
pub(crate) fn check_statement(sql: &str, params: usize, path: &str) -> Result<(), ApiError> {
    if sql.trim().is_empty() {
        return Err(invalid(&format!("{path}sql"), "sql is empty"));
    }
    if SQL_BYTES_MAX < sql.len() {
        return Err(invalid(&format!("{path}sql"), format!("sql is longer than {SQL_BYTES_MAX} bytes")));
    }
    // PostgreSQL's protocol ends texts with a NUL.
    if sql.contains('\0') {
        return Err(invalid(&format!("{path}sql"), "sql contains a NUL character"));
    }
    if PARAMS_MAX < params {
        return Err(invalid(&format!("{path}params"), format!("more than {PARAMS_MAX} params")));
    }
    Ok(())
}

fn timeout(millis: Option<u64>, limits: &SqlLimits) -> Result<Duration, ApiError> {
    let Some(millis) = millis else { return Ok(limits.timeout_default) };
    let timeout = Duration::from_millis(millis);
    if timeout.is_zero() || limits.timeout_max < timeout {
        let message = format!("timeoutMs must be from 1 to {}", limits.timeout_max.as_millis());
        return Err(invalid("timeoutMs", message));
    }
    Ok(timeout)
}

pub(crate) fn invalid(param: &str, message: impl Into<String>) -> ApiError {
    ApiError::Invalid { message: message.into(), param: Some(param.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<StatementRequest, String> {
        StatementRequest::parse(body.as_bytes(), &SqlLimits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_statement_has_defaults() {
        let request = parse(r#"{"sql": "select 1"}"#).unwrap();
        assert!(
            matches!(&request.statements, Statements::One(one) if one.sql == "select 1" && one.params.is_empty())
        );
        assert_eq!(request.timeout, SqlLimits::default().timeout_default);
        assert_eq!((request.database, request.tx_id, request.rows_max), (None, None, None));
    }

    #[test]
    fn a_list_keeps_its_order() {
        let request = parse(r#"{"statements": [{"sql": "a", "params": [1]}, {"sql": "b"}]}"#).unwrap();
        let Statements::List(list) = request.statements else { panic!("not a list") };
        assert_eq!(
            list.iter().map(|one| (one.sql.as_str(), one.params.len())).collect::<Vec<_>>(),
            [("a", 1), ("b", 0)]
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (body, message) in [
            ("{", "invalid JSON body"),
            ("{}", "sql is missing"),
            (r#"{"sql": ""}"#, "sql is empty"),
            (r#"{"sql": "a\u0000b"}"#, "NUL"),
            (r#"{"sql": "a", "statements": []}"#, "not both"),
            (r#"{"statements": []}"#, "1 to 100 entries"),
            (r#"{"sql": "a", "timeoutMs": 0}"#, "timeoutMs must be from 1 to 3600000"),
            (r#"{"sql": "a", "timeoutMs": 3600001}"#, "timeoutMs must be"),
            (r#"{"sql": "a", "maxrows": 1}"#, "unknown field `maxrows`"),
            (r#"{"sql": "a", "params": [{"x": 1}]}"#, "parameter 1 must be null"),
            (r#"{"sql": "a", "params": {"x": 1}}"#, "invalid type: map, expected a list"),
            (r#"{"statements": [{"sql": "a"}], "params": [1]}"#, "params belong to each statement"),
            (r#"{"statements": [{"sql": "a"}], "txId": "x"}"#, "takes no txId"),
            (r#"{"sql": "a", "txId": "x", "database": "d"}"#, "leave out database"),
        ] {
            let error = parse(body).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
    }

    #[test]
    fn the_limits_are_reached() {
        let sql = |len: usize| parse(&format!(r#"{{"sql": "{}"}}"#, "x".repeat(len)));
        assert!(sql(SQL_BYTES_MAX).is_ok());
        assert!(sql(SQL_BYTES_MAX + 1).is_err());
        let params =
            |len: usize| parse(&format!(r#"{{"sql": "x", "params": [{}]}}"#, vec!["1"; len].join(",")));
        assert!(params(PARAMS_MAX).is_ok());
        assert!(params(PARAMS_MAX + 1).is_err());
        let list =
            |len: usize| parse(&format!(r#"{{"statements": [{}]}}"#, vec![r#"{"sql": "x"}"#; len].join(",")));
        assert!(list(100).is_ok());
        assert!(list(101).is_err());
    }

    #[test]
    fn a_begin_needs_no_body_and_rejects_an_unknown_isolation() {
        let begin = |body: &str| BeginRequest::parse(body.as_bytes(), &SqlLimits::default());
        let request = begin("").unwrap();
        assert_eq!(request.options, BeginOptions { isolation: None, access: AccessMode::ReadWrite });
        let request = begin(r#"{"isolation": "serializable", "readOnly": true}"#).unwrap();
        let options = BeginOptions { isolation: Some(Isolation::Serializable), access: AccessMode::ReadOnly };
        assert_eq!(request.options, options);
        assert!(begin(r#"{"isolation": "snapshot"}"#).is_err());
    }
}
