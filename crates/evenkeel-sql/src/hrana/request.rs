//! Bodies of requests. Fields that are not known are ignored, because versions of the protocol add some.

use evenkeel_server::api_error::ApiError;
use serde::Deserialize;

use super::batch::{Batch, BatchStep};
use super::statement_kind::StatementKind;
use super::stored_sql::StoredSql;
use crate::options::SqlLimits;
use crate::param::{Param, ParamValue};
use crate::request::{BoundedList, PARAMS_MAX, STATEMENTS_READ_MAX, check_statement, invalid, parse_json};

/// Most requests of a pipeline, those without a statement included.
const REQUESTS_MAX: usize = 1_000;

/// Most statements beyond `statements_max` of a request, for those that begin or end a transaction.
const CONTROL_MAX: usize = 10;

/// Body of `/v2/pipeline` and `/v3/pipeline`.
#[derive(Deserialize)]
pub(super) struct PipelineBody {
    pub(super) baton: Option<String>,
    pub(super) requests: BoundedList<StreamRequest, REQUESTS_MAX>,
}

/// Body of `/v3/cursor`; `/v1/batch` has no baton.
#[derive(Deserialize)]
pub(super) struct BatchBody {
    pub(super) baton: Option<String>,
    pub(super) batch: Batch,
}

/// Body of `/v1/execute`.
#[derive(Deserialize)]
pub(super) struct ExecuteBody {
    pub(super) stmt: HranaStatement,
}

/// One request of a pipeline.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum StreamRequest {
    Close,
    Execute { stmt: HranaStatement },
    Batch { batch: Batch },
    Sequence(SqlRef),
    Describe(SqlRef),
    StoreSql { sql_id: i32, sql: String },
    CloseSql { sql_id: i32 },
    GetAutocommit,
}

impl StreamRequest {
    /// Returns the type of the request, which is also that of its response.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Execute { .. } => "execute",
            Self::Batch { .. } => "batch",
            Self::Sequence(_) => "sequence",
            Self::Describe(_) => "describe",
            Self::StoreSql { .. } => "store_sql",
            Self::CloseSql { .. } => "close_sql",
            Self::GetAutocommit => "get_autocommit",
        }
    }
}

/// A SQL text: itself, or the id of a stored one.
#[derive(Debug, Deserialize)]
pub(super) struct SqlRef {
    sql: Option<String>,
    sql_id: Option<i32>,
}

/// A statement and its arguments.
#[derive(Deserialize)]
pub(super) struct HranaStatement {
    sql: Option<String>,
    sql_id: Option<i32>,
    args: Option<BoundedList<HranaValue, PARAMS_MAX>>,
    named_args: Option<BoundedList<NamedArg, PARAMS_MAX>>,
    /// `None` means yes.
    want_rows: Option<bool>,
}

#[derive(Deserialize)]
struct NamedArg {
    name: String,
    value: HranaValue,
}

#[derive(Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum HranaValue {
    Null,
    Integer { value: String },
    Float { value: f64 },
    Text { value: String },
    Blob { base64: String },
}

impl PipelineBody {
    pub(super) fn parse(body: &[u8], limits: &SqlLimits) -> Result<Self, ApiError> {
        let body: Self = parse_json(body)?;
        let mut count = StatementCount::default();
        for request in &body.requests.0 {
            match request {
                StreamRequest::Execute { stmt } => count.add(stmt),
                StreamRequest::Batch { batch } => {
                    batch.check()?;
                    count.add_steps(batch.steps());
                }
                // The text of a sequence is limited as that of one statement is.
                StreamRequest::Sequence(_) | StreamRequest::Describe(_) => count.others += 1,
                StreamRequest::Close
                | StreamRequest::StoreSql { .. }
                | StreamRequest::CloseSql { .. }
                | StreamRequest::GetAutocommit => {}
            }
        }
        count.check(limits)?;
        Ok(body)
    }
}

impl BatchBody {
    pub(super) fn parse(body: &[u8], limits: &SqlLimits) -> Result<Self, ApiError> {
        let body: Self = parse_json(body)?;
        body.batch.check()?;
        let mut count = StatementCount::default();
        count.add_steps(body.batch.steps());
        count.check(limits)?;
        Ok(body)
    }
}

/// Statements of a request.
#[derive(Debug, Default)]
struct StatementCount {
    /// Statements that begin or end a transaction or prepare for one, unless their text is stored.
    control: usize,
    others: usize,
}

impl StatementCount {
    fn add(&mut self, statement: &HranaStatement) {
        match statement.sql.as_deref() {
            Some(sql) if StatementKind::of(sql).is_control() => self.control += 1,
            Some(_) | None => self.others += 1,
        }
    }

    fn add_steps(&mut self, steps: &[BatchStep]) {
        for step in steps {
            self.add(&step.stmt);
        }
    }

    fn check(&self, limits: &SqlLimits) -> Result<(), ApiError> {
        let max = limits.statements_max;
        if max < self.others {
            return Err(invalid("requests", format!("the request has more than {max} statements")));
        }
        let all_max = max.saturating_add(CONTROL_MAX);
        if all_max < self.others + self.control {
            let message =
                format!("the request has more than {all_max} statements, those for transactions included");
            return Err(invalid("requests", message));
        }
        Ok(())
    }
}

impl SqlRef {
    /// Returns the text.
    pub(super) fn resolve(&self, stored: &StoredSql) -> Result<String, ApiError> {
        resolve(self.sql.as_deref(), self.sql_id, stored)
    }
}

impl HranaStatement {
    /// Reports whether the client wants the rows.
    pub(super) fn wants_rows(&self) -> bool {
        self.want_rows != Some(false)
    }

    /// Returns the text.
    pub(super) fn resolve(&self, stored: &StoredSql) -> Result<String, ApiError> {
        resolve(self.sql.as_deref(), self.sql_id, stored)
    }

    /// Returns the arguments, the positional ones first.
    pub(super) fn params(&self) -> Result<Vec<Param>, ApiError> {
        let positional = self.args.iter().flat_map(|args| &args.0).map(|value| (None, value));
        let named = self.named_args.iter().flat_map(|args| &args.0);
        let named = named.map(|arg| (Some(arg.name.clone()), &arg.value));
        let params: Vec<Param> = positional.chain(named).map(|(name, value)| value.to_param(name)).collect();
        if PARAMS_MAX < params.len() {
            return Err(invalid("args", format!("more than {PARAMS_MAX} arguments")));
        }
        Ok(params)
    }
}

impl HranaValue {
    fn to_param(&self, name: Option<String>) -> Param {
        let text = |text: &String| ParamValue::Text(text.clone());
        let (type_name, value) = match self {
            Self::Null => (None, ParamValue::Null),
            Self::Integer { value } => (Some("integer"), text(value)),
            Self::Float { value } => (Some("real"), ParamValue::Number(value.to_string())),
            Self::Text { value } => (Some("text"), text(value)),
            Self::Blob { base64 } => (Some("blob"), text(base64)),
        };
        Param { name, type_name: type_name.map(str::to_owned), value }
    }
}

fn resolve(sql: Option<&str>, sql_id: Option<i32>, stored: &StoredSql) -> Result<String, ApiError> {
    let sql = match (sql, sql_id) {
        (Some(sql), None) => sql,
        (None, Some(id)) => stored.get(id)?,
        (Some(_), Some(_)) => return Err(invalid("sql", "give either sql or sql_id, not both")),
        (None, None) => return Err(invalid("sql", "sql is missing")),
    };
    check_statement(sql, 0, "")?;
    Ok(sql.to_owned())
}

/// Most steps of a batch that are read before `statements_max` is checked.
pub(super) const STEPS_MAX: usize = STATEMENTS_READ_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<PipelineBody, String> {
        PipelineBody::parse(body.as_bytes(), &SqlLimits::default()).map_err(|error| error.to_string())
    }

    fn statement(json: &str) -> HranaStatement {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_type_of_value_is_an_argument() {
        let statement = statement(
            r#"{"sql": "q", "args": [{"type": "null"}, {"type": "integer", "value": "-9223372036854775808"},
                {"type": "float", "value": 0.1}, {"type": "text", "value": "é"}, {"type": "blob", "base64": "AP8"}],
                "named_args": [{"name": ":a", "value": {"type": "null"}}]}"#,
        );
        let params = statement.params().unwrap();
        let values: Vec<_> =
            params.iter().map(|param| (param.type_name.as_deref(), param.value.clone())).collect();
        let text = |text: &str| ParamValue::Text(text.to_owned());
        let expected = [
            (None, ParamValue::Null),
            (Some("integer"), text("-9223372036854775808")),
            (Some("real"), ParamValue::Number("0.1".to_owned())),
            (Some("text"), text("é")),
            (Some("blob"), text("AP8")),
            (None, ParamValue::Null),
        ];
        assert_eq!(values, expected);
        assert_eq!(params[5].name.as_deref(), Some(":a"));
        assert!(statement.wants_rows());
    }

    #[test]
    fn mistakes_are_named() {
        for (body, message) in [
            ("{", "invalid JSON body"),
            ("{}", "missing field `requests`"),
            (r#"{"requests": [{"type": "dance"}]}"#, "unknown variant `dance`"),
            (r#"{"requests": [{"type": "execute"}]}"#, "missing field `stmt`"),
            (
                r#"{"requests": [{"type": "execute", "stmt": {"sql": "x", "args": [{"type": "date"}]}}]}"#,
                "unknown variant `date`",
            ),
            (
                r#"{"requests": [{"type": "batch", "batch": {"steps": [
                    {"condition": {"type": "ok", "step": 0}, "stmt": {"sql": "x"}}]}}]}"#,
                "the condition of step 0 refers to step 0",
            ),
        ] {
            let error = parse(body).err().unwrap_or_default();
            assert!(error.contains(message), "{body}: {error}");
        }
    }

    #[test]
    fn a_statement_has_one_text() {
        let stored = StoredSql::default();
        for (json, message) in [
            (r#"{}"#, "sql is missing"),
            (r#"{"sql": "x", "sql_id": 1}"#, "not both"),
            (r#"{"sql_id": 1}"#, "no SQL text with id 1"),
            (r#"{"sql": " "}"#, "sql is empty"),
        ] {
            let error = statement(json).resolve(&stored).unwrap_err().to_string();
            assert!(error.contains(message), "{json}: {error}");
        }
    }

    #[test]
    fn statements_that_control_transactions_are_limited_too() {
        let step = |sql: &str| format!(r#"{{"stmt": {{"sql": "{sql}"}}}}"#);
        let steps = |others: usize, control: usize| {
            let steps = [vec![step("select 1"); others], vec![step("COMMIT"); control]].concat();
            format!(r#"{{"steps": [{}]}}"#, steps.join(","))
        };
        for (others, control, is_accepted) in
            [(100, 10, true), (100, 11, false), (0, 110, true), (0, 111, false), (101, 0, false)]
        {
            let batch = steps(others, control);
            let pipeline = parse(&format!(r#"{{"requests": [{{"type": "batch", "batch": {batch}}}]}}"#));
            assert_eq!(pipeline.is_ok(), is_accepted, "{others} and {control}");
            let body = format!(r#"{{"batch": {batch}}}"#);
            let body = BatchBody::parse(body.as_bytes(), &SqlLimits::default());
            assert_eq!(body.is_ok(), is_accepted, "{others} and {control}");
        }
        let error =
            parse(&format!(r#"{{"requests": [{{"type": "batch", "batch": {}}}]}}"#, steps(0, 10_000)));
        let message = "the request has more than 110 statements, those for transactions included";
        assert_eq!(error.err().unwrap(), message);
    }

    #[test]
    fn statements_are_limited_besides_a_few_that_control_transactions() {
        let execute = |sql: &str| format!(r#"{{"type": "execute", "stmt": {{"sql": "{sql}"}}}}"#);
        let pipeline = |len: usize| {
            let mut requests =
                vec![execute("BEGIN"), r#"{"type": "store_sql", "sql_id": 1, "sql": "x"}"#.to_owned()];
            requests.extend(vec![execute("select 1"); len]);
            requests.push(execute("COMMIT"));
            parse(&format!(r#"{{"requests": [{}]}}"#, requests.join(",")))
        };
        assert!(pipeline(100).is_ok());
        assert_eq!(pipeline(101).err().unwrap(), "the request has more than 100 statements");
        let closes = |len: usize| {
            parse(&format!(r#"{{"requests": [{}]}}"#, vec![r#"{"type": "get_autocommit"}"#; len].join(",")))
        };
        assert!(closes(REQUESTS_MAX).is_ok());
        assert!(closes(REQUESTS_MAX + 1).is_err());
    }
}
