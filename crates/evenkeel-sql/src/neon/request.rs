//! Requests of Neon's driver: headers that choose the form of the rows and the kind of transaction, and a body with one
//! query or several.
//!
//! Fields of the body that are not known are ignored, as Neon does.

use evenkeel_server::api_error::ApiError;
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::result::{CellForm, RowForm, RowFormat};
use crate::datasource::{AccessMode, BeginOptions, Isolation, Statement};
use crate::options::SqlLimits;
use crate::param::{Param, ParamError, ParamValue};
use crate::request::{check_statement, invalid, parse_json};

const RAW_TEXT: HeaderName = HeaderName::from_static("neon-raw-text-output");
const ARRAY_MODE: HeaderName = HeaderName::from_static("neon-array-mode");
const ISOLATION: HeaderName = HeaderName::from_static("neon-batch-isolation-level");
const READ_ONLY: HeaderName = HeaderName::from_static("neon-batch-read-only");
const DEFERRABLE: HeaderName = HeaderName::from_static("neon-batch-deferrable");

/// A parsed request.
#[derive(Debug)]
pub(super) struct NeonRequest {
    pub(super) format: RowFormat,
    pub(super) queries: Queries,
}

/// The queries of a request.
#[derive(Debug)]
pub(super) enum Queries {
    One(Statement),
    /// Queries that run in one transaction.
    Batch {
        statements: Vec<Statement>,
        options: BatchOptions,
    },
}

/// Options of a batch's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchOptions {
    pub(super) begin: BeginOptions,
    pub(super) deferral: Deferral,
}

/// Start of a serializable read-only transaction: at once, or when it cannot fail with a serialization error any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferral {
    Immediate,
    Deferrable,
}

#[derive(Deserialize)]
struct NeonBody<'a> {
    query: Option<String>,
    #[serde(borrow)]
    params: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    queries: Option<Vec<NeonQuery<'a>>>,
}

#[derive(Deserialize)]
struct NeonQuery<'a> {
    query: String,
    #[serde(borrow)]
    params: Option<Vec<&'a RawValue>>,
}

impl NeonRequest {
    pub(super) fn parse(headers: &HeaderMap, body: &[u8], limits: &SqlLimits) -> Result<Self, ApiError> {
        let body: NeonBody<'_> = parse_json(body)?;
        let queries = match (body.query, body.queries) {
            (Some(query), None) => Queries::One(statement(query, body.params, "", limits)?),
            (None, Some(list)) => Queries::Batch {
                statements: batch(list, limits)?,
                options: BatchOptions::from_headers(headers)?,
            },
            (Some(_), Some(_)) => {
                return Err(invalid("queries", "give either query or queries, not both"));
            }
            (None, None) => return Err(invalid("query", "query is missing")),
        };
        Ok(Self { format: row_format(headers)?, queries })
    }
}

impl BatchOptions {
    fn from_headers(headers: &HeaderMap) -> Result<Self, ApiError> {
        let isolation = match text(headers, &ISOLATION)? {
            None => None,
            // PostgreSQL has no dirty reads: it treats both alike.
            Some("ReadUncommitted" | "ReadCommitted") => Some(Isolation::ReadCommitted),
            Some("RepeatableRead") => Some(Isolation::RepeatableRead),
            Some("Serializable") => Some(Isolation::Serializable),
            Some(_) => {
                let message = "isolation level must be \"ReadUncommitted\", \"ReadCommitted\", \
                               \"RepeatableRead\" or \"Serializable\"";
                return Err(invalid(ISOLATION.as_str(), message));
            }
        };
        let access = if flag(headers, &READ_ONLY)? { AccessMode::ReadOnly } else { AccessMode::ReadWrite };
        let deferral = if flag(headers, &DEFERRABLE)? { Deferral::Deferrable } else { Deferral::Immediate };
        Ok(Self { begin: BeginOptions { isolation, access }, deferral })
    }
}

fn row_format(headers: &HeaderMap) -> Result<RowFormat, ApiError> {
    Ok(RowFormat {
        rows: if flag(headers, &ARRAY_MODE)? { RowForm::Array } else { RowForm::Object },
        cells: if flag(headers, &RAW_TEXT)? { CellForm::Text } else { CellForm::Json },
    })
}

/// Reads a header that is `true` or `false`; a missing one is `false`.
fn flag(headers: &HeaderMap, name: &HeaderName) -> Result<bool, ApiError> {
    match text(headers, name)? {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(invalid(name.as_str(), format!("header {name} must be \"true\" or \"false\""))),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let value = headers.get(name).map(|value| value.to_str());
    value.transpose().map_err(|_| invalid(name.as_str(), format!("header {name} is not ASCII text")))
}

fn batch(list: Vec<NeonQuery<'_>>, limits: &SqlLimits) -> Result<Vec<Statement>, ApiError> {
    if limits.statements_max < list.len() {
        let message = format!("queries has more than {} entries", limits.statements_max);
        return Err(invalid("queries", message));
    }
    let parsed = list
        .into_iter()
        .enumerate()
        .map(|(index, query)| statement(query.query, query.params, &format!("queries[{index}]."), limits));
    parsed.collect()
}

fn statement(
    sql: String,
    params: Option<Vec<&RawValue>>,
    path: &str,
    limits: &SqlLimits,
) -> Result<Statement, ApiError> {
    let params = params.unwrap_or_default();
    check_statement(&sql, params.len(), path)?;
    let parse = |(index, json): (usize, &RawValue)| {
        param(json).map_err(|error| {
            invalid(&format!("{path}params[{index}]"), format!("parameter {} {error}", index + 1))
        })
    };
    let params = params.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    Ok(Statement { sql, params, time_max: limits.timeout_default, rows_max: None })
}

/// Reads a parameter. The driver sends strings and nulls; an object from another client is JSON text.
fn param(json: &RawValue) -> Result<Param, ParamError> {
    let text = json.get();
    if text.starts_with('{') {
        return Ok(Param::untyped(ParamValue::Text(text.to_owned())));
    }
    ParamValue::parse(text).map(Param::untyped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn parse(headers: &[(&HeaderName, &'static str)], body: &str) -> Result<NeonRequest, String> {
        let headers = headers.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_static(value)));
        let headers: HeaderMap = headers.collect();
        NeonRequest::parse(&headers, body.as_bytes(), &SqlLimits::default())
            .map_err(|error| error.to_string())
    }

    fn options(headers: &[(&HeaderName, &'static str)]) -> Result<BatchOptions, String> {
        match parse(headers, r#"{"queries": []}"#)?.queries {
            Queries::Batch { options, .. } => Ok(options),
            Queries::One(_) => panic!("one query"),
        }
    }

    #[test]
    fn every_kind_of_json_is_a_parameter() {
        let body =
            r#"{"query": "q", "params": ["a", null, 1.50, true, [1, 2], {"type": "int4", "value": 1}]}"#;
        let Queries::One(statement) = parse(&[], body).unwrap().queries else { panic!("a batch") };
        let values: Vec<_> = statement.params.into_iter().map(|param| param.value).collect();
        let expected = [
            ParamValue::Text("a".to_owned()),
            ParamValue::Null,
            ParamValue::Number("1.50".to_owned()),
            ParamValue::Bool(true),
            ParamValue::Json("[1, 2]".to_owned()),
            ParamValue::Text(r#"{"type": "int4", "value": 1}"#.to_owned()),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn headers_choose_the_form_of_the_rows() {
        let format = |headers| parse(headers, r#"{"query": "q"}"#).map(|request| request.format);
        assert_eq!(format(&[]), Ok(RowFormat { rows: RowForm::Object, cells: CellForm::Json }));
        let both = [(&ARRAY_MODE, "true"), (&RAW_TEXT, "true")];
        assert_eq!(format(&both), Ok(RowFormat { rows: RowForm::Array, cells: CellForm::Text }));
        assert!(format(&[(&ARRAY_MODE, "yes")]).unwrap_err().contains("neon-array-mode must be"));
    }

    #[test]
    fn headers_choose_the_transaction_of_a_batch() {
        let begin = BeginOptions { isolation: None, access: AccessMode::ReadWrite };
        assert_eq!(options(&[]), Ok(BatchOptions { begin, deferral: Deferral::Immediate }));
        let all = [(&ISOLATION, "Serializable"), (&READ_ONLY, "true"), (&DEFERRABLE, "true")];
        let begin = BeginOptions { isolation: Some(Isolation::Serializable), access: AccessMode::ReadOnly };
        assert_eq!(options(&all), Ok(BatchOptions { begin, deferral: Deferral::Deferrable }));
        for (name, isolation) in [
            ("ReadUncommitted", Isolation::ReadCommitted),
            ("ReadCommitted", Isolation::ReadCommitted),
            ("RepeatableRead", Isolation::RepeatableRead),
        ] {
            assert_eq!(options(&[(&ISOLATION, name)]).unwrap().begin.isolation, Some(isolation));
        }
        assert!(options(&[(&ISOLATION, "Snapshot")]).unwrap_err().contains("isolation level must be"));
        assert!(options(&[(&READ_ONLY, "1")]).unwrap_err().contains("neon-batch-read-only must be"));
    }

    #[test]
    fn mistakes_are_named() {
        for (body, message) in [
            ("{", "invalid JSON body"),
            ("{}", "query is missing"),
            (r#"{"query": " "}"#, "sql is empty"),
            (r#"{"query": "a", "queries": []}"#, "not both"),
            (r#"{"queries": [{"params": []}]}"#, "missing field `query`"),
            (r#"{"query": "a", "params": "x"}"#, "invalid type"),
        ] {
            let error = parse(&[], body).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
    }

    #[test]
    fn the_number_of_queries_is_limited() {
        let batch = |len: usize| {
            parse(&[], &format!(r#"{{"queries": [{}]}}"#, vec![r#"{"query": "q"}"#; len].join(",")))
        };
        assert!(batch(100).is_ok());
        assert_eq!(batch(101).unwrap_err(), "queries has more than 100 entries");
    }
}
