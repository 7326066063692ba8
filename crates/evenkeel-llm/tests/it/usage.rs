//! Usage is found in any JSON body, wherever the chunks are cut.

use evenkeel_llm::usage::{Usage, UsageScanner};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::values::{object, value};

proptest! {
    #[test]
    fn usage_is_found_among_arbitrary_fields(
        other in vec(("[a-d\\\\\"]{1,3}", value()), 0..4),
        other_usage in vec(("[a-d]{1,3}", value()), 0..3),
        position in any::<Index>(),
        (input, output) in any::<(u32, u32)>(),
        cuts in vec(any::<Index>(), 0..4),
    ) {
        let field = |name: &str, value: String| (name.to_owned(), value);
        let mut usage_fields = other_usage;
        usage_fields.insert(position.index(usage_fields.len() + 1), field("prompt_tokens", input.to_string()));
        usage_fields.insert(position.index(usage_fields.len() + 1), field("completion_tokens", output.to_string()));
        let mut body = other;
        body.push(field("choices", format!(r#"[{{"usage":{}}}]"#, object(&usage_fields))));
        body.insert(position.index(body.len() + 1), field("usage", object(&usage_fields)));
        let body = object(&body).into_bytes();
        let usage = Some(Usage { input: input.into(), cached: 0, output: output.into() });
        prop_assert_eq!(Usage::from_json(&body), usage);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let mut scanner = UsageScanner::default();
        cuts.windows(2).for_each(|pair| scanner.scan(&body[pair[0]..pair[1]]));
        prop_assert_eq!(scanner.usage(), usage);
    }

    #[test]
    fn arbitrary_json_has_no_usage(body in value()) {
        prop_assert_eq!(Usage::from_json(body.as_bytes()), None);
    }
}
