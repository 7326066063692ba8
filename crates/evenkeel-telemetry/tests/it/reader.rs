//! A strict parser of the Prometheus text format: anything outside the format is an error.
//!
//! The tests of `evenkeel` include this file by its path.

use std::collections::{BTreeMap, BTreeSet};

/// A metric family parsed from an exposition.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) kind: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

/// Parses and checks an exposition.
pub(crate) fn read(page: &str) -> Result<Vec<Family>, String> {
    let body = page.strip_suffix('\n').ok_or("missing newline at the end")?;
    let mut families: Vec<Family> = Vec::new();
    let mut lines = body.split('\n').peekable();
    while let Some(line) = lines.next() {
        let head = line.strip_prefix("# HELP ").ok_or(format!("no HELP: {line:?}"))?;
        let (name, help) = head.split_once(' ').ok_or(format!("no help text: {line:?}"))?;
        let line = lines.next().ok_or(format!("{name} has no TYPE"))?;
        let rest = line.strip_prefix(&format!("# TYPE {name} ")).ok_or(format!("no TYPE: {line:?}"))?;
        if families.iter().any(|family| family.name == name) {
            return Err(format!("duplicate family {name}"));
        }
        let name = validate_name(name)?.to_owned();
        let help = unescape(help, None)?;
        let mut family = Family { name, help, kind: rest.to_owned(), samples: Vec::new() };
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            family.samples.push(sample(line)?);
        }
        check(&family)?;
        families.push(family);
    }
    Ok(families)
}

fn validate_name(name: &str) -> Result<&str, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let has_valid_start = name.starts_with(|c: char| !c.is_ascii_digit());
    if has_valid_start && name.chars().all(allowed) { Ok(name) } else { Err(format!("bad name {name:?}")) }
}

fn sample(line: &str) -> Result<Sample, String> {
    let error = || format!("not a sample: {line:?}");
    let (key, value) = line.rsplit_once(' ').ok_or_else(error)?;
    let (name, labels) = match key.split_once('{') {
        None => (key, Vec::new()),
        Some((name, rest)) => (name, labels(rest.strip_suffix('}').ok_or_else(error)?)?),
    };
    Ok(Sample { name: validate_name(name)?.to_owned(), labels, value: number(value)? })
}

fn labels(mut text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").ok_or(format!("no label: {text:?}"))?;
        let end = closing_quote(rest).ok_or(format!("no closing quote: {rest:?}"))?;
        if found.iter().any(|(known, _)| known == name) {
            return Err(format!("duplicate label {name}"));
        }
        found.push((validate_name(name)?.to_owned(), unescape(&rest[..end], Some('"'))?));
        match rest[end + 1..].strip_prefix(',') {
            Some(more) => text = more,
            None if rest.len() == end + 1 => return Ok(found),
            None => return Err(format!("unexpected text after a label: {rest:?}")),
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return Some(at),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

fn unescape(text: &str, quote: Option<char>) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('\\') => out.push('\\'),
            Some('n') => out.push('\n'),
            Some(c) if Some(c) == quote => out.push(c),
            other => return Err(format!("bad escape {other:?} in {text:?}")),
        }
    }
    Ok(out)
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        // Rust would accept `inf` and `infinity`, which Prometheus does not write. We write no exponents either.
        text if text.contains(|c: char| c.is_ascii_alphabetic()) => Err(format!("not a number: {text:?}")),
        text => text.parse().map_err(|_| format!("not a number: {text:?}")),
    }
}

fn check(family: &Family) -> Result<(), String> {
    let name = &family.name;
    if family.help.is_empty() {
        return Err(format!("{name} has no help"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = family.samples.iter().find(|sample| !seen.insert((&sample.name, &sample.labels))) {
        return Err(format!("duplicate series {twice:?}"));
    }
    match family.kind.as_str() {
        "counter" if !name.ends_with("_total") => Err(format!("counter {name} does not end in _total")),
        "counter" => check_scalar(family, |value| value >= 0.0 && value.fract() == 0.0),
        "gauge" => check_scalar(family, |_| true),
        "histogram" => check_histogram(family),
        kind => Err(format!("{name} has unknown type {kind}")),
    }
}

fn check_scalar(family: &Family, allowed: impl Fn(f64) -> bool) -> Result<(), String> {
    let wrong = family.samples.iter().find(|sample| sample.name != family.name || !allowed(sample.value));
    wrong.map_or(Ok(()), |sample| Err(format!("invalid sample of a {}: {sample:?}", family.kind)))
}

/// Checks that bounds and counts of the buckets increase, and that the `+Inf` bucket equals `_count`.
fn check_histogram(family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<Vec<(String, String)>, Vec<&Sample>> = BTreeMap::new();
    for sample in &family.samples {
        let labels = sample.labels.iter().filter(|(name, _)| name != "le").cloned().collect();
        series.entry(labels).or_default().push(sample);
    }
    for samples in series.values() {
        let [buckets @ .., sum, count] = &samples[..] else { return Err("no sum and count".to_owned()) };
        let names = (sum.name.strip_prefix(&family.name), count.name.strip_prefix(&family.name));
        if names != (Some("_sum"), Some("_count")) {
            return Err(format!("no sum and count: {sum:?} {count:?}"));
        }
        let mut before = (f64::NEG_INFINITY, 0.0);
        for bucket in buckets {
            let le = bucket.labels.iter().find(|(name, _)| name == "le").ok_or("no le")?;
            let bound = number(&le.1)?;
            let named = bucket.name.strip_prefix(&family.name) == Some("_bucket");
            if !named || bound <= before.0 || bucket.value < before.1 {
                return Err(format!("bucket misnamed or out of order: {bucket:?}"));
            }
            before = (bound, bucket.value);
        }
        if before.0 != f64::INFINITY || before.1.to_bits() != count.value.to_bits() {
            return Err(format!("the +Inf bucket differs from the count: {before:?} {count:?}"));
        }
    }
    Ok(())
}

/// Returns the value of the sample with this name and exactly these labels.
pub(crate) fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let matches = |sample: &&Sample| {
        let sample_labels = sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        sample.name == name && sample_labels.eq(labels.iter().copied())
    };
    families.iter().flat_map(|family| &family.samples).find(matches).map(|sample| sample.value)
}

#[test]
fn an_invalid_page_is_rejected() {
    let head = "# HELP a_total a\n# TYPE a_total counter\n";
    let histogram = "# HELP h h\n# TYPE h histogram\n";
    for wrong in [
        "a_total 1\n".to_owned(),
        format!("{head}a_total 1"),
        format!("{head}a_total 1\n{head}a_total 1\n"),
        format!("{head}a_total 1\na_total 2\n"),
        format!("{head}a_total -1\n"),
        format!("{head}a_total one\n"),
        format!("{head}b_total 1\n"),
        format!("{head}a_total{{x=\"a\"b\"}} 1\n"),
        format!("{head}a_total{{x=\"a\\t\"}} 1\n"),
        format!("{head}a_total{{x=\"1\",x=\"1\"}} 1\n"),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 2\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"),
    ] {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
    assert!(read(&format!("{head}a_total{{x=\"a\\\"b\\\\\"}} 1\n")).is_ok());
}
