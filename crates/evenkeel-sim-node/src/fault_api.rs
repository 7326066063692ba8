//! `/sim/fault`: shows and sets the fault at run time, for clients on the same machine.

use super::api_error::ApiError;
use super::engine::Locality;
use super::fault::{Fault, FaultKind, Faults};
use super::request;
use hyper::Method;
use serde_json::{Value, json};
use std::time::Duration;

pub(super) const PATH: &str = "/sim/fault";

/// Handles GET (shows the fault and the number of requests it hit) and POST (sets it; a `kind` of null clears it).
pub(super) fn respond(
    faults: &mut Faults,
    locality: Locality,
    method: &Method,
    body: &[u8],
) -> Result<Value, ApiError> {
    if locality == Locality::Remote {
        return Err(ApiError::NotLocal);
    }
    match *method {
        Method::GET => {}
        Method::POST => faults.set(parse(&request::json(body)?)?),
        _ => return Err(ApiError::MethodNotAllowed { allowed: "GET, POST" }),
    }
    Ok(faults.fault().map_or(json!({"kind": null}), |fault| {
        json!({
            "kind": fault.kind.to_string(), "rate": fault.rate, "count": fault.count,
            "ms": u64::try_from(fault.delay.as_millis()).unwrap_or(u64::MAX), "struck": faults.hits()
        })
    }))
}

fn parse(body: &Value) -> Result<Option<Fault>, ApiError> {
    let bad = |name, message: String| ApiError::invalid(Some(name), message);
    let known = ["kind", "rate", "count", "ms"];
    if let Some(unknown) =
        body.as_object().and_then(|all| all.keys().find(|key| !known.contains(&key.as_str())))
    {
        return Err(ApiError::invalid(
            None,
            format!("unknown key `{unknown}`; known keys are {}", known.join(", ")),
        ));
    }
    if body.get("kind") == Some(&Value::Null) {
        return Ok(None);
    }
    let kind = body["kind"].as_str().and_then(FaultKind::by_name).ok_or_else(|| {
        let names: Vec<_> = FaultKind::ALL.iter().map(|(name, _)| *name).collect();
        bad("kind", format!("kind must be null or one of {}", names.join(", ")))
    })?;
    let mut fault = Fault::new(kind);
    if let Some(rate) = body.get("rate") {
        fault.rate = rate.as_f64().ok_or_else(|| bad("rate", "rate must be a number".to_owned()))?;
    }
    if let Some(count) = body.get("count") {
        let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
        fault.count = count.ok_or_else(|| bad("count", "count must be a whole number".to_owned()))?;
    }
    if let Some(ms) = body.get("ms") {
        let ms = ms.as_u64().ok_or_else(|| bad("ms", "ms must be a whole number".to_owned()))?;
        fault.delay = Duration::from_millis(ms);
    }
    fault.check().map_err(|error| ApiError::invalid(None, error.to_string()))?;
    Ok(Some(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_set_shown_and_cleared() {
        let mut faults = Faults::new(1, None);
        let set = br#"{"kind": "reset", "rate": 0.5, "count": 3, "ms": 20}"#;
        let expected = json!({"kind": "reset", "rate": 0.5, "count": 3, "ms": 20, "struck": 0});
        assert_eq!(call(&mut faults, &Method::POST, set), Ok(expected.clone()));
        assert_eq!(call(&mut faults, &Method::GET, b""), Ok(expected));
        assert_eq!(call(&mut faults, &Method::POST, br#"{"kind": null}"#), Ok(json!({"kind": null})));
        assert_eq!(faults.fault(), None);
    }

    #[test]
    fn an_invalid_fault_changes_nothing() {
        let mut faults = Faults::new(1, Some(Fault::new(FaultKind::Silent)));
        for bad in [
            "{}",
            r#"{"kind": "tired"}"#,
            r#"{"kind": "reset", "rat": 1}"#,
            r#"{"kind": "reset", "rate": 2}"#,
            r#"{"kind": "reset", "count": -1}"#,
            r#"{"kind": "reset", "ms": "soon"}"#,
        ] {
            assert!(call(&mut faults, &Method::POST, bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(call(&mut faults, &Method::DELETE, b"").is_err());
        assert_eq!(faults.fault(), Some(Fault::new(FaultKind::Silent)));
    }

    #[test]
    fn a_remote_client_cannot_set_a_fault() {
        let mut faults = Faults::new(1, None);
        let set = br#"{"kind": "reset"}"#;
        assert_eq!(respond(&mut faults, Locality::Remote, &Method::POST, set), Err(ApiError::NotLocal));
        assert_eq!(faults.fault(), None);
    }

    fn call(faults: &mut Faults, method: &Method, body: &[u8]) -> Result<Value, ApiError> {
        respond(faults, Locality::SameMachine, method, body)
    }
}
