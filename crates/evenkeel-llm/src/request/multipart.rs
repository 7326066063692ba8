//! Parses `multipart/form-data` requests (file uploads) for the `model` and `stream` fields.
//!
//! Guarantees: a form that repeats `model` or `stream` is rejected.
//!
//! Limits: at most [`PARTS_MAX`] parts; only the model's name is copied.

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use memchr::memmem;

use super::{IncludeUsage, LlmRequest, MODEL_BYTES_MAX, ModelFormat, ModelPlace, ResponseMode};

const PARTS_MAX: usize = 64;
/// Longest boundary that RFC 2046 allows.
const BOUNDARY_BYTES_MAX: usize = 70;
/// Approximate bytes of audio or image per token.
const BYTES_PER_TOKEN: u64 = 1_024;

impl LlmRequest {
    /// Parses a form; `None` if the content type is not `multipart/form-data`.
    pub fn parse_form(content_type: &[u8], body: &Bytes) -> Option<Result<Self, ApiError>> {
        const FORM: &[u8] = b"multipart/form-data";
        let is_form = content_type.get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM));
        is_form.then(|| parse(content_type, body))
    }
}

fn parse(content_type: &[u8], body: &Bytes) -> Result<LlmRequest, ApiError> {
    let boundary =
        boundary(content_type).ok_or_else(|| ApiError::invalid("the form's content type has no boundary"))?;
    let mut model = None;
    let mut stream = None;
    for part in parts(boundary, body)? {
        let Some((head, value)) = split_part(part) else { return Err(invalid_form()) };
        let (name, field) = match field_name(head) {
            Some(b"model") => ("model", &mut model),
            Some(b"stream") => ("stream", &mut stream),
            Some(_) => continue,
            None => return Err(invalid_form()),
        };
        if field.replace(value).is_some() {
            return Err(ApiError::invalid(format!("form field `{name}` appears more than once")));
        }
    }
    let param = || Some("model".to_owned());
    let missing =
        || ApiError::Invalid { message: "form field `model` is missing".to_owned(), param: param() };
    let model = core::str::from_utf8(model.ok_or_else(missing)?).ok().map(str::trim);
    let model = model.filter(|name| (1..=MODEL_BYTES_MAX).contains(&name.len())).ok_or_else(|| {
        let message =
            format!("form field `model` is not a valid model name (1 to {MODEL_BYTES_MAX} bytes of UTF-8)");
        ApiError::Invalid { message, param: param() }
    })?;
    let start = model.as_ptr().addr() - body.as_ptr().addr();
    Ok(LlmRequest {
        model: model.to_owned(),
        model_place: ModelPlace { range: start..start + model.len(), format: ModelFormat::Form },
        mode: if stream == Some(b"true") { ResponseMode::Stream } else { ResponseMode::NonStreaming },
        usage: IncludeUsage::NotRequested,
        input_tokens: body.len() as u64 / BYTES_PER_TOKEN + 1,
        output_tokens_max: None,
        output_tokens_exact: None,
        choices: 1,
        conversation: None,
        session: None,
        class: None,
        splice: None,
    })
}

fn invalid_form() -> ApiError {
    ApiError::invalid("the body is not valid multipart/form-data")
}

/// Finds the boundary in the content type.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let parameters = content_type.split(|byte| *byte == b';').skip(1).map(<[u8]>::trim_ascii);
    let is_boundary =
        |parameter: &&[u8]| parameter.get(..9).is_some_and(|name| name.eq_ignore_ascii_case(b"boundary="));
    let value = &parameters.into_iter().find(is_boundary)?[9..];
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    (1..=BOUNDARY_BYTES_MAX).contains(&value.len()).then_some(value)
}

/// Splits a body at its boundaries; the parts include their headers.
fn parts<'a>(boundary: &[u8], body: &'a [u8]) -> Result<Vec<&'a [u8]>, ApiError> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first boundary may start the body, without a line end before it.
    let mut rest = match body.strip_prefix(&delimiter[2..]) {
        Some(rest) => rest,
        None => &body[finder.find(body).ok_or_else(invalid_form)? + delimiter.len()..],
    };
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        // Skip transport padding after the boundary. Keep the CRLF: in an empty part it also begins the next delimiter.
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let part = &rest[padding..];
        let end = finder.find(part).filter(|_| part.starts_with(b"\r\n")).ok_or_else(invalid_form)?;
        if parts.len() >= PARTS_MAX {
            return Err(ApiError::invalid(format!("the form has more than {PARTS_MAX} parts")));
        }
        parts.push(&part[..end]);
        rest = &part[end + delimiter.len()..];
    }
    Ok(parts)
}

/// Splits a part into its headers and its value.
fn split_part(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memmem::find(part, b"\r\n\r\n")?;
    Some((&part[..end], &part[end + 4..]))
}

/// Finds a field's name in its headers.
fn field_name(head: &[u8]) -> Option<&[u8]> {
    let is_disposition =
        |line: &&[u8]| line.get(..20).is_some_and(|name| name.eq_ignore_ascii_case(b"content-disposition:"));
    let line = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(is_disposition)?;
    let parameters = line.split(|byte| *byte == b';').skip(1).map(<[u8]>::trim_ascii);
    let value = parameters.into_iter().find_map(|parameter| parameter.strip_prefix(b"name="))?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &[u8] = b"multipart/form-data; boundary=\"x y\"";

    #[test]
    fn the_model_is_found_among_the_fields() {
        let audio = "RIFF\r\n--x\r\n".repeat(1_000);
        let request = parse_fields(&[
            ("file\"; filename=\"a;b.wav", &audio),
            ("model", "whisper-1"),
            ("language", "en"),
        ]);
        let request = request.unwrap();
        assert_eq!((request.model.as_str(), request.mode), ("whisper-1", ResponseMode::NonStreaming));
        assert!(request.input_tokens > 10);
        let streamed = parse_fields(&[("stream", "true"), ("model", "m")]).unwrap();
        assert_eq!(streamed.mode, ResponseMode::Stream);
    }

    #[test]
    fn a_form_is_forwarded_unchanged() {
        let body = form(&[("model", "m")]);
        assert_eq!(LlmRequest::parse_form(TYPE, &body).unwrap().unwrap().forwarded(&body, None), body);
    }

    #[test]
    fn another_model_replaces_the_value_of_the_field() {
        let body = form(&[("file", "m"), ("model", " m "), ("language", "en")]);
        let renamed = LlmRequest::parse_form(TYPE, &body).unwrap().unwrap().forwarded(&body, Some("whisper"));
        assert_eq!(renamed, form(&[("file", "m"), ("model", " whisper "), ("language", "en")]));
    }

    #[test]
    fn a_form_with_a_repeated_field_an_invalid_model_or_too_many_parts_is_rejected() {
        let message = |fields: &[(&str, &str)]| parse_fields(fields).unwrap_err().to_string();
        assert_eq!(message(&[("model", "a"), ("model", "b")]), "form field `model` appears more than once");
        assert_eq!(message(&[("file", "a")]), "form field `model` is missing");
        assert_eq!(
            message(&[("model", "")]),
            "form field `model` is not a valid model name (1 to 256 bytes of UTF-8)"
        );
        let many: Vec<_> = (0..=PARTS_MAX).map(|_| ("other", "x")).collect();
        assert_eq!(message(&many), "the form has more than 64 parts");
    }

    #[test]
    fn a_truncated_form_is_rejected() {
        let whole = form(&[("file", "abc"), ("model", "m")]);
        for end in 0..whole.len() - 4 {
            assert!(LlmRequest::parse_form(TYPE, &whole.slice(..end)).unwrap().is_err(), "cut at {end}");
        }
        assert!(LlmRequest::parse_form(b"multipart/form-data", &whole).unwrap().is_err());
        assert!(LlmRequest::parse_form(b"application/json", &whole).is_none());
    }

    fn parse_fields(fields: &[(&str, &str)]) -> Result<LlmRequest, ApiError> {
        LlmRequest::parse_form(TYPE, &form(fields)).unwrap()
    }

    fn form(fields: &[(&str, &str)]) -> Bytes {
        let part = |(name, value): &(&str, &str)| {
            format!("--x y\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        Bytes::from(fields.iter().map(part).collect::<String>() + "--x y--\r\n")
    }
}
