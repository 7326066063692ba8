//! Bodies of the Data API's requests.
//!
//! Limits: those of a statement; [`SETS_MAX`] parameter sets.

use evenkeel_server::api_error::ApiError;
use serde::Deserialize;

use super::named_params::NamedSql;
use super::parameter::SqlParameter;
use super::result::{DecimalForm, LongForm, RecordsFormat, ResultOptions};
use crate::datasource::{EngineKind, Statement};
use crate::error::SqlError;
use crate::options::SqlLimits;
use crate::param::Param;
use crate::request::{BoundedList, PARAMS_MAX, check_statement, invalid, parse_json};
use crate::sql_words::is_transaction_control;

/// Most parameter sets of a batch.
pub(super) const SETS_MAX: usize = 10_000;

type Parameters<'a> = BoundedList<SqlParameter<'a>, PARAMS_MAX>;

/// Names of a datasource.
#[derive(Debug)]
pub(super) struct Target {
    /// The last part of the ARN.
    pub(super) datasource: String,
    pub(super) database: Option<String>,
}

/// A request for `/Execute`.
pub(super) struct ExecuteRequest<'a> {
    pub(super) target: Target,
    pub(super) transaction_id: Option<String>,
    pub(super) options: ResultOptions,
    sql: String,
    parameters: Parameters<'a>,
}

/// A request for `/BatchExecute`.
pub(super) struct BatchRequest<'a> {
    pub(super) target: Target,
    pub(super) transaction_id: Option<String>,
    sql: String,
    sets: Vec<Parameters<'a>>,
}

/// A statement and the parameters of each of its executions.
#[derive(Debug)]
pub(super) struct BoundBatch {
    pub(super) sql: String,
    pub(super) sets: Vec<Vec<Param>>,
}

/// A request for `/CommitTransaction` or `/RollbackTransaction`.
#[derive(Debug)]
pub(super) struct EndRequest {
    pub(super) target: Target,
    pub(super) transaction_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExecuteBody<'a> {
    resource_arn: Option<String>,
    secret_arn: Option<String>,
    sql: Option<String>,
    database: Option<String>,
    schema: Option<String>,
    #[serde(borrow, default)]
    parameters: Option<Parameters<'a>>,
    transaction_id: Option<String>,
    include_result_metadata: Option<bool>,
    continue_after_timeout: Option<bool>,
    result_set_options: Option<ResultSetOptions>,
    format_records_as: Option<RecordsFormat>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ResultSetOptions {
    decimal_return_type: Option<DecimalForm>,
    long_return_type: Option<LongForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct BatchBody<'a> {
    resource_arn: Option<String>,
    secret_arn: Option<String>,
    sql: Option<String>,
    database: Option<String>,
    schema: Option<String>,
    #[serde(borrow, default)]
    parameter_sets: Option<BoundedList<Parameters<'a>, SETS_MAX>>,
    transaction_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct BeginBody {
    resource_arn: Option<String>,
    secret_arn: Option<String>,
    database: Option<String>,
    schema: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EndBody {
    resource_arn: Option<String>,
    secret_arn: Option<String>,
    transaction_id: Option<String>,
}

impl<'a> ExecuteRequest<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let body: ExecuteBody<'_> = parse_json(body)?;
        if body.continue_after_timeout == Some(true) {
            let message =
                "continueAfterTimeout is not supported: a statement that reaches its time limit is cancelled";
            return Err(invalid("continueAfterTimeout", message));
        }
        let forms = body.result_set_options;
        let options = ResultOptions {
            format: body.format_records_as.unwrap_or_default(),
            decimals: forms.as_ref().and_then(|forms| forms.decimal_return_type).unwrap_or_default(),
            longs: forms.and_then(|forms| forms.long_return_type).unwrap_or_default(),
            includes_metadata: body.include_result_metadata.unwrap_or_default(),
        };
        Ok(Self {
            target: Target::parse(body.resource_arn, body.secret_arn, body.database, body.schema)?,
            transaction_id: body.transaction_id,
            options,
            sql: required("sql", body.sql)?,
            parameters: body.parameters.unwrap_or_default(),
        })
    }

    /// Returns the statement with the placeholders of its database.
    pub(super) fn statement(self, engine: EngineKind, limits: &SqlLimits) -> Result<Statement, ApiError> {
        let named = named_sql(&self.sql, engine)?;
        let params = bind(&named, self.parameters, engine)?;
        Ok(Statement { sql: named.sql, params, time_max: limits.timeout_default, rows_max: None })
    }
}

impl<'a> BatchRequest<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let body: BatchBody<'_> = parse_json(body)?;
        let sets = body.parameter_sets.unwrap_or_default().0;
        if sets.is_empty() {
            let message = "parameterSets is empty, so the statement would not run; give one empty set";
            return Err(invalid("parameterSets", message));
        }
        Ok(Self {
            target: Target::parse(body.resource_arn, body.secret_arn, body.database, body.schema)?,
            transaction_id: body.transaction_id,
            sql: required("sql", body.sql)?,
            sets,
        })
    }

    /// Binds every parameter set. The text is not copied for each: there may be 10 000 sets for a text of 1 MiB.
    pub(super) fn bind(self, engine: EngineKind) -> Result<BoundBatch, SqlError> {
        if is_transaction_control(&self.sql, engine) {
            return Err(SqlError::TransactionInList);
        }
        let named = named_sql(&self.sql, engine)?;
        let bind_set = |(index, set)| {
            let bound = bind(&named, set, engine);
            bound.map_err(|error| invalid("parameterSets", format!("parameter set {}: {error}", index + 1)))
        };
        let sets = self.sets.into_iter().enumerate().map(bind_set).collect::<Result<_, _>>()?;
        Ok(BoundBatch { sql: named.sql, sets })
    }
}

/// Reads a request for `/BeginTransaction`.
pub(super) fn parse_begin(body: &[u8]) -> Result<Target, ApiError> {
    let body: BeginBody = parse_json(body)?;
    Target::parse(body.resource_arn, body.secret_arn, body.database, body.schema)
}

impl EndRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let body: EndBody = parse_json(body)?;
        Ok(Self {
            target: Target::parse(body.resource_arn, body.secret_arn, None, None)?,
            transaction_id: required("transactionId", body.transaction_id)?,
        })
    }
}

impl Target {
    /// Reads the names; the secret is required as on AWS, but the signature is the only credential.
    fn parse(
        resource_arn: Option<String>,
        secret_arn: Option<String>,
        database: Option<String>,
        schema: Option<String>,
    ) -> Result<Self, ApiError> {
        let arn = required("resourceArn", resource_arn)?;
        required("secretArn", secret_arn)?;
        if schema.is_some_and(|schema| !schema.is_empty()) {
            let message = "schema is not supported; name it in the statement, such as orders.items";
            return Err(invalid("schema", message));
        }
        let datasource = arn.rsplit(':').next().unwrap_or_default().to_owned();
        Ok(Self { datasource, database: database.filter(|name| !name.is_empty()) })
    }
}

fn required(name: &str, value: Option<String>) -> Result<String, ApiError> {
    let missing = || invalid(name, format!("{name} is missing"));
    value.filter(|value| !value.is_empty()).ok_or_else(missing)
}

fn named_sql(sql: &str, engine: EngineKind) -> Result<NamedSql, ApiError> {
    check_statement(sql, 0, "")?;
    NamedSql::parse(sql, engine).map_err(|error| invalid("sql", error.to_string()))
}

/// Puts the parameters in the order of their placeholders. A name without a value and a value without a name are errors.
fn bind(named: &NamedSql, parameters: Parameters<'_>, engine: EngineKind) -> Result<Vec<Param>, ApiError> {
    let mut params: Vec<Option<Param>> = vec![None; named.names.len()];
    let mut places: Vec<(&str, usize)> =
        named.names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    places.sort_unstable();
    for parameter in parameters.0 {
        let name = parameter.name()?;
        let found = places.binary_search_by_key(&name, |(name, _)| name);
        let unknown = |_| invalid("parameters", format!("the statement has no parameter :{name}"));
        let place = &mut params[places[found.map_err(unknown)?].1];
        if place.is_some() {
            return Err(invalid("parameters", format!("parameter {name} is given twice")));
        }
        let bound = parameter.to_param(engine);
        let in_error = |error| invalid("parameters", format!("parameter {name} {error}"));
        *place = Some(bound.map_err(in_error)?);
    }
    let missing = |name: &String| invalid("parameters", format!("parameter :{name} has no value"));
    params.into_iter().zip(&named.names).map(|(param, name)| param.ok_or_else(|| missing(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::ParamValue;
    use serde_json::{Value, json};

    const ARN: &str = "arn:aws:rds:eu-west-1:123456789012:cluster:main";

    fn with(extra: Value) -> Vec<u8> {
        let mut body = json!({"resourceArn": ARN, "secretArn": "arn:aws:x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body.to_string().into_bytes()
    }

    fn execute(extra: Value) -> Result<Statement, String> {
        let body = with(extra);
        let request = ExecuteRequest::parse(&body).map_err(|error| error.to_string())?;
        let statement = request.statement(EngineKind::Postgres, &SqlLimits::default());
        statement.map_err(|error| error.to_string())
    }

    fn batch(extra: Value) -> Result<BoundBatch, String> {
        let body = with(extra);
        let request = BatchRequest::parse(&body).map_err(|error| error.to_string())?;
        request.bind(EngineKind::Sqlite).map_err(|error| error.to_string())
    }

    fn long(name: &str, value: i64) -> Value {
        json!({"name": name, "value": {"longValue": value}})
    }

    #[test]
    fn the_last_part_of_the_arn_names_the_datasource() {
        let body = with(json!({"database": "shop"}));
        let target = parse_begin(&body).unwrap();
        assert_eq!((target.datasource.as_str(), target.database.as_deref()), ("main", Some("shop")));
        let body = with(json!({"resourceArn": "plain", "database": ""}));
        let target = parse_begin(&body).unwrap();
        assert_eq!((target.datasource.as_str(), target.database), ("plain", None));
    }

    #[test]
    fn parameters_are_bound_by_name() {
        let parameters = json!([long("b", 2), long("a", 1)]);
        let statement = execute(json!({"sql": "select :a, :b, :a", "parameters": parameters})).unwrap();
        assert_eq!(statement.sql, "select $1, $2, $1");
        let values: Vec<ParamValue> = statement.params.into_iter().map(|param| param.value).collect();
        assert_eq!(values, [ParamValue::Number("1".to_owned()), ParamValue::Number("2".to_owned())]);
    }

    #[test]
    fn a_batch_is_one_text_and_the_parameters_of_each_set() {
        let sets = json!([[long("a", 1)], [long("a", 2)]]);
        let bound = batch(json!({"sql": "insert into t values (:a)", "parameterSets": sets})).unwrap();
        assert_eq!(bound.sql, "insert into t values (?1)");
        let values: Vec<ParamValue> = bound.sets.into_iter().flatten().map(|param| param.value).collect();
        assert_eq!(values, [ParamValue::Number("1".to_owned()), ParamValue::Number("2".to_owned())]);
        let error = batch(json!({"sql": "select :a", "parameterSets": [[long("a", 1)], []]})).unwrap_err();
        assert_eq!(error, "parameter set 2: parameter :a has no value");
        assert!(batch(json!({"sql": "select 1"})).unwrap_err().contains("parameterSets is empty"));
        assert_eq!(batch(json!({"sql": "select 1", "parameterSets": [[]]})).unwrap().sets.len(), 1);
    }

    #[test]
    fn the_number_of_sets_is_limited() {
        let sets = |count: usize| batch(json!({"sql": "select 1", "parameterSets": vec![json!([]); count]}));
        assert_eq!(sets(SETS_MAX).unwrap().sets.len(), SETS_MAX);
        assert!(sets(SETS_MAX + 1).unwrap_err().contains("a list of at most 10000 elements"));
    }

    #[test]
    fn mistakes_are_named() {
        for (extra, message) in [
            (json!({}), "sql is missing"),
            (json!({"sql": " "}), "sql is empty"),
            (json!({"sql": "select 1", "resourceArn": null}), "resourceArn is missing"),
            (json!({"sql": "select 1", "secretArn": ""}), "secretArn is missing"),
            (json!({"sql": "select 1", "schema": "s"}), "schema is not supported"),
            (json!({"sql": "select 1", "continueAfterTimeout": true}), "is cancelled"),
            (json!({"sql": "select 1", "other": 1}), "unknown field `other`"),
            (json!({"sql": "select $1"}), "the placeholder \"$1\" is not supported"),
            (json!({"sql": "select :a"}), "parameter :a has no value"),
            (json!({"sql": "select 1", "parameters": [long("a", 1)]}), "has no parameter :a"),
            (json!({"sql": "select :a", "parameters": [long("a", 1), long("a", 1)]}), "a is given twice"),
            (json!({"sql": "select :a", "parameters": [{"value": {"isNull": true}}]}), "has no name"),
            (json!({"sql": "select :a", "parameters": [{"name": "a"}]}), "a has no value"),
            (json!({"sql": "select 1", "formatRecordsAs": "XML"}), "unknown variant `XML`"),
        ] {
            let error = execute(extra.clone()).unwrap_err();
            assert!(error.contains(message), "{extra}: {error}");
        }
        let error = EndRequest::parse(&with(json!({}))).unwrap_err();
        assert_eq!(error.to_string(), "transactionId is missing");
    }
}
