//! Requests that bring a file, as `multipart/form-data`: the model is one of the fields.
//!
//! Bound: at most [`PARTS_MAX`] fields; nothing of them is kept but the model's name. A field that we act on and that is
//! there twice is refused.

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use memchr::memmem;

use super::{IncludeUsage, LlmRequest, MODEL_BYTES_MAX, ResponseMode};

/// How many fields a form may have.
const PARTS_MAX: usize = 64;
/// The longest boundary there is.
const BOUNDARY_MAX: usize = 70;
/// How many bytes of sound or image make about one token.
const BYTES_PER_TOKEN: u64 = 1_024;

impl LlmRequest {
    /// Reads a form; `None` when the type says that the body is something else.
    pub fn parse_form(content_type: &[u8], body: &Bytes) -> Option<Result<Self, ApiError>> {
        const FORM: &[u8] = b"multipart/form-data";
        let is_form = content_type.get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM));
        is_form.then(|| read(content_type, body))
    }
}

fn read(content_type: &[u8], body: &Bytes) -> Result<LlmRequest, ApiError> {
    let boundary =
        boundary(content_type).ok_or_else(|| ApiError::invalid("the form's type names no boundary"))?;
    let mut model = None;
    let mut stream = None;
    for part in parts(boundary, body)? {
        let Some((head, value)) = split(part) else { return Err(broken()) };
        let field = match field(head) {
            Some(b"model") => &mut model,
            Some(b"stream") => &mut stream,
            Some(_) => continue,
            None => return Err(broken()),
        };
        if field.replace(value).is_some() {
            return Err(ApiError::invalid("a field of the form is there twice"));
        }
    }
    let param = || Some("model".to_owned());
    let missing = || ApiError::Invalid { message: "the form has no model".to_owned(), param: param() };
    let model = core::str::from_utf8(model.ok_or_else(missing)?).ok().map(str::trim);
    let model = model.filter(|name| (1..=MODEL_BYTES_MAX).contains(&name.len())).ok_or_else(|| {
        ApiError::Invalid { message: "the form's model is not a name".to_owned(), param: param() }
    })?;
    Ok(LlmRequest {
        model: model.to_owned(),
        delivery: if stream == Some(b"true") { ResponseMode::Stream } else { ResponseMode::Whole },
        usage: IncludeUsage::NotAsked,
        input_tokens: body.len() as u64 / BYTES_PER_TOKEN + 1,
        output_max: None,
        output_known: None,
        affinity: None,
        splice: None,
    })
}

fn broken() -> ApiError {
    ApiError::invalid("the body is not a form")
}

/// Finds what stands between the fields.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let parameters = content_type.split(|byte| *byte == b';').skip(1).map(<[u8]>::trim_ascii);
    let is_ours =
        |parameter: &&[u8]| parameter.get(..9).is_some_and(|name| name.eq_ignore_ascii_case(b"boundary="));
    let value = &parameters.into_iter().find(is_ours)?[9..];
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    (1..=BOUNDARY_MAX).contains(&value.len()).then_some(value)
}

/// Lists what stands between the boundaries, heads included.
fn parts<'a>(boundary: &[u8], body: &'a [u8]) -> Result<Vec<&'a [u8]>, ApiError> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first boundary may be the first thing there is.
    let mut rest = match body.strip_prefix(&delimiter[2..]) {
        Some(rest) => rest,
        None => &body[finder.find(body).ok_or_else(broken)? + delimiter.len()..],
    };
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        // Blanks may follow a boundary on its line. The line's end stays: it may begin the next boundary.
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let part = &rest[blanks..];
        let end = finder.find(part).filter(|_| part.starts_with(b"\r\n")).ok_or_else(broken)?;
        if PARTS_MAX <= parts.len() {
            return Err(ApiError::invalid(format!("the form has more than {PARTS_MAX} fields")));
        }
        parts.push(&part[..end]);
        rest = &part[end + delimiter.len()..];
    }
    Ok(parts)
}

/// Parts a field's head, with the line's end before it, from its value.
fn split(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memmem::find(part, b"\r\n\r\n")?;
    Some((&part[..end], &part[end + 4..]))
}

/// Finds a field's name in its head.
fn field(head: &[u8]) -> Option<&[u8]> {
    let is_ours =
        |line: &&[u8]| line.get(..20).is_some_and(|name| name.eq_ignore_ascii_case(b"content-disposition:"));
    let line = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(is_ours)?;
    let parameters = line.split(|byte| *byte == b';').skip(1).map(<[u8]>::trim_ascii);
    let value = parameters.into_iter().find_map(|parameter| parameter.strip_prefix(b"name="))?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &[u8] = b"multipart/form-data; boundary=\"x y\"";

    #[test]
    fn a_forms_model_is_found_among_its_fields() {
        let sound = "RIFF\r\n--x\r\n".repeat(1_000);
        let asked =
            ask(&[("file\"; filename=\"a;b.wav", &sound), ("model", "whisper-1"), ("language", "en")]);
        let asked = asked.unwrap();
        assert_eq!((asked.model.as_str(), asked.delivery), ("whisper-1", ResponseMode::Whole));
        assert!(asked.input_tokens > 10);
        let streamed = ask(&[("stream", "true"), ("model", "m")]).unwrap();
        assert_eq!(streamed.delivery, ResponseMode::Stream);
    }

    #[test]
    fn a_form_is_passed_on_as_it_is() {
        let body = form(&[("model", "m")]);
        assert_eq!(LlmRequest::parse_form(TYPE, &body).unwrap().unwrap().forwarded(&body), body);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let message = |fields: &[(&str, &str)]| ask(fields).unwrap_err().to_string();
        assert_eq!(message(&[("model", "a"), ("model", "b")]), "a field of the form is there twice");
        assert_eq!(message(&[("file", "a")]), "the form has no model");
        assert_eq!(message(&[("model", "")]), "the form's model is not a name");
        let many: Vec<_> = (0..=PARTS_MAX).map(|_| ("other", "x")).collect();
        assert_eq!(message(&many), "the form has more than 64 fields");
    }

    #[test]
    fn what_is_no_form_is_refused_and_never_read_beyond_its_end() {
        let whole = form(&[("file", "abc"), ("model", "m")]);
        for end in 0..whole.len() - 4 {
            assert!(LlmRequest::parse_form(TYPE, &whole.slice(..end)).unwrap().is_err(), "cut at {end}");
        }
        assert!(LlmRequest::parse_form(b"multipart/form-data", &whole).unwrap().is_err());
        assert!(LlmRequest::parse_form(b"application/json", &whole).is_none());
    }

    fn ask(fields: &[(&str, &str)]) -> Result<LlmRequest, ApiError> {
        LlmRequest::parse_form(TYPE, &form(fields)).unwrap()
    }

    fn form(fields: &[(&str, &str)]) -> Bytes {
        let part = |(name, value): &(&str, &str)| {
            format!("--x y\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        Bytes::from(fields.iter().map(part).collect::<String>() + "--x y--\r\n")
    }
}
