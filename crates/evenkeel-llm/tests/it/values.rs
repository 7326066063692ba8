//! Generators of JSON text with varying whitespace and notation.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Generates the text of an arbitrary value.
pub(crate) fn value() -> impl Strategy<Value = String> {
    let number = select(vec!["0", "-1.5e-7", "12345678901234567890123", "1E+2", "-0.0"]);
    let leaf = prop_oneof![
        select(vec!["null", "true", "false", "\"\"", r#""\ud800""#, r#""\"}]{[\\""#]).prop_map(str::to_owned),
        number.prop_map(str::to_owned),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            vec(("[a-z_\"\\\\]{0,6}", inner), 0..4).prop_map(|fields| object(&fields)),
        ]
    })
}

/// Formats an object, with whitespace wherever it is allowed.
pub(crate) fn object(fields: &[(String, String)]) -> String {
    let named =
        |(name, value): &(String, String)| format!("{} :\t{value}", serde_json::to_string(name).unwrap());
    format!("{{{}\r\n}}", fields.iter().map(named).collect::<Vec<_>>().join("\n,"))
}
