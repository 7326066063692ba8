//! A tenant's statement: its usage by day and model, as JSON and as CSV.

use evenkeel_server::calendar::Day;
use evenkeel_server::usage_ledger::{UsageKey, UsageRow};
use serde_json::{Value as Json, json};

use crate::usage_store::FILES_MAX;

/// Columns of a statement.
pub const COLUMNS: [&str; 8] =
    ["day", "model", "requests", "input_tokens", "cached_tokens", "output_tokens", "cost", "currency"];

/// Returns the first and the last day: a month such as `2026-11`, or the days from `from` to `to`. By default the last day
/// is today, and the first one is the first of its month.
pub fn days(
    month: Option<&str>,
    from: Option<&str>,
    to: Option<&str>,
    today: Day,
) -> Result<(Day, Day), String> {
    if let Some(month) = month {
        if from.or(to).is_some() {
            return Err("month cannot be combined with from and to".to_owned());
        }
        let first =
            Day::parse_month(month).ok_or_else(|| format!("{month:?} is not a month such as 2026-11"))?;
        return Ok((first, first.first_of_next_month().previous()));
    }
    let day =
        |text: &str| Day::parse(text).ok_or_else(|| format!("{text:?} is not a day such as 2026-11-18"));
    let to = to.map(day).transpose()?;
    let from = from.map(day).transpose()?.unwrap_or_else(|| to.unwrap_or(today).first_of_month());
    let to = to.unwrap_or(today.max(from));
    if to < from {
        return Err(format!("{to} is before {from}"));
    }
    if FILES_MAX <= to.since(from) as usize {
        return Err(format!("a statement has at most {FILES_MAX} days"));
    }
    Ok((from, to))
}

/// Returns a statement as JSON; costs are decimal texts, so that no client rounds them.
pub fn to_json(tenant: &str, days: (Day, Day), rows: &[(UsageKey, UsageRow)]) -> Json {
    let row = |(key, row): &(UsageKey, UsageRow)| {
        json!({
            "day": key.day.to_string(),
            "model": key.model,
            "requests": row.requests,
            "input_tokens": row.input_tokens,
            "cached_tokens": row.cached_tokens,
            "output_tokens": row.output_tokens,
            "cost": row.cost.to_string(),
            "currency": key.currency,
        })
    };
    let (from, to) = days;
    json!({
        "tenant": tenant,
        "from": from.to_string(),
        "to": to.to_string(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Returns the rows of a statement in JSON as CSV (RFC 4180).
pub fn to_csv(statement: &Json) -> String {
    let rows = statement["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut csv = COLUMNS.join(",") + "\r\n";
    for row in rows {
        let fields: Vec<String> = COLUMNS.iter().map(|column| field(&row[*column])).collect();
        csv.push_str(&fields.join(","));
        csv.push_str("\r\n");
    }
    csv
}

fn field(value: &Json) -> String {
    let Some(text) = value.as_str() else { return value.to_string() };
    // A spreadsheet would run such a text as a formula.
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(month: Option<&str>, from: Option<&str>, to: Option<&str>) -> Result<String, String> {
        let today = Day::parse("2026-11-18").unwrap();
        days(month, from, to, today).map(|(from, to)| format!("{from} {to}"))
    }

    #[test]
    fn a_statement_covers_a_month_or_the_given_days() {
        assert_eq!(range(None, None, None).unwrap(), "2026-11-01 2026-11-18");
        assert_eq!(range(Some("2028-02"), None, None).unwrap(), "2028-02-01 2028-02-29");
        assert_eq!(range(None, Some("2026-10-05"), None).unwrap(), "2026-10-05 2026-11-18");
        assert_eq!(range(None, None, Some("2026-10-05")).unwrap(), "2026-10-01 2026-10-05");
        assert_eq!(range(None, Some("2026-12-05"), None).unwrap(), "2026-12-05 2026-12-05");
        for (month, from, to, message) in [
            (Some("2026"), None, None, "\"2026\" is not a month such as 2026-11"),
            (Some("2026-11"), Some("2026-11-01"), None, "month cannot be combined with from and to"),
            (None, Some("today"), None, "\"today\" is not a day such as 2026-11-18"),
            (None, Some("2026-11-02"), Some("2026-11-01"), "2026-11-01 is before 2026-11-02"),
            (None, Some("2025-10-01"), None, "a statement has at most 400 days"),
        ] {
            assert_eq!(range(month, from, to).unwrap_err(), message);
        }
    }

    #[test]
    fn texts_are_quoted_and_cannot_be_formulas() {
        for (text, expected) in [
            ("qwen3", "qwen3"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1,2", "\"'+1,2\""),
            ("@x", "'@x"),
            ("-x", "'-x"),
            ("line\nbreak", "\"line\nbreak\""),
        ] {
            assert_eq!(field(&json!(text)), expected);
        }
        assert_eq!(field(&json!(12)), "12");
    }
}
