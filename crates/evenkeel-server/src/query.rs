//! Parameters in the query of a URL.

use crate::api_error::ApiError;
use crate::percent;
use crate::route::ServerRequest;

/// Parses the query; an unknown parameter is an error.
pub fn query<const N: usize>(
    request: &ServerRequest,
    known: [&'static str; N],
) -> Result<[Option<String>; N], ApiError> {
    let mut values = [const { None }; N];
    for pair in request.request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let unknown =
            || ApiError::invalid(format!("unknown parameter {key:?}, expected {}", known.join(", ")));
        let index = known.iter().position(|name| *name == key).ok_or_else(unknown)?;
        let value = percent::decode(value);
        values[index] =
            Some(value.ok_or_else(|| ApiError::invalid(format!("{key} is not valid percent-encoding")))?);
    }
    Ok(values)
}
